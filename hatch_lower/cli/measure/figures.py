"""Subjects, metrics and figures, and confidence intervals of ratios by the bootstrap.

An observation is the ratio of a pair of processes. The estimate is the mean of the logarithms without the lowest and
the highest fifth, because a pair on a busy machine may be far off, and because A/B and B/A must agree. The interval is
a percentile bootstrap over the pairs (`scipy.stats.bootstrap`), whose level is raised for few pairs as in T. C.
Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), section 4.3.1. In simulations with 8 to 30
observations, normal or with 10 % outliers, the interval contained the true value 99 % of the time (300 draws each).
The resamples have a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen

# `build`: numbers of the side's build, which depend on the cache
Tier: TypeAlias = Literal["exact", "build", "counted", "timed"]


@dataclass(frozen=True, slots=True, order=True)
class FigureSubject:
    """The subject of a figure: a method with sizes and threads, or as many of the fields as the figure depends on."""

    model: str = ""  # empty: the whole wheel
    recipe: str = ""  # empty: the model, for all recipes
    method: str = ""  # empty: the recipe, for all methods
    size: str = ""  # values of dynamic dimensions, `batch=32`; empty: sizes of the example inputs
    threads: int = 0  # 0: not a call

    def __str__(self) -> str:
        path = "/".join(part for part in (self.model, self.recipe, self.method) if part)
        return f"{path or 'wheel'}{f'[{self.way}]' if self.way else ''}"

    @property
    def way(self) -> str:
        return ", ".join(part for part in (self.size, f"threads={self.threads}" if self.threads else "") if part)

    def called(self, sizes: Mapping[str, int], threads: int) -> FigureSubject:
        return replace(self, size=", ".join(f"{name}={value}" for name, value in sizes.items()), threads=threads)

    def parts(self) -> tuple[FigureSubject, FigureSubject, FigureSubject, FigureSubject]:
        """Return the method, its recipe, its model and the wheel, without sizes and threads."""
        method = FigureSubject(self.model, self.recipe, self.method)
        return method, FigureSubject(self.model, self.recipe), FigureSubject(self.model), FigureSubject()


class Metric(Frozen):
    tier: Tier
    unit: str  # `s`, `B`, or empty for a count or a share
    words: str  # the name in text output
    better: Literal["less", "more", "neither"] = "less"
    # largest ratio, and largest difference, at which values count as the same, regardless of limits
    ratio: float = 1.0
    difference: float = 0.0


SIZE = TIME = 1.05  # a twentieth is no news
ERROR = 2.0  # a changed rounding is no news, either

# Name in JSON to the metric; the comment names the fields of its subjects
METRICS: Mapping[str, Metric] = {
    "wheel-bytes": Metric("exact", "B", "wheel", ratio=SIZE),  # wheel
    "constants-bytes": Metric("exact", "B", "constants", ratio=SIZE),  # model
    "program-bytes": Metric("exact", "B", "program", ratio=SIZE),  # model/recipe: its plan and debug map
    "delegate-bytes": Metric("exact", "B", "delegates", ratio=SIZE),  # model/recipe
    "native-bytes": Metric("exact", "B", "native code", ratio=SIZE),  # model/recipe: files that are ELF
    "requirements": Metric("exact", "", "requirements"),  # model/recipe: distributions needed at run time
    "copied-constants": Metric("exact", "", "constants copied at load"),  # model/recipe
    "operations": Metric("exact", "", "operations"),  # model/recipe/method
    "delegated": Metric("exact", "", "delegated", "more"),  # model/recipe/method: a share, 0 to 1
    "partitions": Metric("exact", "", "partitions"),  # model/recipe/method
    "kernels": Metric("exact", "", "kernels"),  # model/recipe/method: in native code
    # model/recipe/method: the most of a kernel for GPUs, over all architectures
    "kernel-registers": Metric("exact", "", "registers of a thread"),
    "kernel-shared-bytes": Metric("exact", "B", "shared memory of a block"),
    "kernel-stack-bytes": Metric("exact", "B", "stack of a thread"),
    "metric": Metric("exact", "", "metric", "more"),  # model/recipe: of the project, measured in the build
    "error": Metric("exact", "", "largest error", ratio=ERROR),  # model/recipe/method: absolute, against eager
    "compilations": Metric("build", "", "compilations", "neither"),  # model: partitions that its build lowered
    "level": Metric("build", "", "level of reuse", "neither"),  # model: as in the build's summary; 0: no reuse
    "call-instructions": Metric("counted", "", "instructions of a call", ratio=1.02),  # model/recipe/method
    "load-instructions": Metric("counted", "", "instructions of a load", ratio=1.02),  # model/recipe
    "call-seconds": Metric("timed", "s", "call", ratio=TIME),  # model/recipe/method[size, threads]
    "first-call-seconds": Metric("timed", "s", "first call", ratio=TIME),  # model/recipe/method, in a fresh process
    # model/recipe, in a fresh process that has imported torch: the seconds of `load`, and the growth of the
    # proportional set size by a load and some calls
    "load-seconds": Metric("timed", "s", "load", ratio=TIME, difference=0.005),
    "memory-bytes": Metric("timed", "B", "memory", ratio=TIME, difference=4 << 20),
    "cold-build-seconds": Metric("timed", "s", "cold build", ratio=TIME),  # wheel
    "warm-build-seconds": Metric("timed", "s", "warm build", ratio=TIME),  # wheel
}

Figures: TypeAlias = Mapping[FigureSubject, Mapping[str, float]]  # metric's name to value; unknown figures are absent


class ChildFigures(Frozen):
    """The result of a child process."""

    figures: Figures
    reasons: Mapping[FigureSubject, str]  # why a figure is missing


def thread_variables(count: int) -> dict[str, str]:
    """Return the variables that set the number of threads of a process for all libraries."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count))


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
