"""Comparing what a lowered program returns with what eager does."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hatch_lower.testing.case import Tolerance

__all__ = ["Call", "eager_calls", "first_difference"]

FACTORS: Mapping[torch.dtype, float] = MappingProxyType({torch.float16: 100.0, torch.bfloat16: 400.0})
"""How much wider the tolerances are for half precision, as where a build verifies."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module in eager mode.

    Args:
        arguments: as they were before it.
        result: what it returned.
        after: the arguments as it left them.
    """

    arguments: tuple[Any, ...]
    result: Any
    after: tuple[Any, ...]

    def copied(self) -> tuple[Any, ...]:
        """Return a copy of the arguments, with their strides."""
        return copy.deepcopy(self.arguments)


def eager_calls(module: torch.nn.Module, calls: tuple[tuple[Any, ...], ...]) -> list[Call]:
    """Call a module several times; what it keeps from one call to the next stays with it."""
    made = []
    for arguments in calls:
        given = copy.deepcopy(arguments)
        with torch.no_grad():
            result = copy.deepcopy(module(*given))  # a later call may change what it shares memory with
        made.append(Call(arguments, result, given))
    return made


def first_difference(found: Any, expected: Any, tolerance: Tolerance) -> str:
    """Return where and how two results differ first; empty if they agree.

    Dtypes, shapes, integers, Booleans and NaN are the same; other numbers agree within the tolerance.
    """
    one, left = pytree.tree_flatten(found)
    other, right = pytree.tree_flatten(expected)
    if left != right:
        return f"the structure {left} instead of {right}"
    for index, (given, wanted) in enumerate(zip(one, other, strict=True)):
        difference = leaf_difference(given, wanted, tolerance)
        if difference:
            return f"output {index}: {difference}"
    return ""


def leaf_difference(found: Any, expected: Any, tolerance: Tolerance) -> str:
    """Return how two leaves differ."""
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        same = type(found) is type(expected) and (found == expected or (found != found and expected != expected))
        close = isinstance(found, float) and isinstance(expected, float) and abs(found - expected) <= tolerance.atol
        return "" if same or close else f"{found!r:.60} instead of {expected!r:.60}"
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{describe(found)} instead of {describe(expected)}"
    factor = FACTORS.get(expected.dtype, 1.0)
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        close_to = torch.isclose(found, expected, tolerance.rtol * factor, tolerance.atol * factor, equal_nan=True)
    else:
        close_to = found == expected
    if bool(close_to.all()):
        return ""
    wrong = (~close_to).nonzero()
    place = tuple(int(each) for each in wrong[0])
    count = f" ({len(wrong)} of {expected.numel()} numbers differ)"
    return f"{found[place].item()} instead of {expected[place].item()} at {list(place)}{count}"


def describe(tensor: Tensor) -> str:
    """Return the dtype and shape of a tensor in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
