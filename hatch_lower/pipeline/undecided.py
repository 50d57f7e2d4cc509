"""Constant inputs for which eager's results are no reference: NaN and infinities, and the order of equal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from hatch_lower.exir.backend.canonical_partitioners.operators import operator_name
from hatch_lower.pipeline.random_inputs import InputCase
from hatch_lower.runtime.torch_private import trees
from hatch_lower.runtime.torch_private.calls import CallsSeen
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

# operators for which torch does not specify the order of equal numbers
ORDERS = frozenset({"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"})


def why_undecided(eager: Callable[..., object], case: InputCase, *, order_alone: bool = False) -> str:
    """Return the reason why a difference for constant inputs is not a fault, else an empty string.

    `order_alone`: look only for operations that order equal numbers, not for numbers that are not finite.

    `finite-only` tells a backend that a model meets neither NaN nor infinity. Constant inputs may cause both where
    other inputs do not: the variance of equal numbers is 0.
    """
    met: list[str] = []

    def look(operator: OpOverload[..., Any], args: tuple[object, ...], result: object) -> None:
        leaves = trees.tree_leaves(args)
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if base_name(operator) in ORDERS and given and has_equal(given[0]):
            met.append(f"torch does not specify which of equal numbers `{operator_name(operator)}` gives first")
        elif (
            not order_alone
            and any(map(is_not_finite, trees.tree_leaves(result)))
            and not any(map(is_not_finite, leaves))
        ):
            met.append(f"eager's `{operator_name(operator)}` gives a number that is not finite")

    args, kwargs = case.copied()
    with torch.no_grad(), CallsSeen(look):
        eager(*args, **kwargs)
    return met[0] if met else ""


def has_equal(values: torch.Tensor) -> bool:
    ordered = values.reshape(-1).sort().values
    return bool((ordered[1:] == ordered[:-1]).any())


def is_not_finite(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if not isinstance(value, torch.Tensor) or not (value.dtype.is_floating_point or value.dtype.is_complex):
        return False
    return value.numel() > 0 and not bool(value.isfinite().all())
