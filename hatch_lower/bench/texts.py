"""Figures, and limits that they break, in words: for the command line, and for tests that fail of them."""

from __future__ import annotations

import math

from hatch_lower.bench.figures import METRICS
from hatch_lower.bench.statistics import Interval
from hatch_lower.bench.verdict import Breach, Row
from hatch_lower.errors import size_text

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def breach_text(row: Row, breach: Breach) -> str:
    """Return the sentence of a limit that is broken, or of which that is not decided."""
    word = "beyond its limit" if breach.is_certain else "not decided"
    return f"{word}: {METRICS[row.metric].words} of {row.subject} is {found_text(row, breach)}"


def found_text(row: Row, breach: Breach) -> str:
    """Return `1.21 (1.18 to 1.24) times B's, where max-call-ratio = 1.05 (bench.models.digits)`."""
    found = breach.found
    is_once = math.isinf(found.high) and found.low < found.high
    match breach.limit.kind:
        case "ratio to B" | "ratio to eager":
            ratio = f"{found.value:.3f}" if is_once else ratio_text(found)
            text = f"{ratio} times {breach.limit.kind.removeprefix('ratio to ')}'s"
        case "loss against B":
            text = f"{100 * found.value:.4g} percentage points less than B's"
        case _:
            text = "infinite" if math.isinf(found.value) else value_text(row.metric, found.value)
            if found.low != found.high and not is_once:
                text += f" ({value_text(row.metric, found.low)} to {value_text(row.metric, found.high)})"
    setting = breach.limit.setting.removesuffix(f".{breach.limit.name}")
    if is_once:
        text += ", from one pair"
    return f"{text}, where {limit_text(breach)} ({setting})"


def limit_text(breach: Breach) -> str:
    return f"{breach.limit.name} = {breach.limit.value}"


def value_text(metric: str, value: float | None) -> str:
    if value is None:
        return ""
    if math.isinf(value):  # an error, where outputs differ in more than finite numbers
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
    """Return `1.012 (0.998 to 1.027)`, and without its interval what is certain."""
    if ratio.low == ratio.high:
        return f"{ratio.value:.3f}"
    if math.isinf(ratio.high):
        return f"{ratio.value:.3f} (once)"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
