"""What a build shows: progress while it runs, and a table at its end. Always on stderr: frontends parse stdout."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.events import CollapsedOutput, LineReporter, LiveReporter, Reporter

if TYPE_CHECKING:
    from hatchling.bridge.app import Application

    from hatch_lower.format.results import MethodRow

HEADINGS = ("model", "method", "recipe", "nodes", "delegated", "partitions", "bytes", "seconds", "")
TEXT_COLUMNS = frozenset({0, 1, 2, 8})
# What is said of a method for which nothing was exported, or nothing lowered
LEVELS = {1: "unchanged", 2: "same graph"}


def reporter_for(app: Application, log: Path | None) -> Reporter:
    """Return a live line on a terminal, else plain lines; nothing of either where the user asked for quiet."""
    reporter: Reporter = LineReporter(app.display_info)
    if app.verbosity >= 0 and sys.stderr.isatty():
        reporter = LiveReporter(sys.stderr, app.display_info, shutil.get_terminal_size().columns)
    return reporter if app.verbosity > 0 else CollapsedOutput(reporter, log)


def summary_lines(rows: Sequence[MethodRow]) -> list[str]:
    """Return the table of what was lowered, with aligned columns, and below it why; nothing for no rows."""
    if not rows:
        return []
    table = [HEADINGS, *(cells_of(row) for row in rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(HEADINGS))]
    lines = [
        "  ".join(
            cell.ljust(width) if i in TEXT_COLUMNS else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in table
    ]
    return [*lines, *note_lines(rows)]


def note_lines(rows: Sequence[MethodRow]) -> Iterator[str]:
    """Yield a line for what is said of a whole model, or of its methods where that differs; never twice."""
    notes: dict[str, dict[str, str]] = {}
    for row in rows:
        notes.setdefault(row.model, {})[row.method] = row.note
    for model, said in notes.items():
        if len(set(said.values())) == 1:
            said = {"": next(iter(said.values()))}
        yield from (f"why {model}{f'.{method}' if method else ''}: {note}" for method, note in said.items() if note)


def cells_of(row: MethodRow) -> tuple[str, ...]:
    return (
        row.model,
        row.method,
        row.recipe,
        str(row.nodes),
        str(row.delegated),
        str(row.partitions),
        f"{row.bytes:,}",
        f"{row.seconds:.2f}",
        origin_of(row),
    )


def origin_of(row: MethodRow) -> str:
    if row.level in LEVELS:
        return LEVELS[row.level]
    if row.partitions == 0:
        return "nothing to lower"
    if row.reused == 0:
        return "built"
    return "reused" if row.reused == row.partitions else f"{row.reused} reused, {row.partitions - row.reused} built"
