"""Delegates of a plan: which backend runs which file, bound to which constants, on which machine."""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from hatch_lower.format.codec import Damage
from hatch_lower.format.values import DTYPES, Digest, Natural, RelativePath, Text
from hatch_lower.frozen import Frozen

BLOB_SUFFIX = "blob"
"""Of files in no format of their own. Programs that look for pickles take a `.bin` for one, and fail on it."""

PAGE_SIZE = 4096
"""Bytes: a mapped file begins at a multiple of this on every machine."""


class TargetEntry(Frozen):
    """The machine that native code needs: `platform.system()`, `platform.machine()`, instruction set level."""

    system: Text
    machine: Text
    isa: Text


class DataLayout(Frozen):
    """How data is a tensor: its dtype, its sizes, and its dimensions from the outermost in memory to the innermost."""

    dtype: Text
    sizes: tuple[Natural, ...]
    dim_order: tuple[Natural, ...]


class DataFile(Frozen):
    """Named data of a delegate: a file that holds nothing else.

    Args:
        file: path relative to the `_lowered` folder.
        size: bytes.
        alignment: the multiple of bytes at which it must lie in memory; it divides the size of a page.
        layout: how it is a tensor; `None` where it is none.
    """

    file: RelativePath
    size: Natural
    alignment: Natural
    layout: DataLayout | None

    def validate(self) -> None:
        if self.alignment == 0 or PAGE_SIZE % self.alignment:
            raise Damage(f"an alignment of {self.alignment} bytes")
        if self.layout is not None and not is_whole(self.layout, self.size):
            raise Damage(f"{self.size} bytes for another tensor")


class Head(Frozen):
    """The beginning of a blob, behind which there are only weights: its bytes, and their sha256."""

    size: Natural
    sha256: Digest

    def validate(self) -> None:
        if self.size == 0:
            raise Damage("a head of 0 bytes")


class DelegateEntry(Frozen):
    """One blob.

    Args:
        backend: id in the entry-point group `hatch_lower.delegates`.
        file: path relative to the `_lowered` folder.
        constants: names of the constants to bind, in order.
        info: facts that the compile half left for the run half.
        target: the machine that it needs; `None` where it is portable.
        data: what it puts beside the blob, by name; a name means one file in all delegates of a plan.
        head: the part of the blob that is compared whenever it is loaded; `None`: all of it.
    """

    backend: Text
    file: RelativePath
    constants: tuple[Text, ...]
    info: Mapping[str, Any]
    target: TargetEntry | None
    data: Mapping[Text, DataFile] = field(default_factory=dict)
    head: Head | None = None


def data_name(digest: str) -> str:
    return f"{digest}.{BLOB_SUFFIX}"


def is_whole(layout: DataLayout, size: int) -> bool:
    if layout.dtype not in DTYPES or sorted(layout.dim_order) != list(range(len(layout.sizes))):
        return False
    return math.prod(layout.sizes) * DTYPES[layout.dtype].size == size
