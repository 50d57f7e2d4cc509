"""Equality of leaves in the outputs of eager and of a lowered method, apart from tolerances."""

from __future__ import annotations

import math

import torch

from hatch_lower.runtime.numbers import widest
from hatch_lower.runtime.torch_private import tensors


def are_equal(first: object, second: object) -> bool:
    pairs = zip(tensors.tree_leaves(first), tensors.tree_leaves(second), strict=True)
    return all(torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other for one, other in pairs)


def has_same_form(expected: object, given: object) -> bool:
    """Return whether two leaves have the same type, dtype and shape, and are finite in the same places."""
    if not isinstance(expected, torch.Tensor) or not isinstance(given, torch.Tensor):
        return type(expected) is type(given) is float and math.isfinite(expected) and math.isfinite(given)
    if (expected.dtype, expected.shape) != (given.dtype, given.shape):
        return False
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return True
    one, other = widest(expected), widest(given)
    finite = torch.isfinite(one)
    if not torch.equal(finite, torch.isfinite(other)):
        return False
    return torch.equal(torch.nan_to_num(one)[~finite], torch.nan_to_num(other)[~finite])


def is_same_tensor(expected: torch.Tensor, given: torch.Tensor) -> bool:
    """Return whether two tensors are equal without a closer look; false for tensors with NaN or numbers of 8 bits."""
    return expected.element_size() > 1 and torch.equal(expected, given)
