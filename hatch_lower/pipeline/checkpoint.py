"""Local copies of published weight files: the tensors in a safetensors file, and their positions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hatch_lower.errors import LowerError, PackageError
from hatch_lower.format.codec import decode, parse_json
from hatch_lower.format.constants import TensorEntry, header_span
from hatch_lower.format.values import DTYPES
from hatch_lower.format.weights import FILE_NAME, WeightsSource
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.mapped import map_file
from hatch_lower.runtime.sources import file_name

SIZES = {stored.safetensors: stored.size for stored in DTYPES.values() if stored.safetensors is not None}


class LocalSource(Frozen):
    url: str
    size: int  # bytes
    sha256: str
    path: Path

    @property
    def where(self) -> str:
        return self.url if "://" in self.url else str(self.path)

    def source(self) -> WeightsSource:
        return WeightsSource(self.url, self.size, self.sha256)


def named_in_wheel(sources: Sequence[LocalSource]) -> tuple[LocalSource, ...]:
    """Return a model's sources as named in a wheel: local files by file name, never by path."""
    files = Counter(source.path.name for source in sources if source.url.startswith("file:"))
    return tuple(
        replace(source, url=source.path.name if has_plain_name(source, files) else file_name(source.sha256))
        if source.url.startswith("file:")
        else source
        for source in sources
    )


def has_plain_name(source: LocalSource, files: Counter[str]) -> bool:
    return files[source.path.name] == 1 and FILE_NAME.fullmatch(source.path.name) is not None


class OutsideFiles(Frozen):
    """The written `weights.json`, and the local paths of its sources, in the order of that file."""

    weights: Path
    sources: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    name: str
    dtype: str  # safetensors' name
    shape: tuple[int, ...]
    begin: int  # bytes in the file
    end: int


class Checkpoint(Frozen):
    content: memoryview  # of the whole file, mapped copy-on-write
    tensors: tuple[CheckpointTensor, ...]  # in the order of their bytes


def read_checkpoint(local: LocalSource) -> Checkpoint:
    """Return the tensors of a source's file, without tensors whose dtype programs do not support."""
    try:
        content = map_file(local.path)
    except (OSError, ValueError) as error:
        raise unusable_source(
            local, f"{type(error).__name__}: {error}", "make sure that the file can be read"
        ) from error
    if len(content) != local.size:
        raise unusable_source(
            local, f"{len(content)} bytes instead of {local.size}", "build again: the file has just changed"
        )
    return Checkpoint(content, read_checkpoint_tensors(local, content))


def read_checkpoint_tensors(local: LocalSource, content: memoryview) -> tuple[CheckpointTensor, ...]:
    span = header_span(content)
    if span is None:
        raise no_safetensors(local, "no header of safetensors at its beginning")
    _, data = span
    try:
        header: Mapping[str, object] = decode(
            Mapping[str, Any], parse_json(bytes(content[slice(*span)]), "header"), "header"
        )
        entries: dict[str, TensorEntry] = {
            name: decode(TensorEntry, value, f"{name!r:.80}")
            for name, value in header.items()
            if name != "__metadata__"
        }
    except LowerError as error:
        raise no_safetensors(local, f"{error.where}: {error.found}") from error
    found = []
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        if not begin <= end <= len(content) - data:
            raise no_safetensors(local, f"{name!r:.80}: the bytes {begin} to {end} of {len(content) - data}")
        if entry.dtype not in SIZES:
            continue
        if end - begin != math.prod(entry.shape) * SIZES[entry.dtype]:
            raise no_safetensors(local, f"{name!r:.80}: {end - begin} bytes for {entry.dtype}{list(entry.shape)}")
        found.append(CheckpointTensor(name, entry.dtype, entry.shape, data + begin, data + end))
    return tuple(sorted(found, key=lambda tensor: (tensor.begin, tensor.end, tensor.name)))


def no_safetensors(local: LocalSource, found: str) -> PackageError:
    return unusable_source(
        local,
        found,
        "name safetensors files, each shard of a checkpoint, not its index; for weights in another format, or without"
        f" a server, `weights = {json.dumps('file')}` writes a safetensors file",
    )


def unusable_source(local: LocalSource, found: str, hint: str) -> PackageError:
    return PackageError("a source of weights is not a safetensors file", where=local.where, found=found, hint=hint)
