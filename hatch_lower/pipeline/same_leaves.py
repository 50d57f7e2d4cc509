"""Leaves in the outputs of eager and of a lowered method: equality, and errors that roundings explain."""

from __future__ import annotations

from collections import defaultdict

import torch

from hatch_lower.runtime.numbers import SPREAD, has_inexact_dtype, is_gross
from hatch_lower.runtime.torch_private import tensors


def are_equal(first: object, second: object) -> bool:
    pairs = zip(tensors.tree_leaves(first), tensors.tree_leaves(second), strict=True)
    return all(torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other for one, other in pairs)


def plain_form(spec: tensors.TreeSpec) -> object:
    """Return the structure of outputs in a form that is equal for a `defaultdict` and the dictionary in its place."""
    if spec.is_leaf():
        return None
    kind, context = (dict, spec.context[1]) if spec.type is defaultdict else (spec.type, spec.context)
    return kind, context, [plain_form(child) for child in spec.children()]


def paths_with_nan(outputs: object) -> list[str]:
    leaves, _ = tensors.tree_flatten_with_path(outputs)
    pairs = [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor) and has_inexact_dtype(leaf)]
    return [tensors.keystr(path) for path, leaf in pairs if leaf.isnan().any()]


def is_same_tensor(expected: torch.Tensor, given: torch.Tensor) -> bool:
    """Return whether two tensors are equal without a closer look; false for tensors with NaN or numbers of 8 bits."""
    return expected.element_size() > 1 and torch.equal(expected, given)


def has_rounding_errors(expected: object, given: object) -> bool:
    if not isinstance(expected, torch.Tensor) or not isinstance(given, torch.Tensor):
        return False
    alike = expected.dtype == given.dtype and expected.shape == given.shape and has_inexact_dtype(expected)
    return alike and not is_gross(expected, given, 0.0, SPREAD)
