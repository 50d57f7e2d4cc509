"""Verdicts on figures and limits (better, same, worse, not decided) as rows, and their text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from hatch_lower.cli.measure.figures import METRICS, Subject
from hatch_lower.cli.measure.limits import Limit
from hatch_lower.cli.measure.statistics import FEWEST, Interval, interval_of
from hatch_lower.cli.measure.timed import Observations, has_enough
from hatch_lower.errors import size_text
from hatch_lower.frozen import Frozen

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

Outcome: TypeAlias = Literal["better", "same", "worse", "not decided", ""]


class Breach(Frozen):
    """A limit that is broken or not decided."""

    limit: Limit
    bound: float  # the allowed value
    found: Interval
    is_certain: bool


class Row(Frozen):
    subject: Subject
    metric: str
    first: float
    second: float | None
    eager: float | None
    ratio: Interval | None  # of A to B
    eager_ratio: Interval | None  # of A to eager
    outcome: Outcome  # empty without a comparison
    breaches: tuple[Breach, ...]
    judged: tuple[Limit, ...]  # the limits that were compared

    @property
    def is_broken(self) -> bool:
        return any(breach.is_certain for breach in self.breaches)

    @property
    def is_undecided(self) -> bool:
        return any(not breach.is_certain for breach in self.breaches)


def exact_row(subject: Subject, metric: str, first: float, second: float | None, limits: Sequence[Limit]) -> Row:
    breaches, used = [], []
    for limit in limits:
        bound, judged = limit.bound(second), limit.judged(first, second)
        if bound is None or judged is None:
            continue
        used.append(limit)
        if not limit.is_kept(judged, bound):
            breaches.append(Breach(limit, bound, certain(judged), is_certain=True))
    ratio = certain(first / second) if second else None
    outcome = exact_outcome(metric, first, second)
    return Row(subject, metric, first, second, None, ratio, None, outcome, tuple(breaches), tuple(used))


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
    means = {side: interval_of(values) for side, values in found.values.items()}
    ratio = interval_of(found.ratios) if found.ratios else None
    eager_ratio = interval_of(found.eager_ratios) if found.eager_ratios else None
    second, eager = (means[side].value if side in means else None for side in ("B", "eager"))
    first, breaches = means["A"].value, []
    outcome: Outcome = ""
    if ratio is None:  # all limits of times and of memory are ratios to B
        return Row(subject, metric, first, second, eager, ratio, eager_ratio, outcome, (), ())
    bounds = [bound_of(limit, metric, second) for limit in limits]
    for limit, bound in zip(limits, bounds, strict=True):
        if not has_enough(found) or ratio.low <= bound < ratio.high:
            breaches.append(Breach(limit, bound, ratio, is_certain=False))
        elif ratio.low > bound:
            breaches.append(Breach(limit, bound, ratio, is_certain=True))
    if limits or has_enough(found):
        undecided = any(not each.is_certain for each in breaches)
        outcome = "not decided" if undecided else timed_outcome(ratio, metric, bounds)
    return Row(subject, metric, first, second, eager, ratio, eager_ratio, outcome, tuple(breaches), tuple(limits))


def bound_of(limit: Limit, metric: str, second: float | None) -> float:
    """Return the bound of a limit on time or memory; bounds on ratios from 1 allow negligible differences."""
    bound = limit.bound(None)
    assert bound is not None  # limits of times are numbers
    if limit.kind == "ratio to B" and bound >= 1 and second:
        return max(bound, 1 + METRICS[metric].difference / second)
    return bound


def timed_outcome(ratio: Interval, metric: str, bounds: Sequence[float]) -> Outcome:
    """Return the certain outcome of a ratio; between the limit and its inverse two sides are the same."""
    same = max([METRICS[metric].ratio] if not bounds or min(bounds) < 1 else bounds)
    if ratio.low > same:
        return "worse"
    if ratio.high < 1 / same or (ratio.low < 1 / same and ratio.high < 1):
        return "better"
    return "same" if ratio.high <= same else ""


def is_settled(metric: str, found: Observations, limits: Sequence[Limit]) -> bool:
    """Return whether every limit is certainly kept or broken, so that more pairs change nothing."""
    return not limits or (has_enough(found) and not timed_row(Subject(), metric, found, limits).is_undecided)


def breach_text(row: Row, breach: Breach) -> str:
    """Return the sentence of a broken or undecided limit."""
    word = "beyond its limit" if breach.is_certain else "not decided"
    return f"{word}: {METRICS[row.metric].words} of {row.subject} is {found_text(row, breach)}"


def found_text(row: Row, breach: Breach) -> str:
    """Return `1.21 (1.18 to 1.24) times B's, where max-call-ratio = 1.05 (bench.models.digits)`."""
    found = breach.found
    is_open = math.isinf(found.high) and found.low < found.high
    match breach.limit.kind:
        case "ratio to B":
            text = f"{found.value:.3f}" if is_open else ratio_text(found)
            text += " times B's"
        case "loss against B":
            text = f"{100 * found.value:.4g} percentage points less than B's"
        case _:
            text = "infinite" if math.isinf(found.value) else value_text(row.metric, found.value)
    setting = breach.limit.setting.removesuffix(f".{breach.limit.name}")
    if is_open:
        text += f", from {found.too_few} of {FEWEST} pairs: raise `--budget`"
    return f"{text}, where {limit_text(breach)} ({setting})"


def limit_text(breach: Breach) -> str:
    return f"{breach.limit.name} = {breach.limit.value}"


def value_text(metric: str, value: float | None) -> str:
    if value is None:
        return ""
    if math.isinf(value):  # an error with a difference that is not finite
        return "differs"
    match METRICS[metric].unit:
        case "s":
            scale, unit = next(((scale, unit) for scale, unit in SECONDS if value >= scale), SECONDS[-1])
            return f"{value / scale:.3g} {unit}"
        case "B":
            return size_text(round(value))
    if metric == "delegated":
        return f"{100 * value:.4g} %"
    return f"{round(value):,}" if value == round(value) else f"{value:.3g}"


def ratio_text(ratio: Interval) -> str:
    """Return `1.012 (0.998 to 1.027)`, or a certain value without the interval."""
    if ratio.low == ratio.high:
        return f"{ratio.value:.3f}"
    if math.isinf(ratio.high):
        return f"{ratio.value:.3f} ({ratio.too_few} of {FEWEST} pairs)"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
