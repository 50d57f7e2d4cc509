"""Results of a comparison with eager: metrics of each output, and the record of a method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OutputMetrics:
    """Metrics of a floating-point output. Sums leave out elements that are not finite on both sides."""

    largest_error: float  # absolute; infinite if an element is finite, or NaN, on one side only
    largest_relative_error: float  # relative to eager, over elements where eager is not 0
    snr: float | None  # signal to noise in dB; `None` if the outputs are equal, or all 0
    cosine: float | None  # of the angle between both outputs as vectors; `None` if a vector is 0
    argmax: float | None  # share of rows with the largest number in the same place; `None` if rows have under 2 numbers

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
    """Return the worst value of each metric over several outputs; `None` for an empty list."""
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
    """The comparison of a method of a recipe with eager in the build: its inputs and its result."""

    recipe: str
    method: str
    compared: str  # `example inputs, random inputs, batch = 3, 12 of samples.safetensors`
    calls: int  # number of compared calls
    left_out: tuple[str, ...]  # inputs that were not compared, with reasons
    outputs: Mapping[str, OutputMetrics] = field(default_factory=dict)  # by path, of floating-point outputs
