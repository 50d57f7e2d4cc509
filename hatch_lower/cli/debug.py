"""`hatch-lower debug`: from instructions and delegate instruction ids to ops, module paths and source lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hatch_lower.cli.tables import table_lines
from hatch_lower.debug import MethodDebug, Origin

__all__ = ["debug_lines", "debug_report"]


def debug_report(debug: MethodDebug) -> list[dict[str, Any]]:
    """Return the instructions in the order of the plan; one that calls a delegate has the delegate's own `map`."""
    rows: list[dict[str, Any]] = []
    for path in sorted({*debug.instructions, *debug.delegates}, key=natural_order):
        delegate = debug.delegates.get(path)
        row: dict[str, Any] = {"instruction": path, "origins": origins(debug, debug.instructions.get(path, ()))}
        if delegate is not None:
            inner = delegate.map
            row["backend"] = delegate.backend
            row["map"] = inner and {key: origins(debug, inner[key]) for key in sorted(inner, key=natural_order)}
        rows.append(row)
    return rows


def debug_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a report as one table."""
    cells: list[Sequence[str]] = [("instruction", "id", "op", "module", "source")]
    for row in rows:
        inner = row.get("map")
        if "backend" in row:
            cells.append((row["instruction"], "", f"call of a delegate of `{row['backend']}`", "", ""))
        if inner:
            for key, listed in inner.items():
                cells += origin_cells("", key, listed)
        else:
            cells += origin_cells("" if "backend" in row else row["instruction"], "", row["origins"])
    return table_lines(cells)


def origin_cells(path: str, identifier: str, listed: Sequence[dict[str, str]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each origin; only the first repeats what it belongs to."""
    for position, each in enumerate(listed):
        first = position == 0
        yield path if first else "", identifier if first else "", each["op"], each["module"], each["source"]


def origins(debug: MethodDebug, handles: Sequence[int]) -> list[dict[str, str]]:
    """Return what stands behind handles."""
    found = [debug.handles.get(handle, Origin("unknown")) for handle in handles]
    return [{"op": each.op, "module": each.module, "source": each.source} for each in found]


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key under which `10` comes after `9`, also within `4.true.10`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in text.split(".")]
