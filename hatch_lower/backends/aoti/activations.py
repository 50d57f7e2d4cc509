"""Activations in forms that inductor does not fuse into the convolutions and linear layers of oneDNN.

oneDNN's `relu`, `hardtanh` and `hardsigmoid` give a number for NaN, where eager gives NaN: in these forms, inductor
generates loops, and the numbers are eager's. Without AVX-512, oneDNN's `gelu` takes twice as long as inductor's loop.
A `gelu` that a model computes from `erf` or `tanh` is infinity for infinity, and oneDNN's `gelu` is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.exir.graph.operators import named_arguments, torch_operator

aten = torch.ops.aten
Call = Callable[..., Node]  # writes a call of an operator
# operators that limit numbers, and the names of their least and greatest result
LIMITS = {
    aten.clamp.default: ("min", "max"),
    aten.clamp_min.default: ("min", ""),
    aten.clamp_max.default: ("", "max"),
    aten.hardtanh.default: ("min_val", "max_val"),
}


def is_compared(node: Node) -> bool:
    """Return whether a result is compared with a number: inductor matches a leaky `relu` in such an operation."""
    return any(torch_operator(user.target) is aten.gt.Scalar for user in node.users)


def write_unfused(call: Call, node: Node, values: Mapping[Node, Any], *, gelu: bool) -> Node | None:
    """Write an activation; `None` if inductor may fuse it, `gelu` with this flag. `values` has the operands."""
    value, target, named = node.meta.get("val"), torch_operator(node.target), named_arguments(node)
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
        return None
    if target in LIMITS:
        return write_limits(call, node, values)
    if target is aten.mul.Tensor:
        return write_half(call, node, values)
    if target not in (aten.relu.default, aten.leaky_relu.default, aten.gelu.default):
        return None
    given = values[node.all_input_nodes[0]]
    if target is aten.relu.default:
        return write_lower_limit(call, given, 0)
    if target is aten.leaky_relu.default and named.get("negative_slope") == 0:
        falls = call(aten.le.Scalar, given, 0)
        return call(aten.where.self, falls, call(aten.mul.Tensor, given, 0.0), given)
    if target is aten.gelu.default and not gelu:
        return write_gelu(call, given, named.get("approximate", "none"))
    return None


def limits_of(node: Node) -> tuple[Any, Any]:
    """Return the least and the greatest result of an operation of `LIMITS`."""
    low, high = LIMITS[torch_operator(node.target)]
    named = {"min_val": -1, "max_val": 1, **named_arguments(node)}
    return named.get(low), named.get(high)


def write_limits(call: Call, node: Node, values: Mapping[Node, Any]) -> Node | None:
    """Write limits with the upper limit first: inductor's patterns have the lower limit first."""
    (low, high), source = limits_of(node), node.all_input_nodes[0]
    if high is None and isinstance(low, (int, float)):
        return write_lower_limit(call, values[source], low)
    if low is None and torch_operator(source.target) in LIMITS and limits_of(source)[1] is None:
        low, source = limits_of(source)[0], source.all_input_nodes[0]
    if not all(isinstance(limit, (int, float)) for limit in (low, high)) or not low <= high:
        return None
    return write_lower_limit(call, call(aten.clamp_max.default, values[source], high), low)


def write_lower_limit(call: Call, given: Any, low: float) -> Node:
    # of two zeros, inductor's maximum is the second, as in eager; a lower limit of inductor's would be 0 for -0
    return call(aten.maximum.default, call(aten.full.default, [], float(low), dtype=torch.float32), given)


def write_half(call: Call, node: Node, values: Mapping[Node, Any]) -> Node | None:
    """Write the product of a tensor with 0.5 as a quotient, which is the same number: inductor's pattern of `gelu` has
    the product.
    """
    (source, *others), factors = node.all_input_nodes, node.args
    return None if others or 0.5 not in factors or len(source.users) == 1 else call(aten.div.Tensor, values[source], 2)


def write_gelu(call: Call, given: Any, approximate: object) -> Node:
    # Inductor's pattern halves the number before the product. Halves are exact.
    if approximate == "tanh":
        cube = call(aten.mul.Tensor, call(aten.mul.Tensor, given, given), given)
        inner = call(aten.add.Tensor, given, call(aten.mul.Tensor, cube, 0.044715))
        rising = call(aten.tanh.default, call(aten.mul.Tensor, inner, math.sqrt(2 / math.pi)))
    else:
        rising = call(aten.erf.default, call(aten.mul.Tensor, given, math.sqrt(0.5)))
    return call(aten.mul.Tensor, given, call(aten.mul.Tensor, call(aten.add.Tensor, rising, 1), 0.5))
