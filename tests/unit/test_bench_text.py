"""Tables and sentences of `hatch-lower bench`, from rows that are written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from hatch_lower.bench.figures import Subject
from hatch_lower.bench.gate import Result
from hatch_lower.bench.verdict import Row, exact_row
from hatch_lower.cli.bench_text import report_lines

NET = Subject("net")
FORWARD = Subject("net", "default", "forward")


def shown(titles: Sequence[str], *rows: Row) -> list[str]:
    """Return what is shown below the titles, with single spaces."""
    lines = report_lines(titles, Result(rows, (), {}, {}))
    return [" ".join(line.split()) for line in list(lines)[len(titles) + 1 :]]


def test_equal_figures_of_builds_are_neither_shown_nor_counted_as_exact() -> None:
    rows = exact_row(NET, "level", 2, 2, ()), exact_row(FORWARD, "kernels", 5, 5, ())
    assert shown("AB", *rows) == ["1 exact figure is equal", "0 figures beyond a limit"]
