"""Operations that stay whole in a build, because torch's decompositions give other numbers than eager, and the
places between elements that an interpolation reads.

- Nearest elements: eager computes places of float64 images in float64, and places of `nearest-exact` with a rounding
  that depends on the processor. Torch's decompositions compute all places in float32 with a fixed rounding.
- Corners that stay in place (`align_corners`): where the size of a result is symbolic, the decomposition divides by the
  size less 1, as if no size was 1.
- Places between elements (`rounds_places`): decompositions round differently, visibly in large images.
- Recurrent networks over a dynamic number of steps: the decomposition has operations for each step, and would fix the
  number.
- Images of bytes: torch's decomposition rounds cubic coefficients differently.

Eager computes a place by a fused operation in float32, `scale * (step + 0.5) - 0.5`, rounded once. Torch's
decompositions round twice, and engines divide by the inverse of the scale. Near the place 300 two roundings differ by
3e-5, and the results by 1e-4 where neighbors differ by 4: more than the tolerance of a number near 0. No operation is
wrong, and no rounding is better. For a power of two all roundings give the same places.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.exir.graph.operators import named_arguments
from hatch_lower.exir.lowering.convert import Wanted
from hatch_lower.runtime.torch_private.operators import OpOverload
from hatch_lower.runtime.torch_private.recurrent import RECURRENT
from hatch_lower.runtime.torch_private.symbols import bound_sympy, bounds_of

# Elements of an axis up to which roundings stayed within the tolerance, for millions of numbers of a standard normal
# distribution: of engines' own interpolations, and of torch's decompositions, which differ by less.
ENGINES_OWN = 32
DECOMPOSED = 64

Size = int | torch.SymInt


def rounds_places(node: Node, few: int, *, corners: bool = False) -> bool:
    """Return whether an interpolation may read an axis of more than `few` elements at rounded places.

    Args:
        corners: whether the rounding differs from eager with `align_corners` too.
    """
    given = named_arguments(node)
    source, factors = given["input"].meta["val"], given.get("scale_factors")
    # a half has a tolerance of its own, doubles are not rounded in float32, and bytes are computed in integers
    if source.dtype is not torch.float32 or (given["align_corners"] and not corners):
        return False
    pairs = list(zip(source.shape[2:], node.meta["val"].shape[2:], strict=True))
    if given["align_corners"]:
        found = [ratio(before - 1, after - 1) for before, after in pairs]
    elif factors is None:
        found = [ratio(before, after) for before, after in pairs]
    else:
        found = [Fraction(factor) for factor in factors]
    axes = zip(pairs, found, strict=True)
    return any(not is_power_of_two(factor) and may_exceed(before, few) for (before, _), factor in axes)


def ratio(before: Size, after: Size) -> Fraction | None:
    """Return `after / before`; `None` if the quotient depends on a symbol or `before` is 0."""
    if isinstance(before, int) and isinstance(after, int):
        return Fraction(after, before) if before else None
    expressions = [size if isinstance(size, int) else size.node.expr for size in (before, after)]
    quotient: Any = expressions[1] / expressions[0] if expressions[0] else None
    return Fraction(int(quotient.p), int(quotient.q)) if getattr(quotient, "is_Rational", False) else None


def is_power_of_two(factor: Fraction | None) -> bool:
    if factor is None or factor <= 0:
        return False
    return all(part & (part - 1) == 0 for part in (factor.numerator, factor.denominator))


def may_exceed(size: Size, few: int) -> bool:
    if isinstance(size, int):
        return size > few
    expression, environment = size.node.expr, size.node.shape_env
    bounds = {symbol: bounds_of(symbol, environment) for symbol in expression.free_symbols}
    known = {symbol: each for symbol, each in bounds.items() if each is not None}
    return len(known) < len(bounds) or not bool(bound_sympy(expression, known).upper <= few)


aten = torch.ops.aten


def is_of_doubles(node: Node) -> bool:
    return bool(node.meta["val"].dtype is torch.float64)


def keeps_corners_of_any_size(node: Node) -> bool:
    sizes = node.meta["val"].shape[2:]
    return bool(named_arguments(node)["align_corners"]) and not all(isinstance(size, int) for size in sizes)


def is_between_other_places(node: Node) -> bool:
    return keeps_corners_of_any_size(node) or rounds_places(node, DECOMPOSED)


def is_cubic_unlike_eager(node: Node) -> bool:
    return node.meta["val"].dtype is torch.uint8 or is_between_other_places(node)


def has_dynamic_steps(node: Node) -> bool:
    given = named_arguments(node)
    return not isinstance(given["input"].meta["val"].shape[1 if given["batch_first"] else 0], int)


UNLIKE_EAGER: Mapping[OpOverload, Wanted] = {
    **dict.fromkeys(RECURRENT, has_dynamic_steps),
    aten.upsample_nearest1d.vec: is_of_doubles,
    aten.upsample_nearest3d.vec: is_of_doubles,
    aten._upsample_nearest_exact1d.vec: lambda node: True,
    aten._upsample_nearest_exact2d.vec: lambda node: True,
    aten._upsample_nearest_exact3d.vec: lambda node: True,
    aten.upsample_linear1d.vec: is_between_other_places,
    aten.upsample_trilinear3d.vec: is_between_other_places,
    aten.upsample_bicubic2d.vec: is_cubic_unlike_eager,
}
