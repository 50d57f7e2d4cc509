"""Facts about nodes of ATen and edge programs: views, result tensors, and sizes that may be 0."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping

import sympy
import torch
from torch.fx import Node

from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name
from hatch_lower.runtime.torch_private.symbols import ValueRanges, bound_sympy

# ATen operators without arithmetic: a partition of views alone costs more to call than to leave
VIEWS = frozenset(
    {
        "_unsafe_view",
        "alias",
        "detach",
        "expand",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    }
)

Ranges = Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]  # `ExportedProgram.range_constraints`
MAY_BE_ZERO = "a dynamic size may be 0"  # part of a reason that a `min=1` in the size's `Dim` takes away


def may_be_zero(size: int | torch.SymInt, ranges: Ranges) -> bool:
    if isinstance(size, int):
        return size == 0
    # torch's own bounds of a symbol do not help: the exporter allows sizes of 0, but reasons as if all were 2 or more
    expression = size.node.expr
    if not expression.free_symbols <= ranges.keys():
        return True
    return not bool(bound_sympy(expression, dict(ranges)).lower >= 1)


def is_view(node: Node) -> bool:
    target = torch_operator(node.target)
    if isinstance(target, OpOverload):
        return target.namespace == "aten" and base_name(target) in VIEWS
    return target is operator.getitem


def producer_of(node: Node) -> Node:
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val")
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, torch.Tensor):
            yield item
