"""What a comparison with eager came to: of each output, and of a method as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OutputMetrics:
    """What came of an output's floating-point numbers; those that are not finite on both sides are left out of sums."""

    largest_error: float  # absolute; infinite where a number is finite, or NaN, on one side only
    largest_relative_error: float  # by eager's number, where that is not 0
    snr: float | None  # signal to noise in dB; `None` where nothing differs, or all is 0
    cosine: float | None  # of the angle between both, as vectors; `None` where one is 0
    argmax: float | None  # share of the rows whose largest number is in the same place; `None` without rows of two

    def text(self) -> str:
        """Return `largest difference 1.2e-07, SNR 134 dB, cosine 1.000000, argmax 100 %`."""
        parts = [f"largest difference {self.largest_error:.1e}"]
        if self.snr is not None:
            parts.append(f"SNR {self.snr:.0f} dB")
        if self.largest_error and self.cosine is not None:
            parts.append(f"cosine {math.floor(self.cosine * 1e6) / 1e6:.6f}")
        if self.argmax is not None:
            parts.append(f"argmax {math.floor(self.argmax * 1e3) / 10:g} %")
        return ", ".join(parts)


def worst(metrics: list[OutputMetrics]) -> OutputMetrics | None:
    """Return the worst of several outputs in each respect; `None` of none."""
    if not metrics:
        return None

    def least(values: list[float | None]) -> float | None:
        return min((value for value in values if value is not None), default=None)

    return OutputMetrics(
        max(each.largest_error for each in metrics),
        max(each.largest_relative_error for each in metrics),
        least([each.snr for each in metrics]),
        least([each.cosine for each in metrics]),
        least([each.argmax for each in metrics]),
    )


@dataclass(frozen=True, slots=True)
class VerifiedMethod:
    """On what a method of a recipe was compared with eager before it was packaged, and what came of it."""

    recipe: str
    method: str
    compared: str  # `example inputs, random inputs, batch = 3, 12 of samples.safetensors`
    calls: int  # that were compared
    left_out: tuple[str, ...]  # what was not compared, and why
    outputs: Mapping[str, OutputMetrics] = field(default_factory=dict)  # by path, of those that are floating-point
