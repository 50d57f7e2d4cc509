"""Delegates of a plan: which backend runs which file, bound to which constants, on which machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hatch_lower.format.dtypes import DTYPES
from hatch_lower.format.reading import (
    read_digest,
    read_fields,
    read_list,
    read_natural,
    read_object,
    read_path,
    read_text,
    refuse,
)

BLOB_SUFFIX = "blob"
"""Of files in no format of their own. Programs that look for pickles take a `.bin` for one, and fail on it."""

PAGE_SIZE = 4096
"""Bytes: a mapped file begins at a multiple of this on every machine."""


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """The machine that native code needs: `platform.system()`, `platform.machine()`, instruction set level."""

    system: str
    machine: str
    isa: str


@dataclass(frozen=True, slots=True)
class DataLayout:
    """How data is a tensor: its dtype, its sizes, and its dimensions from the outermost in memory to the innermost."""

    dtype: str
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """Named data of a delegate: a file that holds nothing else.

    Args:
        file: path relative to the `_lowered` folder.
        size: bytes.
        alignment: the multiple of bytes at which it must lie in memory; it divides the size of a page.
        layout: how it is a tensor; `None` where it is none.
    """

    file: str
    size: int
    alignment: int
    layout: DataLayout | None


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a blob, behind which there are only weights: its bytes, and their sha256."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DelegateEntry:
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

    backend: str
    file: str
    constants: tuple[str, ...]
    info: Mapping[str, Any]
    target: TargetEntry | None
    data: Mapping[str, DataFile] = field(default_factory=dict)
    head: Head | None = None


def data_name(digest: str) -> str:
    """Return the name of the file of named data with this sha256."""
    return f"{digest}.{BLOB_SUFFIX}"


def read_delegate(value: Any, constants: Mapping[str, Any], where: str) -> DelegateEntry:
    """Return a delegate that binds only known constants."""
    names = frozenset({"backend", "file", "constants", "info", "target"})
    fields = read_fields(value, names, where, frozenset({"data", "head"}))
    bound = tuple(read_text(each, where) for each in read_list(fields["constants"], where))
    for name in bound:
        if name not in constants:
            refuse(where, f"the unknown constant `{name[:80]}`")
    return DelegateEntry(
        read_text(fields["backend"], where),
        read_path(fields["file"], where),
        bound,
        read_object(fields["info"], where),
        read_target(fields["target"], where),
        {
            read_text(name, where): _read_data(each, f"{where}.data[{name!r:.80}]")
            for name, each in read_object(fields.get("data", {}), where).items()
        },
        _read_head(fields["head"], where) if "head" in fields else None,
    )


def delegate_json(entry: DelegateEntry) -> dict[str, Any]:
    """Return the JSON value that `read_delegate` reads."""
    fields: dict[str, Any] = {
        "backend": entry.backend,
        "file": entry.file,
        "constants": list(entry.constants),
        "info": dict(entry.info),
        "target": target_json(entry.target),
    }
    if entry.data:
        fields["data"] = {name: _data_json(each) for name, each in entry.data.items()}
    if entry.head is not None:
        fields["head"] = {"size": entry.head.size, "sha256": entry.head.sha256}
    return fields


def read_target(value: Any, where: str) -> TargetEntry | None:
    """Return the machine that `value` describes; null means any."""
    if value is None:
        return None
    fields = read_fields(value, frozenset({"system", "machine", "isa"}), where)
    return TargetEntry(*(read_text(fields[name], where) for name in ("system", "machine", "isa")))


def target_json(target: TargetEntry | None) -> Any:
    """Return the JSON value that `read_target` reads."""
    return target and {"system": target.system, "machine": target.machine, "isa": target.isa}


def is_whole(layout: DataLayout, size: int) -> bool:
    """Return whether a layout describes a tensor of `size` bytes."""
    if layout.dtype not in DTYPES or sorted(layout.dim_order) != list(range(len(layout.sizes))):
        return False
    return math.prod(layout.sizes) * DTYPES[layout.dtype].size == size


def _read_head(value: Any, where: str) -> Head:
    fields = read_fields(value, frozenset({"size", "sha256"}), where)
    size = read_natural(fields["size"], where)
    if size == 0:
        refuse(where, "a head of 0 bytes")
    return Head(size, read_digest(fields["sha256"], where))


def _read_data(value: Any, where: str) -> DataFile:
    fields = read_fields(value, frozenset({"file", "size", "alignment", "layout"}), where)
    size, alignment = (read_natural(fields[name], where) for name in ("size", "alignment"))
    if alignment == 0 or PAGE_SIZE % alignment:
        refuse(where, f"an alignment of {alignment} bytes")
    layout = None if fields["layout"] is None else _read_layout(fields["layout"], where)
    if layout is not None and not is_whole(layout, size):
        refuse(where, f"{size} bytes for another tensor")
    return DataFile(read_path(fields["file"], where), size, alignment, layout)


def _read_layout(value: Any, where: str) -> DataLayout:
    fields = read_fields(value, frozenset({"dtype", "sizes", "dim_order"}), where)
    sizes, order = (
        tuple(read_natural(each, where) for each in read_list(fields[name], where)) for name in ("sizes", "dim_order")
    )
    return DataLayout(read_text(fields["dtype"], where), sizes, order)


def _data_json(data: DataFile) -> dict[str, Any]:
    layout = data.layout and {
        "dtype": data.layout.dtype,
        "sizes": list(data.layout.sizes),
        "dim_order": list(data.layout.dim_order),
    }
    return {"file": data.file, "size": data.size, "alignment": data.alignment, "layout": layout}
