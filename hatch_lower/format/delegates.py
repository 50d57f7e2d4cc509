"""Delegates of a plan: which backend runs which file, bound to which constants, on which machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hatch_lower.format.reading import read_fields, read_list, read_object, read_path, read_text, refuse

__all__ = ["DelegateEntry", "TargetEntry", "delegate_json", "read_delegate", "read_target", "target_json"]


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """The machine that native code needs: `platform.system()`, `platform.machine()`, instruction set level."""

    system: str
    machine: str
    isa: str


@dataclass(frozen=True, slots=True)
class DelegateEntry:
    """One blob.

    Args:
        backend: id in the entry-point group `hatch_lower.delegates`.
        file: path relative to the `_lowered` folder.
        constants: names of the constants to bind, in order.
        info: facts that the compile half left for the run half.
        target: the machine that it needs; `None` where it is portable.
    """

    backend: str
    file: str
    constants: tuple[str, ...]
    info: Mapping[str, Any]
    target: TargetEntry | None


def read_delegate(value: Any, constants: Mapping[str, Any], where: str) -> DelegateEntry:
    """Return a delegate that binds only known constants."""
    fields = read_fields(value, frozenset({"backend", "file", "constants", "info", "target"}), where)
    names = tuple(read_text(each, where) for each in read_list(fields["constants"], where))
    for name in names:
        if name not in constants:
            refuse(where, f"the unknown constant `{name[:80]}`")
    return DelegateEntry(
        read_text(fields["backend"], where),
        read_path(fields["file"], where),
        names,
        read_object(fields["info"], where),
        read_target(fields["target"], where),
    )


def delegate_json(entry: DelegateEntry) -> dict[str, Any]:
    """Return the JSON value that `read_delegate` reads."""
    return {
        "backend": entry.backend,
        "file": entry.file,
        "constants": list(entry.constants),
        "info": dict(entry.info),
        "target": target_json(entry.target),
    }


def read_target(value: Any, where: str) -> TargetEntry | None:
    """Return the machine that `value` describes; null means any."""
    if value is None:
        return None
    fields = read_fields(value, frozenset({"system", "machine", "isa"}), where)
    return TargetEntry(*(read_text(fields[name], where) for name in ("system", "machine", "isa")))


def target_json(target: TargetEntry | None) -> Any:
    """Return the JSON value that `read_target` reads."""
    return target and {"system": target.system, "machine": target.machine, "isa": target.isa}
