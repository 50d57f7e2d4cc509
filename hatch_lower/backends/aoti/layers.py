"""Products and convolutions for inductor: weights that are packed at load, and operations over integers that PT2E
writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from hatch_lower.backends.aoti.activations import Call, is_compared
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.runtime.torch_private.inductor import byte_convolution, float_convolution, float_linear
from hatch_lower.runtime.torch_private.quantized import quantized_decomposed

aten = torch.ops.aten
DIMENSIONS = 4  # of images and weights
SIDE = 32  # image size assumed where the real size is known at run time only: weights packed for 32 fit most sizes

CHOOSE = quantized_decomposed.choose_qparams.tensor
DEQUANTIZE = quantized_decomposed.dequantize_per_tensor.default
PER_TENSOR = (DEQUANTIZE, quantized_decomposed.dequantize_per_tensor.tensor)
PER_CHANNEL = quantized_decomposed.dequantize_per_channel.default
BYTES = (torch.int8, torch.uint8)
LONGEST = 1 << 14  # so many products of bytes fit into 32 bits, and sums of bytes are exact in float32
FEWEST = 24  # channels of a group: with fewer, the terms for the weights' zero points take the time that integers save
# multiplications of a linear layer from which oneDNN's product is faster than the BLAS product: its call takes some
# 10 µs longer
LARGE = 1 << 23
ROWS = 32  # assumed where the real number is known at run time only
LAYERS = {aten.linear.default: 2, aten.conv2d.default: 4}  # to the dimensions of their weights


@dataclass(frozen=True, slots=True)
class Places:
    """The position of a convolution's weights, and the facts besides sizes that their packed layout depends on."""

    constant: int  # their position among the constants
    zero_point: int | None  # of unsigned bytes; `None` for floating-point numbers
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    size: tuple[int, ...]  # number of images, their height and width


