"""Figures and limits become rows: what is better, the same or worse, and which limit is broken."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hatch_lower.cli.measure.figures import FEWEST, FigureSubject
from hatch_lower.cli.measure.limits import VerdictRow, are_limits_settled, exact_row, found_text, limits_for, timed_row
from hatch_lower.cli.measure.timed import MetricRounds
from hatch_lower.config.tables import BenchTable

pytest.importorskip("scipy")

METHOD = FigureSubject("net", "default", "forward")
CALL = FigureSubject("net", "default", "forward", "", 1)


def exact(metric: str, first: float, second: float | None, subject: FigureSubject = METHOD, **table: Any) -> VerdictRow:
    limits = [limit for limit in limits_for(BenchTable(**table), subject) if limit.metric == metric]
    return exact_row(subject, metric, first, second, limits)


def observed(*ratios: float, eager: float | None = None) -> MetricRounds:
    """Return what pairs found in which A takes so much longer than B."""
    found = MetricRounds()
    for ratio in ratios:
        sides = {"A": [ratio], "B": [1.0], **({} if eager is None else {"eager": [eager]})}
        found.add([sides, sides])
    return found


def timed(found: MetricRounds, **table: Any) -> VerdictRow:
    limits = [limit for limit in limits_for(BenchTable(**table), CALL) if limit.metric == "call-seconds"]
    return timed_row(CALL, "call-seconds", found, limits)


@pytest.mark.parametrize(
    ("metric", "first", "second", "outcome"),
    [
        ("kernels", 5, 5, "same"),
        ("kernels", 6, 5, "worse"),
        ("kernels", 4, 5, "better"),
        ("delegated", 0.9, 1.0, "worse"),
        ("delegated", 1.0, 0.9, "better"),
        ("kernels", 5, None, ""),
        ("level", 2, 1, ""),
        ("program-bytes", 1049, 1000, "same"),
        ("program-bytes", 1060, 1000, "worse"),
        ("error", 9e-7, 5e-7, "same"),
        ("error", 9e-6, 5e-7, "worse"),
        ("error", 1e-7, 0, "worse"),
    ],
)
def test_an_exact_figure_is_better_if_its_metric_says_so(
    metric: str, first: float, second: float | None, outcome: str
) -> None:
    assert exact(metric, first, second).outcome == outcome


@pytest.mark.parametrize(
    ("metric", "first", "second", "table", "said"),
    [
        ("kernels", 6, None, {"max_kernels": 5}, "6, where max-kernels = 5 (bench)"),
        ("delegated", 0.9, 0.96, {}, "6 percentage points less than B's, where max-delegated-loss = 0.05 (default)"),
        ("delegated", 0.9, None, {"min_delegated": 0.95}, "90 %, where min-delegated = 0.95 (bench)"),
        ("error", 1e-3, None, {"max_error": 1e-4}, "0.001, where max-error = 0.0001 (bench)"),
        ("error", math.inf, None, {}, "infinite, where max-error = 1e+300 (default)"),
        ("call-instructions", 1100, 1000, {}, "1.100 times B's, where max-instructions-ratio = 1.02 (default)"),
    ],
)
def test_a_broken_limit_of_an_exact_figure_is_told(
    metric: str, first: float, second: float | None, table: dict[str, Any], said: str
) -> None:
    row = exact(metric, first, second, **table)
    assert row.is_broken
    assert [found_text(row, breach) for breach in row.breaches] == [said]


def test_a_wheel_may_grow_as_far_as_its_limit_says() -> None:
    row = exact("wheel-bytes", 1050, 1000, FigureSubject())
    assert (row.outcome, row.breaches) == ("same", ())
    row = exact("wheel-bytes", 1051, 1000, FigureSubject())
    assert [found_text(row, breach) for breach in row.breaches] == ["1.03 KiB, where max-wheel-growth = 5% (default)"]


@pytest.mark.parametrize(
    ("metric", "first", "second", "table"),
    [
        ("delegated", 0.95, 1.0, {}),
        ("delegated", 0.5, None, {}),
        ("kernels", 5, 1, {"max_kernels": 5}),
        ("call-instructions", 1000, None, {}),
    ],
)
def test_a_limit_that_is_kept_or_has_nothing_to_compare_with_is_not_broken(
    metric: str, first: float, second: float | None, table: dict[str, Any]
) -> None:
    assert not exact(metric, first, second, **table).breaches


@pytest.mark.parametrize(
    ("ratios", "outcome", "broken", "undecided"),
    [
        ([1.08, 1.09, 1.10, 1.09, 1.08, 1.11, 1.09, 1.09], "worse", True, False),
        ([1.01, 0.99, 1.00, 1.02, 0.98, 1.00, 1.01, 0.99], "same", False, False),
        ([0.90, 0.91, 0.89, 0.90, 0.92, 0.90, 0.91, 0.90], "better", False, False),
        ([1.00, 1.12, 1.04, 0.95, 1.20, 1.02, 1.12, 1.0], "not decided", False, True),
        ([1.30] * (FEWEST - 1), "not decided", False, True),  # too few to say anything of
    ],
)
def test_a_timed_figure_is_decided_by_its_interval(
    ratios: list[float], outcome: str, broken: bool, undecided: bool
) -> None:
    row = timed(observed(*ratios))
    assert (row.outcome, row.is_broken, row.is_undecided) == (outcome, broken, undecided)


def test_a_limit_of_its_own_decides_what_is_worse() -> None:
    found = observed(*[1.03, 1.04, 1.03, 1.035, 1.04, 1.03, 1.03, 1.04])
    assert timed(found).outcome == "same"
    assert timed(found, max_call_ratio=1.02).outcome == "worse"


@pytest.mark.parametrize(
    ("ratio", "limit", "outcome", "broken"),
    [
        (0.98, 1.05, "same", False),
        (0.94, 1.05, "better", False),
        (1.2, 1.5, "same", False),
        (0.8, 1.5, "same", False),
        (0.4, 0.5, "better", False),
        (0.6, 0.5, "better", True),
        (1.2, 0.5, "worse", True),
    ],
)
def test_the_word_is_of_both_sides_and_the_limit_of_one(ratio: float, limit: float, outcome: str, broken: bool) -> None:
    row = timed(observed(*[ratio] * FEWEST), max_call_ratio=limit)
    assert (row.outcome, row.is_broken) == (outcome, broken)


def test_what_a_limit_is_compared_with_is_known_of_each_row() -> None:
    row = timed(observed(*[1.0] * FEWEST), max_call_ratio=2.0)
    assert {limit.name for limit in row.judged} == {"max-call-ratio"}
    assert not exact("kernels", 5, None, max_instructions_ratio=1.1).judged


@pytest.mark.parametrize(("second", "broken"), [(10 << 20, False), (5 << 20, True)])
def test_a_few_pages_of_memory_are_no_ratio(second: int, broken: bool) -> None:
    found = MetricRounds()
    for _ in range(FEWEST):
        found.add([{"A": [12 << 20], "B": [second]}])
    subject = FigureSubject("net", "default")
    limits = [limit for limit in limits_for(BenchTable(), subject) if limit.metric == "memory-bytes"]
    assert timed_row(subject, "memory-bytes", found, limits).is_broken is broken
    assert are_limits_settled("memory-bytes", found, limits)


def test_a_figure_without_a_limit_is_never_undecided() -> None:
    row = timed_row(METHOD, "first-call-seconds", observed(0.5, 2.0, 1.0, 0.7, 3.0, 1.0, 1.0, 2.0), [])
    assert (row.outcome, row.breaches) == ("", ())


@pytest.mark.parametrize(
    ("ratios", "settled"),
    [
        ([1.0] * (FEWEST - 1), False),
        ([1.0] * FEWEST, True),
        ([1.2] * FEWEST, True),
        ([1.00, 1.12, 1.04, 0.95, 1.20, 1.02, 1.12, 1.0], False),
    ],
)
def test_pairs_are_enough_once_every_limit_is_decided(ratios: list[float], settled: bool) -> None:
    limits = [limit for limit in limits_for(BenchTable(), CALL) if limit.metric == "call-seconds"]
    assert are_limits_settled("call-seconds", observed(*ratios), limits) == settled
