"""Whether a program computes what eager does: two tensors, and how far apart they may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers agree if they differ by no more than `atol + rtol * |eager's|`."""

    rtol: float = 1e-4
    atol: float = 1e-5


def number_difference(expected: Tensor, given: Tensor, tolerance: Tolerance) -> tuple[str, float]:
    """Compare two tensors of one dtype and shape; floating-point numbers in double precision, and NaN equals NaN.

    Args:
        expected: what eager computed.
        given: what the program computed.
        tolerance: for floating-point numbers; others have to be equal.

    Returns:
        How they differ beyond the tolerance, or an empty text; and the largest absolute difference.
    """
    count = expected.numel()
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        wrong = int((expected != given).sum())
        return f"{wrong} of {count} values are different" if wrong else "", 0.0
    if count == 0:
        return "", 0.0
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    one, other = expected.detach().to(wide), given.detach().to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    finite = one.isfinite() & other.isfinite()
    error = torch.where(same, 0.0, (one - other).abs())
    error = torch.where(same | finite, error, math.inf)  # finite on one side only is as wrong as can be
    largest = float(error.max())
    rtol, atol = tolerance.rtol, tolerance.atol
    wrong = int(((error > atol + rtol * one.abs()) | error.isinf()).sum())
    if not wrong:
        return "", largest
    ratios = (error / one.abs())[finite & (one != 0)]
    relative = float(ratios.max()) if ratios.numel() else math.inf
    return (
        f"largest absolute error {largest:.3g}, largest relative error {relative:.3g} (allowed: atol {atol:.3g}, rtol"
        f" {rtol:.3g}); {wrong} of {count} values are wrong"
    ), largest
