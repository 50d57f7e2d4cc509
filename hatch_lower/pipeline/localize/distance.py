"""The distance of a value from eager's, on the scale of the whole tensor."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.rounding import Marks
from hatch_lower.runtime.numbers import Tolerance, number_difference, widest


class Distance(Frozen):
    largest: float  # absolute; infinite for values that cannot be subtracted
    is_wrong: bool
    text: str = ""  # the difference in words


class Measure(Frozen):
    """The measure of errors inside a method.

    A sum of large terms near 0 has the rounding error of the terms. So the tolerance is computed from the greatest
    magnitude of a tensor; a larger difference is not rounding. With `strict` the tolerance is computed for each number,
    as in verification. Integers of 8 bits may be off by 1 in a method that rounds to 8 bits.
    """

    tolerance: Tolerance
    strict: bool = False

    def after(self, marks: Marks) -> Measure:
        """Return the measure of a value that went through the given roundings."""
        return Measure(self.tolerance.after(marks), self.strict)

    def distance(self, expected: object, given: object) -> Distance:
        if not isinstance(expected, torch.Tensor) or not isinstance(given, torch.Tensor):
            same = expected == given or (expected != expected and given != given)
            return Distance(0.0 if same else math.inf, not same, "" if same else f"{given!r} instead of {expected!r}")
        if expected.dtype != given.dtype or expected.shape != given.shape:
            told = [f"{dtype_name(tensor.dtype)} {list(tensor.shape)}" for tensor in (given, expected)]
            return Distance(math.inf, True, f"{told[0]} instead of {told[1]}")
        tolerance = self.tolerance
        if not self.strict and expected.dtype.is_floating_point and expected.numel():
            finite = widest(expected)[expected.isfinite()]
            greatest = float(finite.abs().max()) if finite.numel() else 0.0
            tolerance = replace(tolerance, atol=tolerance.atol + tolerance.rtol * greatest)
        if self.tolerance.quantized and expected.dtype in (torch.int8, torch.uint8):
            steps = (expected.to(torch.int16) - given.to(torch.int16)).abs()
            most = float(steps.max()) if expected.numel() else 0.0
            return Distance(most, most > 1, f"off by up to {most:g} steps of 8 bits" if most > 1 else "")
        text, largest = number_difference(expected, given, tolerance)
        if text and not (expected.dtype.is_floating_point or expected.dtype.is_complex):
            return Distance(math.inf, True, text)
        return Distance(largest, bool(text), text)
