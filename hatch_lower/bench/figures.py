"""What is measured: subjects, metrics, and figures, which are one number of one metric of one subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Tier: TypeAlias = Literal["exact", "counted", "timed"]
TIERS: tuple[Tier, ...] = ("exact", "counted", "timed")


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """What a figure is of: a method called in one way, or as much of the fields as the figure depends on."""

    model: str = ""  # empty: the whole wheel
    recipe: str = ""  # empty: the model, whatever the recipe
    method: str = ""  # empty: the recipe, whatever is called
    size: str = ""  # values of dynamic dimensions, `batch=32`; empty: those of the example inputs
    threads: int = 0  # 0: no call is measured

    def __str__(self) -> str:
        path = "/".join(part for part in (self.model, self.recipe, self.method) if part)
        way = ", ".join(part for part in (self.size, f"threads={self.threads}" if self.threads else "") if part)
        return f"{path or 'wheel'}{f'[{way}]' if way else ''}"


@dataclass(frozen=True, slots=True)
class Metric:
    """One kind of figure."""

    tier: Tier
    unit: str  # `s`, `B`, or empty for a count or a share
    words: str  # what people are shown
    better: Literal["less", "more", "neither"] = "less"


# A figure's name in JSON, and what it means. Those with a slash in the comment differ by what their subject names.
METRICS: Mapping[str, Metric] = {
    "wheel-bytes": Metric("exact", "B", "wheel"),  # wheel
    "constants-bytes": Metric("exact", "B", "constants"),  # model
    "program-bytes": Metric("exact", "B", "program"),  # model/recipe: its plan and debug map
    "delegate-bytes": Metric("exact", "B", "delegates"),  # model/recipe
    "native-bytes": Metric("exact", "B", "native code"),  # model/recipe: files that are ELF
    "requirements": Metric("exact", "", "requirements"),  # model/recipe: distributions that it needs at run time
    "copied-constants": Metric("exact", "", "constants copied at load"),  # model/recipe
    "operations": Metric("exact", "", "operations"),  # model/recipe/method
    "delegated": Metric("exact", "", "delegated", "more"),  # model/recipe/method: a share, 0 to 1
    "partitions": Metric("exact", "", "partitions"),  # model/recipe/method
    "kernels": Metric("exact", "", "kernels"),  # model/recipe/method: in native code
    "error": Metric("exact", "", "largest error"),  # model/recipe/method: absolute, against eager
    "compilations": Metric("exact", "", "compilations", "neither"),  # model: partitions that its build lowered
    "level": Metric("exact", "", "level of reuse", "neither"),  # model: as in the build's summary; 0: none
    "call-instructions": Metric("counted", "", "instructions of a call"),  # model/recipe/method[size]
    "load-instructions": Metric("counted", "", "instructions of a load"),  # model/recipe
    "call-seconds": Metric("timed", "s", "call"),  # model/recipe/method[size, threads]
    "first-call-seconds": Metric("timed", "s", "first call"),  # model/recipe/method, in a fresh process
    "load-seconds": Metric("timed", "s", "load"),  # model/recipe, in a fresh process after `import torch`
    "memory-bytes": Metric("timed", "B", "memory"),  # model/recipe: proportional set size that load and calls add
    "cold-build-seconds": Metric("timed", "s", "cold build"),  # wheel
    "warm-build-seconds": Metric("timed", "s", "warm build"),  # wheel
}

Figures: TypeAlias = Mapping[Subject, Mapping[str, float]]  # metric's name to value; what is not known is not there
