"""Memory-mapped files: the constants file, and the named data of delegates.

The constants file is a safetensors file, in some models after a header for ExecuTorch. This module parses the file
itself, to check every offset and to avoid copies.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hatch_lower.canonical import open_file, sha256_bytes
from hatch_lower.errors import ProgramError, reading_hint
from hatch_lower.format.codec import decode, installation_error, parse_json, refuse_damaged_file
from hatch_lower.format.constants import (
    DATA_MAP_BYTES,
    DataFile,
    DataLayout,
    Storage,
    TensorEntry,
    content_key,
    header_span,
    tensors_begin,
)
from hatch_lower.format.plan import Plan
from hatch_lower.format.values import DTYPES
from hatch_lower.runtime.delegates import Place


class Stored(NamedTuple):
    """A tensor of a safetensors file, its elements in the order of its dimensions."""

    dtype: str  # torch's name
    shape: tuple[int, ...]
    content: memoryview  # bytes


class ConstantsFile:
    """A safetensors file of one-dimensional tensors, mapped copy-on-write: writes never change the file."""

    # Returns bytes, from which `torch_arrays` and `numpy_arrays` make tensors; any view keeps the mapping alive.
    # `where` names the file in messages; `header_sha256`, if not empty, is the digest of all bytes before the data.

    def __init__(self, path: Path, where: str, header_sha256: str = "") -> None:
        self._path = path
        self._where = where
        try:
            self._mapping = map_file(path)
        except (OSError, ValueError) as error:
            raise ProgramError(
                "a packaged program file cannot be read",
                where=where,
                found=str(error),
                hint=reading_hint(str(error), "install the distribution again"),
            ) from error
        header = header_span(self._mapping, tensors_begin(bytes(self._mapping[:DATA_MAP_BYTES])))
        if header is None:
            refuse_damaged_file(where, f"a safetensors header that does not fit into {len(self._mapping)} bytes")
        begin, self._begin = header
        if header_sha256 and sha256_bytes(self._mapping[: self._begin]) != header_sha256:
            refuse_damaged_file(where, "a header with another sha256 than the manifest says")
        text = bytes(self._mapping[begin : self._begin])
        self._header: Mapping[str, object] = decode(Mapping[str, Any], parse_json(text, where), where)

    def spans(self, storages: Sequence[Storage]) -> tuple[memoryview, ...]:
        return tuple(self._whole_span(storage) for storage in storages)

    def places(self, storages: Sequence[Storage]) -> tuple[Place, ...]:
        found = (self._entry(storage.key).data_offsets for storage in storages)
        return tuple(Place(self._path, self._begin + begin, end - begin) for begin, end in found)

    def contents(self) -> dict[str, Stored]:
        return {key: self._stored(key) for key in self._header if key != "__metadata__"}

    def _stored(self, key: str) -> Stored:
        entry = self._entry(key)
        names = [name for name, stored in DTYPES.items() if stored.safetensors and stored.safetensors == entry.dtype]
        if not names:
            refuse_damaged_file(f"{self._where}: {key!r:.80}", f"the dtype {entry.dtype!r:.40}")
        storage = Storage(key, names[0], math.prod(entry.shape))
        return Stored(names[0], entry.shape, self._span(storage, entry.shape))

    def _whole_span(self, storage: Storage) -> memoryview:
        span = self._span(storage, (storage.length,))
        if storage.may_hold_indices and content_key(storage.dtype, sha256_bytes(span)) != storage.key:
            refuse_damaged_file(f"{self._where}: {storage.key!r:.80}", "different integers than in the build")
        return span

    def _entry(self, key: str) -> TensorEntry:
        entry: TensorEntry = decode(TensorEntry, self._header[key], f"{self._where}: {key!r:.80}")
        return entry

    def _span(self, storage: Storage, shape: tuple[int, ...]) -> memoryview:
        where = f"{self._where}: {storage.key!r:.80}"
        if storage.key not in self._header or storage.key == "__metadata__":
            refuse_damaged_file(where, "the file does not contain the tensor")
        entry = self._entry(storage.key)
        if entry.dtype != DTYPES[storage.dtype].safetensors or entry.shape != shape:
            refuse_damaged_file(
                where, f"a tensor of another dtype or shape than the plan's {storage.dtype}[{storage.length}]"
            )
        limit = len(self._mapping) - self._begin
        begin, end = entry.data_offsets
        if end > limit:
            refuse_damaged_file(where, f"the bytes {begin} to {end} of {limit}")
        if end - begin != storage.nbytes:
            refuse_damaged_file(where, f"{end - begin} bytes for {storage.length} elements of {storage.dtype}")
        return self._mapping[self._begin + begin : self._begin + end]


# close mapped files: a program may have more files of data than a process may have open
KEEP_CLOSED: Mapping[str, bool] = {"trackfd": False} if sys.version_info >= (3, 13) and os.name == "posix" else {}


def data_files(plan: Plan) -> dict[str, DataFile]:
    # merging is safe: a name means the same data in all delegates of a plan
    return {name: data for entry in plan.delegates for name, data in entry.data.items()}


def weight_files(plan: Plan) -> frozenset[str]:
    """Return the paths of files that contain only tensors."""
    # Like constants, tensors are checked by size, and by digest only on demand. Delegates trust the contents of all
    # other files, whose digests are always checked.
    files = data_files(plan).values()
    others = {entry.file for entry in files if entry.layout is None} | {entry.file for entry in plan.delegates}
    return frozenset(entry.file for entry in files) - others


def data_places(plan: Plan, folder: Path, storages: Sequence[Place]) -> dict[str, Place]:
    """Return the places of the named data of a plan's delegates; `storages` are the places in the constants file."""
    places = {name: Place(folder / data.file, 0, data.size) for name, data in data_files(plan).items()}
    for entry in plan.delegates:
        places |= {name: storages[data.storage] for name, data in entry.named.items()}
    return places


