"""Interpolations as eager computes them: the places of nearest elements, and factors that give eager's sizes.

Engines divide a place by the ratio of the sizes. Eager multiplies the place by the inverse ratio, in float32: where a
product is nearly a whole number, rounding decides, and the two differ (26 elements to 64, 56 to 64, 14 to 32).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from torch.fx import Node

from hatch_lower.exir.graph.nodes import Ranges
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.lowering.unlike_eager import ENGINES_OWN, Size, ratio, rounds_places
from hatch_lower.runtime.torch_private.symbols import bound_sympy

aten = torch.ops.aten

# For the middles of elements, which `nearest-exact` looks up, eager's places differ between processors.
NEAREST = (aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
INTERPOLATIONS = (*NEAREST, aten.upsample_bilinear2d.vec)

FINEST = 1024  # of the denominators with which float32 holds the product of a size and a factor


def is_nearest(node: Node) -> bool:
    return torch_operator(node.target) in NEAREST


def why_not_interpolation(node: Node, ranges: Ranges, *, doubles: bool) -> str:
    """Return why an interpolation has other sizes or places in an engine, which computes in float64 or not."""
    if torch_operator(node.target) not in INTERPOLATIONS:
        return ""
    source, factors = named_arguments(node)["input"].meta["val"], named_arguments(node).get("scale_factors")
    takes_nearest = is_nearest(node)
    if takes_nearest and source.dtype is torch.float64 and regular_factors(node) is None:
        return "for float64, eager's choice of elements depends on the memory layout"
    if factors is None:
        return ""
    for size, factor in zip(source.shape[2:], factors, strict=True):
        # For channels-last images, eager ignores factors that give exactly 1 or 2 times the size.
        rest = factor - math.floor(factor)
        if takes_nearest and 1 < factor < 3 and rest and least_size(size, ranges) * rest < 1:
            return f"few elements times {factor} are as many as times {int(factor)}, where eager depends on the layout"
        if not (doubles and takes_nearest) and not keeps_size(size, factor):
            return f"the engine computes the size of a result in float32, which does not hold {factor} times a size"
    return ""


def why_not_places(node: Node, *, corners: bool) -> str:
    """Return why an engine's own places between elements are not eager's, with `align_corners` too if `corners`."""
    bilinear = torch_operator(node.target) is aten.upsample_bilinear2d.vec
    if not bilinear or not rounds_places(node, ENGINES_OWN, corners=corners):
        return ""
    return f"for more than {ENGINES_OWN} elements, the engine rounds places between elements differently from eager"


def least_size(size: Size, ranges: Ranges) -> int:
    return size if isinstance(size, int) else max(int(bound_sympy(size.node.expr, dict(ranges)).lower), 1)


def keeps_size(size: Size, factor: float) -> bool:
    """Return whether float32 gives the size that eager computes of a factor in float64."""
    if isinstance(size, int):
        return int(np.float32(size) * np.float32(factor)) == int(size * factor)
    return Fraction(factor).denominator <= FINEST


def regular_factors(node: Node) -> list[float] | None:
    """Return an interpolation's factors if, for all sizes, eager's places equal the engine's division by them."""
    source, factors = named_arguments(node)["input"].meta["val"], named_arguments(node).get("scale_factors")
    sizes = zip(source.shape[2:], node.meta["val"].shape[2:], strict=True)
    found = [ratio(*pair) for pair in sizes] if factors is None else [Fraction(factor) for factor in factors]
    regular = [float(factor) for factor in found if factor is not None and is_regular(factor)]
    return regular if len(regular) == len(found) else None


def is_regular(factor: Fraction) -> bool:
    """Return whether a place times eager's rounded inverse of a factor is at least the quotient, and not another."""
    if factor <= 0:
        return False
    if factor.numerator == 1:  # exact, if a power of two
        return factor.denominator & (factor.denominator - 1) == 0
    return factor.denominator == 1 and Fraction(float(np.float32(1 / float(factor)))) * factor >= 1


def nearest_places(before: int, after: int, factor: float | None) -> list[int]:
    """Return for each place of a result of known size the place that eager takes the element of.

    Source: `area_pixel_compute_scale` and `HelperInterpNearest` in ATen's kernels.
    """
    scale = np.float32(before) / np.float32(after) if factor is None else np.float32(1 / factor)
    found = np.floor(np.arange(after, dtype=np.float32) * scale)
    return [min(int(place), before - 1) for place in found]


def between(before: int, after: int, factor: float | None) -> tuple[list[int], list[int], list[float]]:
    """Return two of eager's elements for each place of a result of known size, and the weight of the second element.

    Source: `area_pixel_compute_source_index` and `guard_index_and_lambda` in ATen's kernels, in one fused operation.
    """
    scale = np.float32(before) / np.float32(after) if factor is None else np.float32(1 / factor)
    steps = np.arange(after) + 0.5
    found = np.maximum((steps * np.float64(scale) - 0.5).astype(np.float32), np.float32(0))
    first = np.minimum(np.floor(found).astype(np.int64), before - 1)
    weights = np.clip(found - first.astype(np.float32), np.float32(0), np.float32(1))
    return first.tolist(), np.minimum(first + 1, before - 1).tolist(), weights.tolist()


def order_of_axes(sizes: Sequence[tuple[object, object]]) -> list[int]:
    """Return in which order axes of sizes before and after, numbers where known, are looked up with the least work."""
    shrinks = [isinstance(before, int) and isinstance(after, int) and after < before for before, after in sizes]
    return sorted(range(len(sizes)), key=lambda axis: (0, axis) if shrinks[axis] else (1, -axis))
