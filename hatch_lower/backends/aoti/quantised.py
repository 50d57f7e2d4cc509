"""What PT2E writes, for inductor: parameters of a quantisation, and linear layers over integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.torch_private.quantised import quantized_decomposed

aten = torch.ops.aten
CHOOSE = quantized_decomposed.choose_qparams.tensor
DEQUANTISE = quantized_decomposed.dequantize_per_tensor.default
PER_TENSOR = (DEQUANTISE, quantized_decomposed.dequantize_per_tensor.tensor)
PER_CHANNEL = quantized_decomposed.dequantize_per_channel.default
BYTES = (torch.int8, torch.uint8)
LONGEST = 1 << 14  # so many products of bytes fit into 32 bits

Call = Callable[..., Node]  # writes a call of an operator


def why_not_quantised(node: Node) -> str:
    """Return why inductor lacks code for an operator of PT2E's as it is called here."""
    given = named_arguments(node)
    values = given["input"].meta["val"]
    if "zero_points" in given and given["zero_points"] is None:
        return "inductor has no native code for a quantisation without zero points"
    if values.dtype.is_floating_point and values.dtype not in (torch.float32, torch.bfloat16):
        return f"inductor has no native code that quantises {dtype_name(values.dtype)}"
    return ""


def write_parameters(
    call: Call, values: Node, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Node, Node]:
    """Write scale and zero point as eager chooses them, step by step: inductor's own way makes a tensor of `eps`."""
    least = call(aten.clamp.default, call(aten.amin.default, values, []), None, 0)
    greatest = call(aten.clamp.default, call(aten.amax.default, values, []), 0)
    scale = call(aten.div.Tensor, call(aten.sub.Tensor, greatest, least), float(high - low))
    scale = call(aten.clamp.default, scale, eps)
    below = call(aten.round.default, call(aten.div.Tensor, least, scale))
    below = call(aten._to_copy.default, below, dtype=torch.int64)
    zero_point = call(aten.clamp.default, call(aten.rsub.Scalar, below, low), low, high)
    wide = call(aten._to_copy.default, scale, dtype=torch.float64)
    return call(aten.view.default, wide, [1]), call(aten.view.default, zero_point, [1])


def write_dequantise(
    call: Call, values: Node, scale: float, zero_point: int, low: int, high: int, dtype: torch.dtype
) -> Node:
    """Write what gives the numbers of integers, so that inductor does not know it as that.

    Of a pool between integers it makes an operator of its own, which it then cannot call in native code.
    """
    wide = call(aten._to_copy.default, values, dtype=torch.float32)
    return call(aten.mul.Tensor, call(aten.sub.Tensor, wide, zero_point), scale)


@dataclass(frozen=True, slots=True)
class Operand:
    """A dequantised operand of a product: its integers, scale and zero point, nodes of the partition or numbers."""

    integers: Node
    scale: Any
    zero_point: Any

    def mapped(self, values: Mapping[Node, Any]) -> Operand:
        parts = (self.integers, self.scale, self.zero_point)
        return Operand(*(values[part] if isinstance(part, Node) else part for part in parts))


def operands_of(node: Node) -> tuple[Operand, Operand] | None:
    """Return the operands of a linear layer, if both are dequantised and it can be computed with integers."""
    if torch_operator(node.target) is not aten.linear.default:
        return None
    left, right = (argument if isinstance(argument, Node) else None for argument in node.args[:2])
    if left is None or right is None or torch_operator(left.target) not in PER_TENSOR:
        return None
    if torch_operator(right.target) is not PER_CHANNEL:
        return None
    factor, weight = operand_of(left), operand_of(right)
    values, given = factor.integers.meta["val"], weight.integers.meta["val"]
    is_weight = given.dtype is torch.int8 and given.dim() == 2 and named_arguments(right)["axis"] in (0, -2)
    fits = isinstance(given.shape[-1], int) and 0 < given.shape[-1] <= LONGEST and values.dim() >= 2
    rows = [size if isinstance(size, int) else -1 for size in values.shape[:-1]]
    known = len(rows) == 1 or (rows.count(-1) <= 1 and 0 not in rows)
    is_given = values.dtype in BYTES and node.meta["val"].dtype is torch.float32
    return (factor, weight) if is_weight and fits and known and is_given else None


def operand_of(node: Node) -> Operand:
    given = named_arguments(node)
    names = ("scales", "zero_points") if "scales" in given else ("scale", "zero_point")
    return Operand(given["input"], given[names[0]], given[names[1]])


def write_product(
    call: Call, left: Operand, right: Operand, bias: Any, rows: Sequence[Any], length: int, width: int
) -> Node:
    """Write a linear layer over integers, with operands of the graph that is written.

    Nothing of the weights is known here: their sums, by which zero points are accounted for, are computed in each call.
    """
    values = left.integers
    if len(rows) != 1:
        values = call(aten.reshape.default, values, [-1, length])
    total = call(aten._int_mm.default, values, call(aten.permute.default, right.integers, [1, 0]))
    # the rest in 64 bits: nothing bounds a zero point
    total = call(aten._to_copy.default, total, dtype=torch.int64)
    sums = call(aten.sum.dim_IntList, right.integers, [1], dtype=torch.int64)
    zeros = call(aten._to_copy.default, right.zero_point, dtype=torch.int64)
    first, scale = left.zero_point, left.scale
    if isinstance(first, Node):
        first = call(aten._to_copy.default, first, dtype=torch.int64)
        scale = call(aten._to_copy.default, scale, dtype=torch.float32)
    # (x - a) (w - b) = x w - a w - b x + a b, each summed
    moved = call(aten.sub.Tensor, sums, call(aten.mul.Tensor, zeros, length))
    total = call(aten.sub.Tensor, total, call(aten.mul.Tensor, moved, first))
    others = call(aten.sum.dim_IntList, values, [1], True, dtype=torch.int64)
    total = call(aten.sub.Tensor, total, call(aten.mul.Tensor, others, zeros))
    factors = call(aten.mul.Tensor, call(aten._to_copy.default, right.scale, dtype=torch.float32), scale)
    result = call(aten.mul.Tensor, call(aten._to_copy.default, total, dtype=torch.float32), factors)
    if bias is not None:
        result = call(aten.add.Tensor, result, bias)
    if len(rows) == 1:
        return result
    sizes = [size if isinstance(size, int) else -1 for size in rows]
    return call(aten.reshape.default, result, [*sizes, width])
