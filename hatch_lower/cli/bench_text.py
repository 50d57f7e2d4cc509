"""Text output of `hatch-lower bench`: a table of figures, the worst first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hatch_lower.cli.measure.figures import METRICS
from hatch_lower.cli.measure.gate import Result
from hatch_lower.cli.measure.limits import VerdictRow, breach_text, figure_text, limit_text, ratio_text
from hatch_lower.cli.output import count
from hatch_lower.hatch.terminal import table_lines

HEADINGS = ("", "of", "figure", "A", "B", "A/B", "A/eager", "limit")
NUMBERS = (3, 4, 5, 6)  # columns
NONE = "\N{EN DASH}"  # a side without the figure
ORDER = ("broken", "worse", "not decided", "better", "same", "")


def bench_lines(titles: Sequence[str], result: Result) -> Iterator[str]:
    yield from (f"{name}  {title}" for name, title in zip("AB", titles, strict=False))
    yield ""
    if shown := shown_rows(result.rows):
        cells = [verdict_cells(row, is_compared=len(titles) > 1) for row in shown]
        yield from table_lines([HEADINGS, *cells], right=NUMBERS)
        yield ""
    yield from equal_lines(result.rows)
    yield from (f"note: {note}" for note in result.notes)
    yield from (breach_text(row, breach) for row in result.rows for breach in row.breaches)
    yield from (f"not judged: {line}" for line in result.unjudged)
    yield verdict_summary(result)


def shown_rows(rows: Sequence[VerdictRow]) -> list[VerdictRow]:
    """Return the rows of the table, the worst first. Equal exact figures have no row; they are counted."""
    shown = [row for row in rows if not is_equal_figure(row)]
    return sorted(shown, key=lambda row: (ORDER.index(word_of(row)), row.subject))


def is_equal_figure(row: VerdictRow) -> bool:
    return row.first == row.second and METRICS[row.metric].tier in ("exact", "build") and not row.breaches


def word_of(row: VerdictRow) -> str:
    return "broken" if row.is_broken else "not decided" if row.is_undecided else row.outcome


def verdict_cells(row: VerdictRow, *, is_compared: bool) -> tuple[str, ...]:
    metric = METRICS[row.metric]
    both = (row.first, row.second)
    values = (NONE if value is None and is_compared else figure_text(row.metric, value) for value in both)
    found = (None, None) if math.inf in both else (row.ratio, row.eager_ratio)
    ratios = ("" if ratio is None else ratio_text(ratio) for ratio in found)
    return (word_of(row), str(row.subject), metric.words, *values, *ratios, ", ".join(map(limit_text, row.breaches)))


def equal_lines(rows: Sequence[VerdictRow]) -> Iterator[str]:
    equal = sum(is_equal_figure(row) and METRICS[row.metric].tier == "exact" for row in rows)
    if equal:
        yield f"{count(equal, 'exact figure')} {'is' if equal == 1 else 'are'} equal"


def verdict_summary(result: Result) -> str:
    broken = sum(row.is_broken for row in result.rows)
    undecided = sum(row.is_undecided for row in result.rows)
    counts = [f"{count(broken, 'figure')} beyond a limit"]
    counts += [f"{count(undecided, 'figure')} not decided"] if undecided else []
    counts += [f"{len(result.unjudged)} not judged"] if result.unjudged else []
    return ", ".join(counts)


def markdown_text(titles: Sequence[str], result: Result, changes: Sequence[str]) -> str:
    """Return the table for a job's summary, followed by the output of `hatch-lower diff`."""
    rows = [verdict_cells(row, is_compared=len(titles) > 1) for row in shown_rows(result.rows)]
    kept = [at for at in range(len(HEADINGS)) if at < 3 or any(row[at] for row in rows)]
    lines = [f"### Lowered models: {verdict_summary(result)}", ""]
    lines += [f"- {name}: {title}" for name, title in zip("AB", titles, strict=False)]
    if rows:
        lines += ["", table_row([HEADINGS[at] for at in kept])]
        lines.append(table_row(["---:" if at in NUMBERS else "---" for at in kept]))
        lines += [
            table_row([f"**{row[at]}**" if at == 0 and row[at] in ORDER[:2] else row[at] for at in kept])
            for row in rows
        ]
    lines += ["", *equal_lines(result.rows), *(f"\nnote: {note}" for note in result.notes)]
    lines += [f"\nnot judged: {line}" for line in result.unjudged]
    if changes:
        lines += ["", "<details><summary>differences</summary>", "", "```diff", *changes, "```", "", "</details>"]
    return "\n".join(lines) + "\n"


def table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
