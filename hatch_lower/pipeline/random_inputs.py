"""Calls of a method, and tensors with the example's specification: random, constant, at the limits of integers;
constant inputs for which eager's results are no reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name
from hatch_lower.runtime.torch_private.programs import CallsSeen, order_kwargs

if TYPE_CHECKING:
    from hatch_lower.pipeline.capture import CapturedMethod

VARIED = 64  # numbers of a tensor that `is_varied` examines
EQUAL = 0.75  # exact in all floating-point dtypes


class InputCase(Frozen):
    name: str  # in errors: `example inputs`, `random inputs, seed 1`, `batch = 3`
    args: tuple[object, ...]
    kwargs: dict[str, object]
    parameters: tuple[str, ...]  # the names of `args`

    def named(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        return {**dict(zip(self.parameters, args, strict=True)), **kwargs}

    def leaves(self) -> list[object]:
        return tensors.tree_leaves((self.args, self.kwargs))

    def copied(self) -> tuple[tuple[object, ...], dict[str, object]]:
        # a method may change its inputs, and some operators depend on the inputs' strides
        args, kwargs = tensors.tree_map_only(torch.Tensor, copied_tensor, (self.args, self.kwargs))
        return args, kwargs


def copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    span = torch.as_strided(tensor.detach(), (span_of(tensor.shape, tensor.stride()),), (1,))
    return span.clone().as_strided(tensor.shape, tensor.stride(), 0)


def span_of(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def example_case(method: CapturedMethod) -> InputCase:
    # keyword arguments in the order of the exported signature, like the program's inputs
    kwargs = dict(method.kwargs)
    if kwargs and method.program.call_spec.in_spec is not None:
        kwargs = order_kwargs(kwargs, method.program.call_spec.in_spec)
    return InputCase("example inputs", method.args, kwargs, method.parameters)


def case_of(method: CapturedMethod, name: str, leaves: list[object]) -> InputCase:
    args, kwargs = tensors.tree_unflatten(leaves, method.program.call_spec.in_spec)
    return InputCase(name, args, kwargs, method.parameters)


def is_integer(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and not (
        leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype is torch.bool
    )


def has_equal_elements(leaf: object) -> bool:
    return not isinstance(leaf, torch.Tensor) or leaf.numel() < 2 or bool((leaf == leaf.reshape(-1)[0]).all())


def has_nonzero(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and bool((leaf != 0).any())


def is_varied(leaf: object) -> bool:
    """Return whether numbers are as good as random numbers: many values of both signs, or different integers."""
    if not isinstance(leaf, torch.Tensor):
        return True
    if not leaf.dtype.is_floating_point:
        return not leaf.dtype.is_complex and not (has_equal_elements(leaf) and leaf.numel() > 1)
    some = leaf.detach().reshape(-1)[:VARIED].float()
    return len(some) > 1 and bool(some.min() < 0 < some.max()) and len(set(some.tolist())) > len(some) // 2


def random_values(example: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    # floats from a standard normal distribution; integers from the example's values, so that indices stay valid
    if example.dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
    if example.dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(example.dtype)
    if example.dtype.is_complex:
        return torch.randn(count, generator=generator, dtype=torch.complex64).to(example.dtype)
    pool = example.detach().reshape(-1)
    if pool.numel() == 0:
        return torch.zeros(count, dtype=example.dtype)
    return pool[torch.randint(0, pool.numel(), (count,), generator=generator)]


def equal_values(example: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    # integers repeat the example's first value, which is a valid index
    if is_integer(example):
        first = example.detach().reshape(-1)[:1]
        return first.expand(count).clone() if first.numel() else torch.zeros(count, dtype=example.dtype)
    return torch.full((count,), EQUAL).to(example.dtype)


def zero_values(example: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int8).to(example.dtype)


def limit_values(example: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    if not is_integer(example):
        return random_values(example, count, generator)
    limits = torch.iinfo(example.dtype)
    several = torch.tensor([limits.max, limits.min, limits.max - 1, limits.min + 1, 1], dtype=example.dtype)
    return several.repeat(-(-count // len(several)))[:count]


# operators for which torch does not specify the order of equal numbers
ORDERS = frozenset({"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"})

# operators that return a mean and the inverse of a deviation behind their first result
NORMS = frozenset({"native_batch_norm", "native_group_norm", "native_layer_norm"})
STEEP = 100  # a mean over its deviation: behind a norm, rounding errors of the numbers are as many times as large


def why_undecided(eager: Callable[..., object], case: InputCase, *, order_alone: bool = False) -> str:
    """Return the reason why a difference for constant inputs is not a fault, else an empty string.

    `order_alone`: look only for operations that order equal numbers, not for numbers that are not finite.

    `finite-only` tells a backend that a model meets neither NaN nor infinity. Constant inputs may cause both where
    other inputs do not: the variance of equal numbers is 0. A norm of numbers that are equal but for rounding errors
    shows these errors alone.
    """
    met: list[str] = []

    def look(operator: OpOverload[..., Any], args: tuple[object, ...], result: object) -> None:
        leaves = tensors.tree_leaves(args)
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if base_name(operator) in ORDERS and given and has_equal(given[0]):
            met.append(f"torch does not specify which of equal numbers `{operator_name(operator)}` gives first")
        elif order_alone:
            return
        elif base_name(operator) in NORMS and is_steep(result):
            met.append(f"eager's `{operator_name(operator)}` enlarges the rounding errors of equal numbers")
        elif any(map(is_not_finite, tensors.tree_leaves(result))) and not any(map(is_not_finite, leaves)):
            met.append(f"eager's `{operator_name(operator)}` gives a number that is not finite")

    args, kwargs = case.copied()
    with torch.no_grad(), CallsSeen(look):
        eager(*args, **kwargs)
    return met[0] if met else ""


def is_steep(result: object) -> bool:
    _, mean, inverse = tensors.tree_leaves(result)
    return bool((mean.abs() * inverse > STEEP).any())


def has_equal(values: torch.Tensor) -> bool:
    ordered = values.reshape(-1).sort().values
    return bool((ordered[1:] == ordered[:-1]).any())


def is_not_finite(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if not isinstance(value, torch.Tensor) or not (value.dtype.is_floating_point or value.dtype.is_complex):
        return False
    return value.numel() > 0 and not bool(value.isfinite().all())
