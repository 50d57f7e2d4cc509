"""Floor division and remainders of floating-point numbers as eager computes them.

Engines round `x / y` down, after rounding may have reached the next whole number: for `18.5 // 3.7` in float32, which
is 4, they give 5. Eager first subtracts the `fmod` of `x`.
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
    """Write such a node by calls of operators; an operand may be a number.

    Source: `div_floor_floating` and `remainder` in ATen's kernels.
    """
    dtype = node.meta["val"].dtype
    tensors = [isinstance(given, Node) and isinstance(given.meta["val"], torch.Tensor) for given in node.args[:2]]
    convert = torch.ops.prims.convert_element_type.default
    is_half = dtype in (torch.float16, torch.bfloat16)
    if is_half:  # eager computes with float32
        pairs = zip(operands, tensors, strict=True)
        operands = tuple(call(convert, value, torch.float32) if is_tensor else value for value, is_tensor in pairs)
    dividend, divisor = operands
    if not tensors[0]:
        dividend = filled(call, divisor, dividend)
    elif not tensors[1]:
        divisor = filled(call, dividend, divisor)
    is_remainder = str(torch_operator(node.target)) in REMAINDERS
    result = write_tensors(call, dividend, divisor, is_remainder=is_remainder)
    return call(convert, result, dtype) if is_half else result


def filled(call: Callable[..., Any], like: Any, number: Any) -> Any:
    # of floating point beside integers, too
    return call(torch.ops.aten.mul.Tensor, call(torch.ops.aten.full_like.default, like, 1), number)


def write_tensors(call: Callable[..., Any], dividend: Any, divisor: Any, *, is_remainder: bool) -> Any:
    aten = torch.ops.aten
    rest = call(aten.fmod.Tensor, dividend, divisor)
    above, below = call(aten.gt.Scalar, rest, 0), call(aten.lt.Scalar, rest, 0)
    other_sign = call(aten.where.self, call(aten.lt.Scalar, divisor, 0), above, below)
    if is_remainder:
        return call(aten.where.self, other_sign, call(aten.add.Tensor, rest, divisor), rest)
    quotient = call(aten.div.Tensor, call(aten.sub.Tensor, dividend, rest), divisor)
    quotient = call(aten.where.self, other_sign, call(aten.sub.Tensor, quotient, 1), quotient)
    # the quotient is a whole number, apart from the rounding of the division
    floor = call(aten.floor.default, quotient)
    is_next = call(aten.gt.Scalar, call(aten.sub.Tensor, quotient, floor), 0.5)
    floor = call(aten.where.self, is_next, call(aten.add.Tensor, floor, 1), floor)
    return call(aten.where.self, call(aten.eq.Scalar, divisor, 0), call(aten.div.Tensor, dividend, divisor), floor)
