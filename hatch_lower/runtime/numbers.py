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

STEPS = 127  # of 8 bits, to the greatest magnitude
MOST = 2  # steps, by which a number may be off: it need not be near the ends of the range that its step was chosen for
MEAN = 1 / 4  # of a step, by which numbers may be off on average
QUANTISED = f", or {MOST}/{STEPS} of the greatest magnitude and {MEAN:g}/{STEPS} on average"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers agree if they differ by no more than `atol + rtol * |eager's|`.

    Where a method rounds what it computes to 8 bits, kernels that are all right round what is between two steps to
    either side, which moves outputs by a step. Floating-point numbers of such a method agree, too, if none differs by
    more than two 127ths of the tensor's greatest magnitude, and all on average by no more than a quarter of one: a
    wrong scale or zero point moves most of them by more.
    """

    rtol: float = 1e-4
    atol: float = 1e-5
    quantised: bool = False  # whether the method rounds to 8 bits

    def widened(self, dtypes: Iterable[torch.dtype], *, quantised: bool = False) -> Tolerance:
        factor = max((HALF_FACTORS.get(dtype, 1.0) for dtype in dtypes), default=1.0)
        return Tolerance(self.rtol * factor, self.atol * factor, quantised or self.quantised)


def wrong_places(expected: Tensor, given: Tensor, tolerance: Tolerance) -> Tensor:
    """Return where two tensors of one dtype and shape differ: beyond the tolerance, or at all if no floats."""
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return expected != given
    wrong = ~torch.isclose(widest(given), widest(expected), tolerance.rtol, tolerance.atol, equal_nan=True)
    if tolerance.quantised and wrong.any():
        most, mean = steps_apart(expected, given)
        if most <= MOST and mean <= MEAN:
            return torch.zeros_like(wrong)
    return wrong


def steps_apart(expected: Tensor, given: Tensor) -> tuple[float, float]:
    """Return by how many steps of 8 bits two tensors differ at most, and on average."""
    error = (widest(expected) - widest(given)).abs()
    step = float(widest(expected).abs().max()) / STEPS
    if not math.isfinite(step) or step == 0 or not error.isfinite().all():
        return math.inf, math.inf
    return float(error.max()) / step, float(error.mean()) / step


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
        f" {tolerance.atol:.3g}, rtol {tolerance.rtol:.3g}{QUANTISED * tolerance.quantised}); {wrong} of {count} values"
        " are wrong"
    ), largest
