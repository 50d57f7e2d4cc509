"""Error metrics of an output relative to eager, over all compared inputs.

Each pair of arrays, of torch or NumPy, is read once, in pieces; only sums and maxima are kept.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hatch_lower.format.metrics import OutputMetrics
from hatch_lower.runtime.numbers import library_of, no_warnings, widest

if TYPE_CHECKING:
    from hatch_lower.runtime.arrays import Array

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
        with no_warnings(library_of(expected)):
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
        signal, given = product(one, one), product(other, other)
        if not (math.isfinite(signal) and math.isfinite(given)):  # free: both sums are needed anyway
            library = library_of(one)
            finite = library.isfinite(one) & library.isfinite(other)
            if not ((one == other) | (library.isnan(one) & library.isnan(other)) | finite).all():
                self.largest = self.relative = math.inf
            one, other = one[finite], other[finite]
            if not len(one):
                return
            signal, given = product(one, one), product(other, other)
        self.signal += signal
        self.given += given
        self.product += product(one, other)
        noise = one - other
        error = abs(noise)
        largest = float(error.max())
        if largest == 0:
            return
        self.largest = max(self.largest, largest)
        self.noise += product(noise, noise)
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


def product(one: Array, other: Array) -> float:
    """Return the inner product of two vectors; complex vectors count as real vectors of twice the length."""
    if "complex" in str(one.dtype):
        return product(one.real, other.real) + product(one.imag, other.imag)
    return float(one @ other)


def is_positive(*numbers: float) -> bool:
    return all(0 < number < math.inf for number in numbers)  # squares may overflow to infinity or underflow to 0
