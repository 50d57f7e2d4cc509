"""Weights that the wheel would hold twice: in a file of the package, and in the payload."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.build.project_view import DistributedFile
from hatch_lower.format.constants import CONSTANTS_FILES, DATA_MAP_BYTES, tensors_begin
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.format.results import PayloadFile

SUFFIX = ".safetensors"
SMALLEST = 1024  # bytes; smaller tensors are equal by chance


class Repeated(Frozen):
    """A packaged file, and how many bytes of its tensors the payload holds as well."""

    file: DistributedFile
    size: int


@dataclass(frozen=True, slots=True)
class Span:
    path: Path
    begin: int
    kind: tuple[str, int]  # dtype and size: what two tensors must have in common before their data is compared


def find_repeated(files: Sequence[DistributedFile], payload: Sequence[PayloadFile]) -> tuple[Repeated, ...]:
    packaged = [file for file in files if file.distributed.endswith(SUFFIX)]
    if not packaged:
        return ()
    kinds: dict[tuple[str, int], list[Span]] = {}
    for constants in payload:
        if constants.path.endswith(CONSTANTS_FILES):
            for span in read_spans(constants.source):
                kinds.setdefault(span.kind, []).append(span)
    # Data is read only where dtype and size are equal. The payload holds tensors in the order of their memory, so a
    # transposed one is not recognised.
    digests: dict[tuple[str, int], set[bytes]] = {}
    repeated = []
    for file in packaged:
        size = 0
        for span in read_spans(file.path):
            if span.kind in kinds and span.kind not in digests:
                digests[span.kind] = {digest_of_span(constant) for constant in kinds[span.kind]}
            if span.kind in kinds and digest_of_span(span) in digests[span.kind]:
                size += span.kind[1]
        if size:
            repeated.append(Repeated(file, size))
    return tuple(repeated)


def repetition_warning(repeated: Repeated, relative: str, exclude: Sequence[str]) -> str:
    pattern = relative if "/" in relative else f"/{relative}"
    lines = ", ".join(json.dumps(glob) for glob in (*exclude, pattern))
    cure = "take it out of `force-include`"
    if relative:
        cure = f"add to `[tool.hatch.build.targets.wheel]`: exclude = [{lines}]"
    return (
        f"`{repeated.file.distributed}` is packaged although the lowered programs hold {repeated.size:,} bytes of its "
        f"tensors already; to ship them once, {cure}"
    )


def read_spans(path: Path) -> Iterator[Span]:
    """Yield the larger tensors of a safetensors or constants file; nothing for a file that is not one."""
    try:
        with path.open("rb") as file:
            start = tensors_begin(file.read(DATA_MAP_BYTES)) + 8
            file.seek(start - 8)
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size)) if size <= path.stat().st_size else {}
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                if end - begin >= SMALLEST:
                    yield Span(path, start + size + begin, (entry["dtype"], end - begin))
    except (AttributeError, KeyError, TypeError, ValueError, struct.error):
        return


def digest_of_span(span: Span) -> bytes:
    total = hashlib.sha256()
    with span.path.open("rb") as file:
        file.seek(span.begin)
        left = span.kind[1]
        while left > 0 and (piece := file.read(min(1 << 20, left))):
            total.update(piece)
            left -= len(piece)
    return total.digest()
