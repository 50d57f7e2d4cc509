"""Operations that stay whole in a build, because torch's decompositions give other numbers than eager.

- Nearest elements: eager computes places of float64 images in float64, and places of `nearest-exact` with a rounding
  that depends on the processor. Torch's decompositions compute all places in float32 with a fixed rounding.
- Corners that stay in place (`align_corners`): where the size of a result is symbolic, the decomposition divides by the
  size less 1, as if no size was 1.
- Places between elements (`places`): decompositions round differently, visibly in large images.
- Images of bytes: torch's decomposition rounds cubic coefficients differently.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments
from hatch_lower.exir.lowering.convert import Wanted
from hatch_lower.exir.lowering.places import DECOMPOSED, rounds_places
from hatch_lower.runtime.torch_private.operators import OpOverload

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


UNLIKE_EAGER: Mapping[OpOverload, Wanted] = {
    aten.upsample_nearest1d.vec: is_of_doubles,
    aten.upsample_nearest3d.vec: is_of_doubles,
    aten._upsample_nearest_exact1d.vec: lambda node: True,
    aten._upsample_nearest_exact2d.vec: lambda node: True,
    aten._upsample_nearest_exact3d.vec: lambda node: True,
    aten.upsample_linear1d.vec: is_between_other_places,
    aten.upsample_trilinear3d.vec: is_between_other_places,
    aten.upsample_bicubic2d.vec: is_cubic_unlike_eager,
}
