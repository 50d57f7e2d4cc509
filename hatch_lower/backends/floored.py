"""Quotients that are rounded down, and remainders, of floating-point numbers as eager computes them.

Engines round `x / y` down, which rounding may have made the next whole number: of `18.5 // 3.7` in float32, which is 4,
they make 5. Eager takes what `fmod` leaves of `x` away first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments, torch_operator

QUOTIENTS = ("aten.div.Scalar_mode", "aten.div.Tensor_mode", "aten.floor_divide.Scalar", "aten.floor_divide.default")
REMAINDERS = ("aten.remainder.Scalar", "aten.remainder.Scalar_Tensor", "aten.remainder.Tensor")


def is_floored(node: Node) -> bool:
    """Return whether a node is a quotient that is rounded down, or a remainder, of floating-point numbers."""
    name = str(torch_operator(node.target))
    if name not in QUOTIENTS + REMAINDERS or not node.meta["val"].is_floating_point():
        return False
    return "_mode" not in name or named_arguments(node)["rounding_mode"] == "floor"


def write_floored(call: Callable[..., Any], node: Node, *operands: Any) -> Any:
    """Write such a node by calls of operators; one of its two operands may be a Python number.

    Source: `div_floor_floating` and `remainder` in ATen's kernels.
    """
    dtype = node.meta["val"].dtype
    if dtype in (torch.float16, torch.bfloat16):
        convert = torch.ops.prims.convert_element_type.default
        wide = [call(convert, value, torch.float32) if isinstance(value, Node) else value for value in operands]
        return call(convert, write_wide(call, node, *wide), dtype)
    return write_wide(call, node, *operands)


def write_wide(call: Callable[..., Any], node: Node, dividend: Any, divisor: Any) -> Any:
    aten = torch.ops.aten
    # a number becomes a tensor, of floating point beside integers, too
    if not isinstance(dividend, Node):
        dividend = call(aten.mul.Tensor, call(aten.full_like.default, divisor, 1), dividend)
    if not isinstance(divisor, Node):
        divisor = call(aten.mul.Tensor, call(aten.full_like.default, dividend, 1), divisor)
    rest = call(aten.fmod.Tensor, dividend, divisor)
    above, below = call(aten.gt.Scalar, rest, 0), call(aten.lt.Scalar, rest, 0)
    other_sign = call(aten.where.self, call(aten.lt.Scalar, divisor, 0), above, below)
    if str(torch_operator(node.target)) in REMAINDERS:
        return call(aten.where.self, other_sign, call(aten.add.Tensor, rest, divisor), rest)
    quotient = call(aten.div.Tensor, call(aten.sub.Tensor, dividend, rest), divisor)
    quotient = call(aten.where.self, other_sign, call(aten.sub.Tensor, quotient, 1), quotient)
    # it is a whole number but for the rounding of the division
    floor = call(aten.floor.default, quotient)
    is_next = call(aten.gt.Scalar, call(aten.sub.Tensor, quotient, floor), 0.5)
    floor = call(aten.where.self, is_next, call(aten.add.Tensor, floor, 1), floor)
    return call(aten.where.self, call(aten.eq.Scalar, divisor, 0), call(aten.div.Tensor, dividend, divisor), floor)
