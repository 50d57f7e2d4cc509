"""Subjects, metrics and figures. A figure is the value of a metric for a subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hatch_lower.frozen import Frozen

# `build`: numbers of the side's build, which depend on the cache
Tier: TypeAlias = Literal["exact", "build", "counted", "timed"]


@dataclass(frozen=True, slots=True, order=True)
class Subject:
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

    def called(self, sizes: Mapping[str, int], threads: int) -> Subject:
        return replace(self, size=", ".join(f"{name}={value}" for name, value in sizes.items()), threads=threads)

    def parts(self) -> tuple[Subject, Subject, Subject, Subject]:
        """Return the method, its recipe, its model and the wheel, without sizes and threads."""
        method = Subject(self.model, self.recipe, self.method)
        return method, Subject(self.model, self.recipe), Subject(self.model), Subject()


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

Figures: TypeAlias = Mapping[Subject, Mapping[str, float]]  # metric's name to value; unknown figures are absent


class Found(Frozen):
    """The result of a child process."""

    figures: Figures
    reasons: Mapping[Subject, str]  # why a figure is missing


def thread_variables(count: int) -> dict[str, str]:
    """Return the variables that set the number of threads of a process for all libraries."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count))
