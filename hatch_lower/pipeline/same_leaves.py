"""Equality of leaves in the outputs of eager and of a lowered method, apart from tolerances."""

from __future__ import annotations

import torch

from hatch_lower.runtime.torch_private import tensors


def are_equal(first: object, second: object) -> bool:
    pairs = zip(tensors.tree_leaves(first), tensors.tree_leaves(second), strict=True)
    return all(torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other for one, other in pairs)


def is_same_tensor(expected: torch.Tensor, given: torch.Tensor) -> bool:
    """Return whether two tensors are equal without a closer look; false for tensors with NaN or numbers of 8 bits."""
    return expected.element_size() > 1 and torch.equal(expected, given)
