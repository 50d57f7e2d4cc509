"""Confidence intervals of ratios from pairs of processes, by the bootstrap.

An observation is the ratio of a pair of processes. The estimate is the mean of the logarithms without the lowest and
the highest fifth, because a pair on a busy machine may be far off, and because A/B and B/A must agree. The interval is
a percentile bootstrap over the pairs (`scipy.stats.bootstrap`), whose level is raised for few pairs as in T. C.
Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), section 4.3.1. In simulations with 8 to 30
observations, normal or with 10 % outliers, the interval contained the true value 99 % of the time (300 draws each).
The resamples have a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen

LEVEL = 0.99  # many figures are judged, each several times: 0.95 would give false alarms
FEWEST = 8  # pairs before a decision: a bootstrap cannot reach beyond the outermost observations
RESAMPLES = 10_000
TRIMMED = 0.2


class Interval(Frozen):
    """A value, and its interval with a confidence of `LEVEL`."""

    value: float
    low: float
    high: float
    too_few: int = 0  # number of pairs if less than `FEWEST`; the interval is open then


def interval_of(observations: Sequence[float]) -> Interval:
    """Return the trimmed geometric mean of positive numbers, and its interval, open for too few numbers."""
    numpy, stats = libraries()
    logs = numpy.log(numpy.asarray(observations))
    mean = float(stats.trim_mean(logs, TRIMMED))
    if len(logs) < FEWEST:
        return Interval(math.exp(mean), 0.0, math.inf, len(logs))
    if float(logs.std()) == 0.0:
        return Interval(math.exp(mean), math.exp(mean), math.exp(mean))
    found = stats.bootstrap(
        (logs,),
        partial(stats.trim_mean, proportiontocut=TRIMMED),
        confidence_level=raised_level(len(logs)),
        n_resamples=RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return Interval(math.exp(mean), math.exp(float(found.low)), math.exp(float(found.high)))


def raised_level(count: int) -> float:
    """Return the level at which a percentile interval is as wide as Student's interval."""
    _, stats = libraries()
    quantile = math.sqrt(count / (count - 1)) * float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return min(1 - 2 * float(stats.norm.sf(quantile)), 1 - 1e-12)


def libraries() -> tuple[Any, Any]:
    try:
        import numpy
        import pytest_benchmark.stats  # noqa: F401  # reports need this at the end
        from scipy import stats
    except ImportError as error:
        raise ConfigError(
            "a package that benchmarks need is not installed",
            found=str(error),
            hint="install `hatch-lower[bench]`, or measure without times: `--budget 0`, and no `--builds`",
        ) from error
    return numpy, stats
