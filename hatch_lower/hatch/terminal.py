"""Output of a build: progress lines, and a table at the end. All on stderr, because frontends parse stdout."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.errors import size_text
from hatch_lower.events import CollapsedOutput, Display, LineReporter, LiveReporter
from hatch_lower.format.results import lacks_device, metric_text

if TYPE_CHECKING:
    from hatch_lower.format.results import MethodRow, ModelResult, PayloadFile

HEADINGS = ("model", "method", "recipe", "nodes", "delegated", "partitions", "bytes", "seconds", "")
NUMBERS = range(3, 8)  # columns
LARGE = 64 << 20  # bytes of a payload that takes a second or more to write
# the table's word for a method that was not exported, or not lowered
LEVELS = {1: "unchanged", 2: "same graph"}


def reporter_for(write_line: Callable[[str], None], verbosity: int, log: Path | None) -> Display:
    """Return the display of a build: a live line on a terminal, else plain lines; no progress with `--quiet`."""
    reporter: Display = LineReporter(write_line)
    if verbosity >= 0 and sys.stderr.isatty():
        reporter = LiveReporter(sys.stderr, write_line, shutil.get_terminal_size().columns)
    return reporter if verbosity > 0 else CollapsedOutput(reporter, log)


def method_table_lines(rows: Sequence[MethodRow]) -> list[str]:
    """Return the table of lowered methods, with aligned columns, and the notes; an empty list without rows."""
    if not rows:
        return []
    table = table_lines([HEADINGS, *map(row_cells, rows)], right=NUMBERS)
    return [*table, *note_lines(rows), *not_compared_lines(rows, by_settings=True)]


def not_compared_lines(rows: Sequence[MethodRow], *, by_settings: bool) -> Iterator[str]:
    """Yield a line for each reason why recipes are not compared with eager: settings, or else missing devices."""
    reasons: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.not_compared and lacks_device(row.not_compared) != by_settings:
            reasons.setdefault(row.not_compared, {})[f"{row.model}/{row.recipe}"] = None
    advice = "" if by_settings else "; compare with `hatch-lower check` on a machine with the device"
    yield from (f"not compared with eager: {', '.join(names)}: {reason}{advice}" for reason, names in reasons.items())


def writing_line(payload: Sequence[PayloadFile]) -> Iterator[str]:
    """Yield a line for a payload that takes seconds to write."""
    size = sum(file.size for file in payload)
    if size >= LARGE:
        yield f"lower  writing {size_text(size)} of programs and weights into the wheel"


def total_line(wheel: Path, seconds: float) -> str:
    """Return the last line of a build: size of the wheel, and time since the start of the hook."""
    return f"wheel of {size_text(wheel.stat().st_size)} in {seconds:.1f} s"


def outside_weights_lines(models: Sequence[ModelResult]) -> Iterator[str]:
    """Yield a line for each model with weights outside the wheel: bytes outside, and bytes inside with the reason."""
    for model in models:
        if (record := model.outside) is None:
            continue
        files = f"{record['files']} file{'' if record['files'] == 1 else 's'}"
        kept = "; ".join(f"{size:,} {reason}" for reason, size in record["kept"].items())
        line = f"weights of {model.model}: {record['outside']:,} bytes in {files} outside the wheel"
        copied = f", {record['copied']:,} bytes copied at each load, since the file does not align them"
        yield line + (copied if record["copied"] else "") + f"; in the wheel {kept or 'none'}"


def metric_lines(models: Sequence[ModelResult]) -> Iterator[str]:
    """Yield a line for each recipe that the build has measured with the metric of its model."""
    for model in models:
        for name in model.entry["order"]:
            if metric := model.entry["recipes"][name].get("metric"):
                numbers = metric_text(metric["value"], metric["eager"])
                limit = f"{metric['max_drop']:g}"
                yield f"metric of {model.model}/{name}: {metric['name']} {numbers}, allowed drop {limit}"


def table_lines(rows: Sequence[Sequence[str]], indent: int = 0, right: Sequence[int] = ()) -> Iterator[str]:
    """Yield rows of cells as lines with aligned columns; columns numbered in `right` are aligned to the right."""
    # columns with a heading only are left out
    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])] if len(rows) > 1 else []
    widths = {at: max(len(row[at]) for row in rows) for at in kept}
    for row in rows:
        cells = (row[at].rjust(widths[at]) if at in right else row[at].ljust(widths[at]) for at in kept)
        yield (" " * indent + "  ".join(cells)).rstrip()


def note_lines(rows: Sequence[MethodRow]) -> Iterator[str]:
    """Yield the note of each model, or the notes of the model's methods where the notes differ."""
    notes: dict[str, dict[str, str]] = {}
    for row in rows:
        notes.setdefault(row.model, {})[row.method] = row.note
    for model, said in notes.items():
        if len(set(said.values())) == 1:
            said = {"": next(iter(said.values()))}
        yield from (f"why {model}{f'.{method}' if method else ''}: {note}" for method, note in said.items() if note)


def row_cells(row: MethodRow) -> tuple[str, ...]:
    numbers = (str(row.nodes), str(row.delegated), str(row.partitions), f"{row.bytes:,}", f"{row.seconds:.2f}")
    compared = ", not compared" if row.not_compared else ""
    return (row.model, row.method, row.recipe, *numbers, f"{reuse_text(row)}{compared}")


def reuse_text(row: MethodRow) -> str:
    if row.level in LEVELS:
        return LEVELS[row.level]
    if row.partitions == 0:
        return "nothing to lower"
    if row.reused == 0:
        return "built"
    return "reused" if row.reused == row.partitions else f"{row.reused} reused, {row.partitions - row.reused} built"
