"""Comparison of a program's numbers with eager's: tolerances, and error metrics of an output over all compared
inputs. Used by a build's verification, `hatch-lower check` and the kit for backends, with torch tensors or NumPy
arrays. The functions used here have the same name in both libraries; neither library is imported here. For metrics
each pair of arrays is read once, in pieces; only sums and maxima are kept.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hatch_lower.format.record import OutputMetrics

if TYPE_CHECKING:
    from hatch_lower.runtime.arrays import Array


# Factors by which tolerances widen for half precision. Its rounding error is about 8000 (float16) and 65000 (bfloat16)
# times the error of float32, but the compared sides share most of the error.
HALF_FACTORS: Mapping[str, float] = {"float16": 100.0, "bfloat16": 400.0}

# marks of the roundings of a value: to 8 bits, or to half precision, marked by the name of the dtype
QUANTIZED_MARK = "quantized"
MARKS = (QUANTIZED_MARK, *HALF_FACTORS)

STEPS = 127  # quantization steps from 0 to the greatest magnitude, with 8 bits
MOST = 2  # allowed error in steps; more than 1, because the tensor may not fill the range that the step was chosen for
MEAN = 1 / 4  # allowed average error in steps
GROSS = 1 / 2  # share of the root mean square of eager's numbers; a metric allows no larger errors
SPREAD = 1 / 10  # share of the root mean square of eager's numbers that many roundings to integers may add up to
JUDGED = f", or a root mean square of the errors of {GROSS:g} of that of eager's numbers"
QUANTIZED = f", or {MOST}/{STEPS} of the greatest magnitude and {MEAN:g}/{STEPS} on average"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits for differences: two numbers agree if they differ by at most `atol + rtol * |eager's|`.

    In a method that quantizes to 8 bits, correct kernels may round a number between two steps to either side, which
    moves outputs by a step. Floating-point outputs of a quantizing method also agree if no number differs by more than
    two 127ths of the tensor's greatest magnitude, and the average difference is at most a quarter of a 127th. A wrong
    scale or zero point moves most numbers by more.

    Where a metric judges the method, numbers agree that are finite in the same places, if the root mean square of the
    errors is at most half of the numbers', apart from `atol`. Integers, such as the index of a class, are not compared.
    """

    rtol: float = 1e-4
    atol: float = 1e-5
    quantized: bool = False  # whether the method quantizes to 8 bits
    judged: bool = False  # whether a metric judges the method

    def widened(self, dtypes: Iterable[str], *, quantized: bool = False) -> Tolerance:
        factor = max((HALF_FACTORS.get(dtype, 1.0) for dtype in dtypes), default=1.0)
        quantized = quantized or self.quantized
        return replace(self, rtol=self.rtol * factor, atol=self.atol * factor, quantized=quantized)

    def after(self, marks: Collection[str]) -> Tolerance:
        """Return the tolerance for a value with the given marks of roundings."""
        return self.widened(marks, quantized=QUANTIZED_MARK in marks)


def wrong_places(expected: Array, given: Array, tolerance: Tolerance) -> Array:
    """Return the mask of differences between two arrays with the same dtype and shape.

    Floating-point numbers count as different beyond the tolerance, other numbers if not equal.
    """
    if not has_inexact_dtype(expected):
        different = expected != given
        return different & (not tolerance.judged)
    library = library_of(expected)
    with silence_numpy(library):
        close = library.isclose(widest(given), widest(expected), tolerance.rtol, tolerance.atol, equal_nan=True)
    wrong = ~close
    if tolerance.quantized and wrong.any():
        most, mean = steps_apart(expected, given)
        if most <= MOST and mean <= MEAN:
            return library.zeros_like(wrong)
    if tolerance.judged and wrong.any() and not is_gross(expected, given, tolerance.atol):
        return library.zeros_like(wrong)
    return wrong


def is_gross(expected: Array, given: Array, atol: float, share: float = GROSS) -> bool:
    """Return whether the errors are larger than a share of the numbers (root mean squares), or other places finite."""
    one, other = widest(expected), widest(given)
    library = library_of(one)
    with silence_numpy(library):
        same = (one == other) | (library.isnan(one) & library.isnan(other))
        finite = library.isfinite(one) & library.isfinite(other)
        if not (same | finite).all():
            return True
        error = root_mean_square((one - other)[finite])
    return error > max(share * root_mean_square(one), atol)


def root_mean_square(array: Array) -> float:
    """Return the root mean square of the finite numbers of an array, 0 without finite numbers."""
    library, values = library_of(array), widest(array)
    values = values[library.isfinite(values)]
    if not len(values):
        return 0.0
    greatest = float(abs(values).max())  # squares of great numbers are infinite
    return greatest * math.sqrt(float((abs(values / greatest) ** 2).mean())) if greatest else 0.0


def steps_apart(expected: Array, given: Array) -> tuple[float, float]:
    """Return the largest and the average difference of two arrays in steps of 8 bits."""
    library = library_of(expected)
    with silence_numpy(library):
        error = abs(widest(expected) - widest(given))
    step = float(abs(widest(expected)).max()) / STEPS
    if not math.isfinite(step) or step == 0 or not library.isfinite(error).all():
        return math.inf, math.inf
    return float(error.max()) / step, float(error.mean()) / step


