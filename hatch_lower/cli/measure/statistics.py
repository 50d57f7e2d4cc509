"""How certain a ratio is: an interval from pairs of processes, by the bootstrap.

One observation is the ratio that one pair of processes found. What is estimated is the mean of their logarithms without
the lowest and the highest fifth: on a busy machine one pair of ten may be anywhere, and A/B and B/A say the same. The
interval is a percentile bootstrap over the pairs (`scipy.stats.bootstrap`), whose level is raised for few of them as
T. C. Hesterberg does in "What Teachers Should Know About the Bootstrap" (2015), section 4.3.1. Of 8 to 30 normal
numbers, and of those with every tenth astray, such intervals hold the truth in 99 % (300 draws each). The resamples
come from a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen

LEVEL = 0.99  # many figures are judged, each several times: 0.95 would cry wolf
FEWEST = 8  # pairs before anything is decided: a bootstrap reaches no further than the outermost of them
RESAMPLES = 10_000
TRIMMED = 0.2


class Interval(Frozen):
    """A value, and between what it lies with a confidence of `LEVEL`."""

    value: float
    low: float
    high: float
    too_few: int = 0  # pairs, where these are less than `FEWEST` and leave the interval open


def interval_of(observations: Sequence[float]) -> Interval:
    """Return the trimmed geometric mean of positive numbers, and its interval, which is open if they are too few."""
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
    """Return the level at which a percentile interval of so few observations is as wide as Student's would be."""
    _, stats = libraries()
    quantile = math.sqrt(count / (count - 1)) * float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return min(1 - 2 * float(stats.norm.sf(quantile)), 1 - 1e-12)


def libraries() -> tuple[Any, Any]:
    try:
        import numpy
        import pytest_benchmark.stats  # noqa: F401  # which reports use once all is measured
        from scipy import stats
    except ImportError as error:
        raise ConfigError(
            "a package that benchmarks need is not installed",
            found=str(error),
            hint="install `hatch-lower[bench]`, or measure without times: `--budget 0`, and no `--builds`",
        ) from error
    return numpy, stats
