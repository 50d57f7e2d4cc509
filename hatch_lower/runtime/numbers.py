"""Whether a program computes what eager does: two tensors, and how far apart they may be.

A build's verification, `hatch-lower check` and the kit for backends compare with the functions of this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# how much wider tolerances are where a method computes in half precision: its rounding error is about 8000 (float16)
# and 65000 (bfloat16) times that of float32, most of which both sides share
HALF_FACTORS: Mapping[torch.dtype, float] = {torch.float16: 100.0, torch.bfloat16: 400.0}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers agree if they differ by no more than `atol + rtol * |eager's|`."""

    rtol: float = 1e-4
    atol: float = 1e-5

    def widened(self, dtypes: Iterable[torch.dtype]) -> Tolerance:
        factor = max((HALF_FACTORS.get(dtype, 1.0) for dtype in dtypes), default=1.0)
        return Tolerance(self.rtol * factor, self.atol * factor)


def wrong_places(expected: Tensor, given: Tensor, tolerance: Tolerance) -> Tensor:
    """Return where two tensors of one dtype and shape differ: beyond the tolerance, or at all if no floats."""
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return expected != given
    return ~torch.isclose(widest(given), widest(expected), tolerance.rtol, tolerance.atol, equal_nan=True)


def widest(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def number_difference(expected: Tensor, given: Tensor, tolerance: Tolerance) -> tuple[str, float]:
    """Return how two tensors of one dtype and shape differ beyond the tolerance, or "", and the largest difference."""
    count = expected.numel()
    wrong = int(wrong_places(expected, given, tolerance).sum())
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return f"{wrong} of {count} values are different" if wrong else "", 0.0
    if count == 0:
        return "", 0.0
    one, other = widest(expected), widest(given)
    same = (one == other) | (one.isnan() & other.isnan())
    finite = one.isfinite() & other.isfinite()
    error = torch.where(same, 0.0, (one - other).abs())
    error = torch.where(same | finite, error, math.inf)  # finite on one side only is as wrong as can be
    largest = float(error.max())
    if not wrong:
        return "", largest
    ratios = (error / one.abs())[finite & (one != 0)]
    relative = float(ratios.max()) if ratios.numel() else math.inf
    return (
        f"largest absolute error {largest:.3g}, largest relative error {relative:.3g} (allowed: atol"
        f" {tolerance.atol:.3g}, rtol {tolerance.rtol:.3g}); {wrong} of {count} values are wrong"
    ), largest
