"""Nodes of the edge dialect as ExecuTorch sees them: its operators, sizes that are inferred, numbers as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from hatch_lower.exir.backend.canonical_partitioners.nodes import tensors_of
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator

# Their second operand may be a Python number. Of an integer ExecuTorch makes a tensor of integers, and XNNPACK takes no
# numbers: so they become operators of tensors.
BINARY: Mapping[str, OpOverload] = {
    f"aten.{name}.{overload}": getattr(torch.ops.aten, name).Tensor
    for name in ("add", "div", "mul", "sub")
    for overload in ("Scalar", "Tensor")
}

# They give their operand other sizes at most, where tensors are contiguous as all are in ExecuTorch; an `expand` only
# where it repeats nothing
SHAPED = frozenset(
    {
        "aten._unsafe_view.default",
        "aten.clone.default",
        "aten.expand.default",
        "aten.reshape.default",
        "aten.view.default",
    }
)


def full_arguments(node: Node) -> tuple[Any, ...]:
    # a pool may leave out its stride, and ExecuTorch wants it written
    args = tuple(node.args)
    if str(torch_operator(node.target)) == "aten.max_pool2d.default" and (len(args) < 3 or not args[2]):
        return (*args[:2], args[1], *args[3:])
    return args


def keeps_shape(node: Node) -> bool:
    """Return whether a `SHAPED` node gives its operand's sizes."""
    source = node.args[0]
    assert isinstance(source, Node)
    # as text: to compare symbols would be to decide something about them
    return [str(size) for size in source.meta["val"].shape] == [str(size) for size in node.meta["val"].shape]


def inferred_shape(node: Node) -> list[int] | None:
    """Return the sizes that a `SHAPED` node gives its result, a symbolic one as -1; `None`: that does not tell all."""
    value = node.meta["val"]
    if str(torch_operator(node.target)) == "aten.expand.default" and not keeps_shape(node):
        return None
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    # a size that is inferred beside a size of 0 could be anything
    return None if sizes.count(-1) > 1 or (-1 in sizes and 0 in sizes) else sizes


def upper_bound(size: int | torch.SymInt, ranges: Mapping[object, ValueRanges[Any]]) -> int | None:
    if isinstance(size, int):
        return size
    bound = bound_sympy(size.node.expr, dict(ranges)).upper
    return int(bound) if bound.is_Integer and bound is not int_oo and bound < LARGE else None


# a bound from here on is none: a size without one gets `sys.maxsize` or infinity from torch, or a term of it
LARGE = 2**31


def is_bounded(node: Node, ranges: Mapping[object, ValueRanges[Any]]) -> bool:
    return all(upper_bound(size, ranges) is not None for tensor in tensors_of(node) for size in tensor.shape)