def data_layouts(plan: Plan) -> dict[str, DataLayout]:
    layouts = {name: data.layout for name, data in data_files(plan).items() if data.layout}
    return layouts | {name: data.layout for entry in plan.delegates for name, data in entry.named.items()}


def map_data(places: Mapping[str, Place]) -> Mapping[str, memoryview]:
    sizes: dict[Path, int | None] = {}
    for path, offset, length in places.values():
        # data that fill a whole file determine its size, which `map_file` then checks
        sizes[path] = length if not offset and sizes.get(path, length) == length else None
    views = {path: map_data_file(path, size) for path, size in sizes.items()}
    for path, offset, length in places.values():
        if offset + length > len(views[path]):
            raise unusable_named_data(path, f"{len(views[path])} bytes, where data end at {offset + length}")
    found = {name: views[path][offset : offset + length] for name, (path, offset, length) in places.items()}
    return MappingProxyType(found)


def map_data_file(path: Path, size: int | None) -> memoryview:
    try:
        return map_file(path, size, mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise unusable_named_data(path, str(error)) from error


# By default private and writable: torch warns about read-only memory, and a write to it would end the process.
def map_file(path: Path, size: int | None = None, access: int = mmap.ACCESS_COPY) -> memoryview:
    """Map a file; the mapping lives as long as any view. Raises `ValueError` if the size is not `size`."""
    with open_file(path) as file:
        found = os.fstat(file.fileno()).st_size
        if size not in (None, found):
            raise ValueError(f"{found} bytes instead of {size}")
        # an empty file cannot be mapped
        return memoryview(mmap.mmap(file.fileno(), 0, access=access, **KEEP_CLOSED) if found else bytearray())


def unusable_named_data(path: Path, found: str) -> ProgramError:
    return installation_error("the named data of a delegate cannot be used", str(path), found)