def places_of(node: Node, image: Node, weight: Node, constant: int, zero_point: int | None = None) -> Places:
    given = named_arguments(node)
    pairs = (given.get(name, default) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1)))
    where = (tuple(pair) * (2 // len(pair)) if isinstance(pair, Sequence) else (pair, pair) for pair in pairs)
    stride, padding, dilation = where
    (rows, _, *sides), kernel = image.meta["val"].shape, weight.meta["val"].shape[2:]
    places = zip(sides, kernel, dilation, strict=True)
    sides = [side if isinstance(side, int) else max(SIDE, length * step) for side, length, step in places]
    size = rows if isinstance(rows, int) and rows else 1, *sides
    return Places(constant, zero_point, stride, padding, dilation, given.get("groups", 1), size)


def may_copy(constant: torch.Tensor) -> bool:
    """Return whether a constant may be weights that are copied at load."""
    # a cache of keys is a buffer with as many dimensions: a copy would not reach the method that fills the cache
    is_float = constant.dtype is torch.float32 and isinstance(constant, nn.Parameter)
    return constant.dim() == DIMENSIONS and (is_float or constant.dtype is torch.int8)


def is_of_floats(node: Node) -> bool:
    """Return whether an operation is a convolution of float32 whose weights can be laid out for all of its calls."""
    if torch_operator(node.target) is not aten.conv2d.default or is_compared(node):
        return False
    given = named_arguments(node)
    values = [given[name].meta["val"] for name in ("input", "weight")]
    # Of other numbers of images, heights and widths, a call would convert the layout: twice as slow as without.
    return all(
        value.dtype is torch.float32
        and value.dim() == DIMENSIONS
        and all(isinstance(size, int) and size for size in value.shape)
        for value in values
    )


def write_of_floats(call: Call, image: Any, weight: Node, bias: Any, places: Places) -> Node:
    where = [list(pair) for pair in (places.padding, places.stride, places.dilation)]
    return call(float_convolution(), image, weight, bias, *where, places.groups, "none", [], "")  # no fused operation


def is_large_linear(node: Node) -> bool:
    """Return whether an operation is a linear layer of float32 that oneDNN computes faster than a BLAS product."""
    if torch_operator(node.target) is not aten.linear.default or is_compared(node):
        return False
    values, given = [argument.meta["val"] for argument in node.all_input_nodes], named_arguments(node)
    image, weight = (given[name].meta["val"] for name in ("input", "weight"))
    if any(value.dtype is not torch.float32 for value in values) or image.dim() < 2 or weight.dim() != 2:
        return False
    if not weight.is_contiguous() or not all(isinstance(size, int) and size for size in weight.shape):
        return False
    bias = given.get("bias")
    # Eager broadcasts a bias of any form; oneDNN reads a number for each column.
    if bias is not None and tuple(bias.meta["val"].shape) != tuple(weight.shape[:1]):
        return False
    rows = math.prod(image.shape[:-1]) if all(isinstance(size, int) for size in image.shape) else ROWS
    return bool(rows * math.prod(weight.shape) >= LARGE)


def write_linear_of_floats(call: Call, input: Any, weight: Any, bias: Any = None) -> Node:
    # inductor fuses activations itself
    return call(float_linear(), input, weight, bias, "none", [], "")


def why_not_quantized(node: Node) -> str:
    given = named_arguments(node)
    values = given["input"].meta["val"]
    if "zero_points" in given and given["zero_points"] is None:
        return "inductor has no native code for a quantization without zero points"
    if values.dtype.is_floating_point and values.dtype not in (torch.float32, torch.bfloat16):
        return f"inductor has no native code that quantizes {dtype_name(values.dtype)}"
    return ""


def write_parameters(
    call: Call, values: Node, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Node, Node]:
    """Write scale and zero point step by step as in eager: inductor's own decomposition makes a tensor of `eps`."""
    least = call(aten.clamp.default, call(aten.amin.default, values, []), None, 0)
    greatest = call(aten.clamp.default, call(aten.amax.default, values, []), 0)
    scale = call(aten.div.Tensor, call(aten.sub.Tensor, greatest, least), float(high - low))
    scale = call(aten.clamp.default, scale, eps)
    below = call(aten.round.default, call(aten.div.Tensor, least, scale))
    below = call(aten._to_copy.default, below, dtype=torch.int64)
    zero_point = call(aten.clamp.default, call(aten.rsub.Scalar, below, low), low, high)
    wide = call(aten._to_copy.default, scale, dtype=torch.float64)
    return call(aten.view.default, wide, [1]), call(aten.view.default, zero_point, [1])


def write_dequantized(
    call: Call, values: Node, scale: float, zero_point: int, low: int, high: int, dtype: torch.dtype
) -> Node:
    """Write a form that inductor does not match: between integer pools, native code could not call the result."""
    wide = call(aten._to_copy.default, values, dtype=torch.float32)
    return call(aten.mul.Tensor, call(aten.sub.Tensor, wide, zero_point), scale)


@dataclass(frozen=True, slots=True)
class Operand:
    """A dequantized operand of a product: its integers, scale and zero point, nodes of the partition or numbers."""

    integers: Node
    scale: Any
    zero_point: Any

    def mapped(self, values: Mapping[Node, Any]) -> Operand:
        parts = (self.integers, self.scale, self.zero_point)
        return Operand(*(values[part] if isinstance(part, Node) else part for part in parts))


def operands_of(node: Node) -> tuple[Operand, Operand] | None:
    """Return the operands of a linear layer or convolution, if both are dequantized and integers can compute it."""
    dimensions = LAYERS.get(torch_operator(node.target))
    if dimensions is None:
        return None
    left, right = (argument if isinstance(argument, Node) else None for argument in node.args[:2])
    if left is None or right is None or torch_operator(left.target) not in PER_TENSOR:
        return None
    if torch_operator(right.target) is not PER_CHANNEL:
        return None
    factor, weight = operand_of(left), operand_of(right)
    values, given = factor.integers.meta["val"], weight.integers.meta["val"]
    sizes = given.shape[1:]
    is_weight = given.dtype is torch.int8 and given.dim() == dimensions
    is_weight = is_weight and named_arguments(right)["axis"] in (0, -dimensions)
    fits = is_weight and all(isinstance(size, int) and size > 0 for size in sizes) and math.prod(sizes) <= LONGEST
    is_given = values.dtype in BYTES and node.meta["val"].dtype is torch.float32
    known = fits and (knows_rows(values) if dimensions == 2 else knows_places(node, factor, weight))
    return (factor, weight) if known and is_given else None


def knows_rows(values: torch.Tensor) -> bool:
    rows = [size if isinstance(size, int) else -1 for size in values.shape[:-1]]
    return len(rows) == 1 or (len(rows) > 1 and rows.count(-1) <= 1 and 0 not in rows)


def knows_places(node: Node, factor: Operand, weight: Operand) -> bool:
    """Return whether the weights of a convolution can be packed at load, and all other arguments are known here."""
    limits = torch.iinfo(factor.integers.meta["val"].dtype)
    # oneDNN's zero points are of 32 bits
    in_range = isinstance(factor.zero_point, int) and limits.min <= factor.zero_point <= limits.max
    is_large = named_arguments(node).get("groups", 1) == 1 or weight.integers.meta["val"].shape[1] >= FEWEST
    has_rows = factor.integers.meta["val"].dim() == 4
    return in_range and is_large and has_rows and weight.integers.op == "placeholder"


def operand_of(node: Node) -> Operand:
    given = named_arguments(node)
    names = ("scales", "zero_points") if "scales" in given else ("scale", "zero_point")
    return Operand(given["input"], given[names[0]], given[names[1]])


def write_linear(call: Call, left: Operand, right: Operand, bias: Any, like: torch.Tensor, width: int) -> Node:
    """Write a linear layer over integers; each call sums up the weights, which are unknown at build.

    `like` has the dtype and the sizes of the left operand, `width` is the number of rows of the right operand.
    """
    values, (*rows, length) = left.integers, like.shape
    if len(rows) != 1:
        values = call(aten.reshape.default, values, [-1, length])
    # An extra row holds the sums of the weights: a separate sum takes longer than the product.
    ones = call(aten.full.default, [1, length], 1, dtype=like.dtype)
    total = call(aten.cat.default, [values, ones])
    total = call(aten._int_mm.default, total, call(aten.permute.default, right.integers, [1, 0]))
    # the rest in 64 bits: a zero point is unbounded
    total = call(aten._to_copy.default, total, dtype=torch.int64)
    sums = call(aten.slice.Tensor, total, 0, -1)
    total = call(aten.slice.Tensor, total, 0, 0, -1)
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


def has_signed_integers(operand: Operand) -> bool:
    return bool(operand.integers.meta["val"].dtype is torch.int8)


def write_convolution(
    call: Call, left: Operand, right: Operand, bias: Any, places: Places, sizes: Sequence[int], *, signed: bool
) -> Node:
    """Write a convolution over weights of the given sizes, packed for oneDNN, which takes no signed integers."""
    values, zero_point = left.integers, places.zero_point or 0  # bytes always have a zero point
    # of integers, inductor's loops have no vectors
    numbers = call(aten._to_copy.default, values, dtype=torch.float32)
    if signed:
        numbers = call(aten.add.Tensor, numbers, 128)
        values = call(aten._to_copy.default, numbers, dtype=torch.uint8)
    scale = call(aten.full.default, [1], left.scale, dtype=torch.float32)
    zero = call(aten.full.default, [1], zero_point, dtype=torch.int32)
    none = call(aten.full.default, [sizes[0]], 0, dtype=torch.int32)
    factors = call(aten._to_copy.default, right.scale, dtype=torch.float32)
    where = [list(pair) for pair in (places.stride, places.padding, places.dilation)]
    given = (values, scale, zero, right.integers, factors, none, bias, *where, places.groups)
    result = call(byte_convolution(), *given, 1.0, 0, torch.float32, "none", [], "")  # no fused operation
    # (x - a) (w - b) = (x - a) w - (x - a) b: oneDNN subtracts a; the weights are unknown at build
    width, channels, *kernel = sizes
    sums = call(aten.sum.dim_IntList, call(aten.unfold.default, numbers, 1, channels, channels), [-1])  # of a group
    sums = call(aten.sub.Tensor, sums, zero_point * channels)
    ones = call(aten.full.default, [places.groups, 1, *kernel], 1.0, dtype=torch.float32)
    sums = call(aten.convolution.default, sums, ones, None, *where, False, [0, 0], places.groups)
    sums = call(aten.expand.default, call(aten.unsqueeze.default, sums, 2), [-1, -1, width // places.groups, -1, -1])
    sums = call(aten.flatten.using_ints, sums, 1, 2)
    factors = call(aten.mul.Tensor, call(aten.mul.Tensor, factors, left.scale), right.zero_point)
    return call(aten.sub.Tensor, result, call(aten.mul.Tensor, sums, call(aten.view.default, factors, [-1, 1, 1])))
