"""Weights that a wheel would hold twice: in a file of the package, and in the payload."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.driver.context import DistributedFile
from hatch_lower.driver.diff.tensors import read_tensor_file
from hatch_lower.format.constants import CONSTANTS_FILES
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.format.results import PayloadFile

SUFFIX = ".safetensors"
SMALLEST = 1024  # bytes; smaller tensors alone may be equal by chance
COUNTER = "num_batches_tracked"  # of a batch norm, which only training reads


class Repeated(Frozen):
    """A packaged file whose larger tensors are in the payload, too."""

    file: DistributedFile
    size: int  # bytes of the tensors that are in the payload, too
    whole: bool  # whether the payload holds all tensors of the file


Kind = tuple[str, int]  # dtype and size: only the data of tensors with the same kind is compared


def find_repeated(files: Sequence[DistributedFile], payload: Sequence[PayloadFile]) -> tuple[Repeated, ...]:
    kinds: dict[Kind, list[memoryview]] = {}
    for constants in payload:
        if constants.path.endswith(CONSTANTS_FILES):
            for _, kind, data in read_file_tensors(constants.source):
                kinds.setdefault(kind, []).append(data)
    # the payload holds tensors in the order of their memory, so a transposed tensor is not recognized
    repeated = []
    for file in files:
        if not file.distributed.endswith(SUFFIX):
            continue
        size, whole = 0, True
        for name, kind, data in read_file_tensors(file.path):
            if any(has_equal_bytes(data, constant) for constant in kinds.get(kind, ())):
                size += len(data) if len(data) >= SMALLEST else 0
            elif not name.endswith(COUNTER):
                whole = False
        if size:
            repeated.append(Repeated(file, size, whole))
    return tuple(repeated)


def has_equal_bytes(data: memoryview, other: memoryview) -> bool:
    # comparing `bytes` is fast; memory views are compared item by item
    return data[:SMALLEST] == other[:SMALLEST] and bytes(data) == bytes(other)


def omission_line(repeated: Repeated) -> str:
    return (
        f"`{repeated.file.distributed}` is left out of the wheel: the lowered programs hold its tensors"
        f" ({repeated.size:,} bytes); `keep-weights = true` packages the file, too"
    )


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


def read_file_tensors(path: Path) -> Iterator[tuple[str, Kind, memoryview]]:
    """Yield name, kind and data of each tensor of a safetensors or constants file; skip an unreadable file."""
    try:
        with path.open("rb") as opened:
            data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):  # the file is empty, or its file system maps no files
        return
    file = read_tensor_file(data)
    if file is None:
        return
    for name, entry in file.entries.items():
        data = file.contents(name)
        yield name, (entry.dtype, len(data)), data
