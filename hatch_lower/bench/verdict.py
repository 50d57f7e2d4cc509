"""Figures of two sides and their limits become rows, each with what it says: better, same, worse, or not decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hatch_lower.bench.figures import METRICS, Subject
from hatch_lower.bench.limits import Limit
from hatch_lower.bench.statistics import Interval, interval_of
from hatch_lower.bench.timed import Observations, has_enough

Outcome: TypeAlias = Literal["better", "same", "worse", "not decided", ""]


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that is broken, or of which that is not decided."""

    limit: Limit
    bound: float  # what the limit allows
    found: Interval
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one subject, of both sides."""

    subject: Subject
    metric: str
    first: float
    second: float | None
    eager: float | None
    ratio: Interval | None  # of A to B
    eager_ratio: Interval | None  # of A to eager
    outcome: Outcome  # empty where there is nothing to compare with
    breaches: tuple[Breach, ...]

    @property
    def is_broken(self) -> bool:
        return any(breach.is_certain for breach in self.breaches)

    @property
    def is_undecided(self) -> bool:
        return any(not breach.is_certain for breach in self.breaches)


def exact_row(subject: Subject, metric: str, first: float, second: float | None, limits: Sequence[Limit]) -> Row:
    """Judge one figure that is a number and nothing else."""
    breaches = []
    for limit in limits:
        bound, judged = limit.bound(second), limit.judged(first, second)
        if bound is not None and judged is not None and not limit.is_kept(judged, bound):
            breaches.append(Breach(limit, bound, certain(judged), is_certain=True))
    ratio = certain(first / second) if second else None
    return Row(subject, metric, first, second, None, ratio, None, exact_outcome(metric, first, second), tuple(breaches))


def certain(value: float) -> Interval:
    return Interval(value, value, value)


def exact_outcome(metric: str, first: float, second: float | None) -> Outcome:
    if second is None:
        return ""
    known = METRICS[metric]
    if first == second or 0 < max(first, second) <= min(first, second) * known.ratio:
        return "same"
    if known.better == "neither":
        return ""
    return "better" if (first < second) == (known.better == "less") else "worse"


def timed_row(subject: Subject, metric: str, found: Observations, limits: Sequence[Limit]) -> Row:
    """Judge what was measured several times."""
    medians = {side: interval_of(values) for side, values in found.values.items()}
    ratio = interval_of(found.ratios) if found.ratios else None
    eager_ratio = interval_of(found.eager_ratios) if found.eager_ratios else None
    second, eager = (medians[side].value if side in medians else None for side in ("B", "eager"))
    is_negligible = second is not None and abs(medians["A"].value - second) < METRICS[metric].difference
    judged_ratio = certain(1.0) if is_negligible else ratio
    judged = {"greatest": medians["A"], "ratio to B": judged_ratio, "ratio to eager": eager_ratio}
    breaches = []
    allowed = METRICS[metric].ratio
    for limit in limits:
        bound, interval = limit.bound(None), judged.get(limit.kind)
        assert bound is not None  # limits of times are numbers
        if limit.kind == "ratio to B":
            allowed = bound
        if interval is None:
            continue
        verdict = is_beyond(interval, bound, has_enough(found))
        if verdict is not False:
            breaches.append(Breach(limit, bound, interval, is_certain=verdict is True))
    outcome = timed_outcome(judged_ratio, allowed, has_enough(found))
    if outcome == "not decided" and not limits:
        outcome = ""  # nobody asks
    return Row(subject, metric, medians["A"].value, second, eager, ratio, eager_ratio, outcome, tuple(breaches))


def is_beyond(interval: Interval, allowed: float, is_enough: bool) -> bool | None:
    """Return whether a value lies beyond a limit; `None` while its interval holds both, or comes of too few pairs."""
    if not is_enough:
        return None
    if interval.low > allowed:
        return True
    return False if interval.high <= allowed else None


def timed_outcome(ratio: Interval | None, allowed: float, is_enough: bool) -> Outcome:
    if ratio is None:
        return ""
    if not is_enough:
        return "not decided"
    if ratio.low > allowed:
        return "worse"
    if ratio.high < 1 / allowed:
        return "better"
    return "same" if ratio.high <= allowed else "not decided"


def is_settled(metric: str, found: Observations, limits: Sequence[Limit]) -> bool:
    """Return whether more pairs would change nothing: every limit is kept or broken for certain."""
    if limits and not has_enough(found):
        return False
    row = timed_row(Subject(), metric, found, limits)
    return not row.is_undecided and row.outcome != "not decided"
