"""Whether a program computes what eager does: two arrays, and how far apart they may be.

A build's verification, `hatch-lower check` and the kit for backends compare with the functions of this module: tensors
of torch, or NumPy's arrays. What is used here has one name in both libraries, and neither is imported here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatch_lower.runtime.arrays import Array

# how much wider tolerances are where a method computes in half precision: its rounding error is about 8000 (float16)
# and 65000 (bfloat16) times that of float32, most of which both sides share
HALF_FACTORS: Mapping[str, float] = {"float16": 100.0, "bfloat16": 400.0}

# marks of roundings that a value went through: to 8 bits, or to a half, whose mark is the dtype's name
QUANTISED_MARK = "quantised"
MARKS = (QUANTISED_MARK, *HALF_FACTORS)

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

    def widened(self, dtypes: Iterable[str], *, quantised: bool = False) -> Tolerance:
        factor = max((HALF_FACTORS.get(dtype, 1.0) for dtype in dtypes), default=1.0)
        quantised = quantised or self.quantised
        return replace(self, rtol=self.rtol * factor, atol=self.atol * factor, quantised=quantised)

    def after(self, marks: Collection[str]) -> Tolerance:
        """Return the tolerance of a value that went through these roundings."""
        return self.widened(marks, quantised=QUANTISED_MARK in marks)


def wrong_places(expected: Array, given: Array, tolerance: Tolerance) -> Array:
    """Return where two arrays of one dtype and shape differ: beyond the tolerance, or at all if no floats."""
    if not is_inexact(expected):
        return expected != given
    library = library_of(expected)
    with no_warnings(library):
        close = library.isclose(widest(given), widest(expected), tolerance.rtol, tolerance.atol, equal_nan=True)
    wrong = ~close
    if tolerance.quantised and wrong.any():
        most, mean = steps_apart(expected, given)
        if most <= MOST and mean <= MEAN:
            return library.zeros_like(wrong)
    return wrong


def steps_apart(expected: Array, given: Array) -> tuple[float, float]:
    """Return by how many steps of 8 bits two arrays differ at most, and on average."""
    library = library_of(expected)
    with no_warnings(library):
        error = abs(widest(expected) - widest(given))
    step = float(abs(widest(expected)).max()) / STEPS
    if not math.isfinite(step) or step == 0 or not library.isfinite(error).all():
        return math.inf, math.inf
    return float(error.max()) / step, float(error.mean()) / step


def number_difference(expected: Array, given: Array, tolerance: Tolerance) -> tuple[str, float]:
    """Return how two arrays of one dtype and shape differ beyond the tolerance, or "", and the largest difference."""
    count = math.prod(expected.shape)
    wrong = int(wrong_places(expected, given, tolerance).sum())
    if not is_inexact(expected):
        return f"{wrong} of {count} values are different" if wrong else "", 0.0
    if count == 0:
        return "", 0.0
    library = library_of(expected)
    one, other = widest(expected), widest(given)
    same = (one == other) | (library.isnan(one) & library.isnan(other))
    finite = library.isfinite(one) & library.isfinite(other)
    with no_warnings(library):
        error = library.where(same, 0.0, abs(one - other))
        error = library.where(same | finite, error, math.inf)  # finite on one side only is as wrong as can be
        largest = float(error.max())
        if not wrong:
            return "", largest
        ratios = (error / abs(one))[finite & (one != 0)]
    relative = float(ratios.max()) if len(ratios) else math.inf
    rtol, atol = tolerance.rtol, tolerance.atol
    return (
        f"largest absolute error {largest:.3g}, largest relative error {relative:.3g} (allowed: atol"
        f" {atol:.3g}, rtol {rtol:.3g}{QUANTISED * tolerance.quantised}); {wrong} of {count} values"
        " are wrong"
    ), largest


def is_inexact(array: Array) -> bool:
    name = str(array.dtype)
    return "float" in name or "complex" in name


def widest(array: Array) -> Array:
    library = library_of(array)
    dtype = library.complex128 if "complex" in str(array.dtype) else library.float64
    return array.detach().to(dtype) if hasattr(array, "detach") else array.astype(dtype)


def library_of(array: Array) -> Any:
    # where no tensor can be, torch need not be installed; where it is, NumPy need not
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else sys.modules["numpy"]


def no_warnings(library: Any) -> AbstractContextManager[object]:
    # NumPy warns of differences between infinite numbers, and of quotients of 0
    quiet: AbstractContextManager[object] = (
        library.errstate(all="ignore") if library.__name__ == "numpy" else nullcontext()
    )
    return quiet
