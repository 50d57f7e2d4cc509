"""Weights that the wheel would hold twice: in a file of the package, and in the payload."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.build.diff.tensors import read_tensor_file
from hatch_lower.build.project_view import DistributedFile
from hatch_lower.canonical import sha256_bytes
from hatch_lower.format.constants import CONSTANTS_FILES
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.format.results import PayloadFile

SUFFIX = ".safetensors"
SMALLEST = 1024  # bytes; smaller tensors are equal by chance


class Repeated(Frozen):
    """A packaged file, and how many bytes of its tensors the payload holds as well."""

    file: DistributedFile
    size: int


Kind = tuple[str, int]  # dtype and size: what two tensors must have in common before their data is compared


def find_repeated(files: Sequence[DistributedFile], payload: Sequence[PayloadFile]) -> tuple[Repeated, ...]:
    kinds: dict[Kind, list[memoryview]] = {}
    for constants in payload:
        if constants.path.endswith(CONSTANTS_FILES):
            for kind, data in larger_tensors(constants.source):
                kinds.setdefault(kind, []).append(data)
    # Data is read only where dtype and size are equal. The payload holds tensors in the order of their memory, so a
    # transposed one is not recognised.
    digests_of = cache(lambda kind: {sha256_bytes(constant) for constant in kinds[kind]})
    repeated = []
    for file in files:
        if not file.distributed.endswith(SUFFIX):
            continue
        tensors = [(kind, data) for kind, data in larger_tensors(file.path) if kind in kinds]
        size = sum(len(data) for kind, data in tensors if sha256_bytes(data) in digests_of(kind))
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


def larger_tensors(path: Path) -> Iterator[tuple[Kind, memoryview]]:
    """Yield the larger tensors of a safetensors or constants file; nothing for a file that is not one."""
    try:
        with path.open("rb") as opened:
            data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):  # it is empty, or its file system maps none: nothing is said then
        return
    file = read_tensor_file(data)
    if file is None:
        return
    for name, entry in file.entries.items():
        data = file.contents(name)
        if len(data) >= SMALLEST:
            yield (entry.dtype, len(data)), data