def number_difference(expected: Array, given: Array, tolerance: Tolerance) -> tuple[str, float]:
    """Compare two arrays with the same dtype and shape; return the difference as text, or "", and the largest error."""
    count = math.prod(expected.shape)
    wrong = int(wrong_places(expected, given, tolerance).sum())
    if not has_inexact_dtype(expected):
        return f"{wrong} of {count} values are different" if wrong else "", 0.0
    if count == 0:
        return "", 0.0
    library = library_of(expected)
    one, other = widest(expected), widest(given)
    same = (one == other) | (library.isnan(one) & library.isnan(other))
    finite = library.isfinite(one) & library.isfinite(other)
    with silence_numpy(library):
        error = library.where(same, 0.0, abs(one - other))
        error = library.where(same | finite, error, math.inf)  # a number that is finite on one side only is wrong
        largest = float(error.max())
        if not wrong:
            return "", largest
        ratios = (error / abs(one))[finite & (one != 0)]
    relative = float(ratios.max()) if len(ratios) else math.inf
    rtol, atol = tolerance.rtol, tolerance.atol
    return (
        f"largest absolute error {largest:.3g}, largest relative error {relative:.3g} (allowed: atol"
        f" {atol:.3g}, rtol {rtol:.3g}{QUANTIZED * tolerance.quantized}{JUDGED * tolerance.judged});"
        f" {wrong} of {count} values are wrong"
    ), largest


def has_inexact_dtype(array: Array) -> bool:
    name = str(array.dtype)
    return "float" in name or "complex" in name


def widest(array: Array) -> Array:
    library = library_of(array)
    dtype = library.complex128 if "complex" in str(array.dtype) else library.float64
    return array.detach().to(dtype) if hasattr(array, "detach") else array.astype(dtype)


def library_of(array: Array) -> Any:
    # works if only one of the libraries is installed
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else sys.modules["numpy"]


def silence_numpy(library: Any) -> AbstractContextManager[object]:
    # NumPy warns about differences of infinities and about division by 0
    quiet: AbstractContextManager[object] = (
        library.errstate(all="ignore") if library.__name__ == "numpy" else nullcontext()
    )
    return quiet


# elements: for longer pieces torch starts several threads, which takes longer than the work
PIECE = 1 << 15


@dataclass(slots=True)
class Measured:
    """Accumulator of the metrics of an output."""

    largest: float = 0.0
    relative: float = 0.0
    signal: float = 0.0
    given: float = 0.0
    product: float = 0.0
    noise: float = 0.0
    rows: int = 0
    same_rows: int = 0

    def add(self, expected: Array, given: Array) -> None:
        """Add a pair of arrays with the same shape and the same floating-point or complex dtype."""
        ranked = "complex" not in str(expected.dtype) and expected.ndim > 0 and expected.shape[-1] > 1
        with silence_numpy(library_of(expected)):
            for one, other in pieces(expected, given, expected.shape[-1] if ranked else 1):
                if ranked:
                    self.rows += len(one)
                    self.same_rows += int((one.argmax(-1) == other.argmax(-1)).sum())
                self._add_piece(one.reshape(-1), other.reshape(-1))

    def metrics(self) -> OutputMetrics:
        norm = math.sqrt(self.signal) * math.sqrt(self.given)
        return OutputMetrics(
            self.largest,
            self.relative,
            10 * (math.log10(self.signal) - math.log10(self.noise)) if is_positive(self.signal, self.noise) else None,
            max(-1.0, min(1.0, self.product / norm)) if is_positive(norm) else None,
            self.same_rows / self.rows if self.rows else None,
        )

    def _add_piece(self, one: Array, other: Array) -> None:
        signal, given = inner_product(one, one), inner_product(other, other)
        if not (math.isfinite(signal) and math.isfinite(given)):  # free: both sums are needed anyway
            library = library_of(one)
            finite = library.isfinite(one) & library.isfinite(other)
            if not ((one == other) | (library.isnan(one) & library.isnan(other)) | finite).all():
                self.largest = self.relative = math.inf
            one, other = one[finite], other[finite]
            if not len(one):
                return
            signal, given = inner_product(one, one), inner_product(other, other)
        self.signal += signal
        self.given += given
        self.product += inner_product(one, other)
        noise = one - other
        error = abs(noise)
        largest = float(error.max())
        if largest == 0:
            return
        self.largest = max(self.largest, largest)
        self.noise += inner_product(noise, noise)
        size = abs(one)
        if float(size.min()) == 0:
            error, size = error[size != 0], size[size != 0]
        if len(size):
            self.relative = max(self.relative, min(float((error / size).max()), sys.float_info.max))


def pieces(expected: Array, given: Array, row: int) -> Iterator[tuple[Array, Array]]:
    # pairs of rows, in the widest dtype
    if not math.prod(expected.shape):
        return
    count = max(1, PIECE // row)
    one, other = (array.reshape(-1, row) for array in (expected, given))
    for begin in range(0, len(one), count):
        yield widest(one[begin : begin + count]), widest(other[begin : begin + count])


def inner_product(one: Array, other: Array) -> float:
    """Return the inner product of two vectors; complex vectors count as real vectors of twice the length."""
    if "complex" in str(one.dtype):
        return inner_product(one.real, other.real) + inner_product(one.imag, other.imag)
    return float(one @ other)


def is_positive(*numbers: float) -> bool:
    return all(0 < number < math.inf for number in numbers)  # squares may overflow to infinity or underflow to 0
