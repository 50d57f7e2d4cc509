"""Tables and sentences of `hatch-lower bench`, from rows that are written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from hatch_lower.cli.bench_text import NONE, bench_lines, markdown_text, verdict_cells
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.cli.measure.gate import Result
from hatch_lower.cli.measure.limits import VerdictRow, breach_text, exact_row, limits_for, timed_row
from hatch_lower.cli.measure.timed import MetricRounds
from hatch_lower.config.tables import BenchTable

pytest.importorskip("scipy")

NET = FigureSubject("net")
DEFAULT = FigureSubject("net", "default")
FORWARD = FigureSubject("net", "default", "forward")
CALL = FigureSubject("net", "default", "forward", "", 1)


def shown(titles: Sequence[str], *rows: VerdictRow) -> list[str]:
    """Return what is shown below the titles, with single spaces."""
    lines = bench_lines(titles, Result(rows, (), {}, {}))
    return [" ".join(line.split()) for line in list(lines)[len(titles) + 1 :]]


def test_equal_figures_of_builds_are_neither_shown_nor_counted_as_exact() -> None:
    rows = exact_row(NET, "level", 2, 2, ()), exact_row(FORWARD, "kernels", 5, 5, ())
    assert shown("AB", *rows) == ["1 exact figure is equal", "0 figures beyond a limit"]


@pytest.mark.parametrize(
    ("first", "second", "cells"),
    [
        (math.inf, 1e-7, ("worse", "differs", "1e-07", "")),
        (1e-7, math.inf, ("better", "1e-07", "differs", "")),
        (math.inf, math.inf, ("same", "differs", "differs", "")),
        (math.inf, 0.0, ("worse", "differs", "0", "")),
        (math.inf, None, ("", "differs", NONE, "")),
    ],
)
def test_an_infinite_error_differs_and_has_no_ratio(first: float, second: float | None, cells: tuple[str, ...]) -> None:
    word, _, _, *rest = verdict_cells(exact_row(FORWARD, "error", first, second, ()), is_compared=True)
    assert (word, *rest[:3]) == cells


def test_an_infinite_error_is_beyond_its_limit() -> None:
    limits = [limit for limit in limits_for(BenchTable(max_error=1e-4), FORWARD) if limit.metric == "error"]
    row = exact_row(FORWARD, "error", math.inf, None, limits)
    assert [breach_text(row, breach) for breach in row.breaches] == [
        "beyond its limit: largest error of net/default/forward is infinite, where max-error = 0.0001 (bench)"
    ]


def test_a_figure_that_one_side_lacks_is_a_dash() -> None:
    row = exact_row(FORWARD, "kernels", 5, None, ())
    assert shown("AB", row)[1] == f"net/default/forward kernels 5 {NONE}"
    assert shown("A", row)[1] == "net/default/forward kernels 5"
    assert f"|  | net/default/forward | kernels | 5 | {NONE} |\n" in markdown_text("AB", Result((row,), (), {}, {}), [])


@pytest.mark.parametrize(
    ("subject", "metric", "pair", "table", "said"),
    [
        (CALL, "call-seconds", {"A": 0.859, "B": 1}, {"max_call_ratio": 0.8}, "0.859 times B's"),
        (DEFAULT, "memory-bytes", {"A": 20 << 20, "B": 10 << 20}, {"max_memory_ratio": 1.1}, "2.000 times B's"),
    ],
)
def test_what_one_pair_says_is_told_so(
    subject: FigureSubject, metric: str, pair: dict[str, float], table: dict[str, Any], said: str
) -> None:
    found = MetricRounds()
    found.add([{side: [value] for side, value in pair.items()}])
    limits = [limit for limit in limits_for(BenchTable(**table), subject) if limit.metric == metric]
    row = timed_row(subject, metric, found, limits)
    (text,) = [breach_text(row, breach) for breach in row.breaches]
    assert f" is {said}, from 1 of 8 pairs: raise `--budget`, where " in text
