"""Translations of ATen operators that torch's exporter lacks, or for which ONNX Runtime has no kernel as they are,
and of interpolations with eager's places.

ONNX's own interpolation divides, where eager multiplies by the rounded inverse. ONNX's interpolation is used for
factors by which both give the same places. Otherwise the elements are looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import BOOL, INT64
from onnxscript.function_libs.torch_lib.ops.core import aten_pow_tensor_scalar
from onnxscript.function_libs.torch_lib.tensor_typing import TTensor
from onnxscript.onnx_opset import opset20

from hatch_lower.backends.interpolation import NEAREST, is_regular, nearest_places, order_of_axes

# ONNX's own types are wider than the types of these functions.
op: Any = opset20
Value: TypeAlias = Any  # result of an operator

FLOATS = (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)

# The exporter reads these functions' annotations for ONNX's type of each parameter, and knows `Optional` only.


def where(condition: BOOL, self: TTensor, other: TTensor) -> Value:
    # ONNX Runtime selects among neither Booleans nor 16-bit integers.
    if self.dtype == ir.DataType.BOOL:
        return op.Or(op.And(condition, self), op.And(op.Not(condition), other))
    if self.dtype == ir.DataType.INT16:
        wide = [op.Cast(value, to=ir.DataType.INT32) for value in (self, other)]
        return op.Cast(op.Where(condition, *wide), to=ir.DataType.INT16)
    return op.Where(condition, self, other)


def copy(self: TTensor, src: TTensor, non_blocking: bool = False) -> Value:
    return op.Expand(op.CastLike(src, self), op.Shape(self))


def clamp(self: TTensor, min: float | None = None, max: float | None = None) -> Value:
    # Without a bound, a clip uses the largest finite number, and so makes infinity finite.
    bounds = [None if bound is None else op.CastLike(bound, self) for bound in (min, max)]
    if None in bounds and self.dtype in FLOATS:
        return op.Min(self, bounds[1]) if min is None else op.Max(self, bounds[0])
    return op.Clip(self, *bounds)


def power_of_number(self: float, exponent: TTensor) -> Value:
    return op.Pow(number_like(self, exponent), exponent)


def power_of_tensor(self: TTensor, exponent: float) -> Value:
    # Eager takes the root, which is NaN for negative infinity, where a power is infinity, or 0 for the inverse. Of
    # halves eager takes the power.
    if abs(exponent) != 0.5 or self.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return aten_pow_tensor_scalar(self, exponent)
    root = op.Sqrt(self)
    return root if exponent > 0 else op.Reciprocal(root)


def wide_of(value: Any) -> Value:
    # as eager, which computes with floats for halves
    return op.Cast(value, to=ir.DataType.FLOAT) if value.dtype == ir.DataType.FLOAT16 else value


def number_like(number: float, value: Any) -> Value:
    return op.CastLike(op.Constant(value=ir.tensor(np.array(number, np.float64))), value)


def logarithm(base: float) -> Callable[..., Value]:
    """Return the translation of a logarithm; the exporter takes the base's logarithm as float32."""

    def logarithm_of(self: TTensor) -> Value:
        return op.Div(op.Log(self), number_like(math.log(base), self))

    return logarithm_of


def log1p(self: TTensor) -> Value:
    # The exporter's log(1 + x) loses the digits of small numbers; the rounding error of 1 + x is added here.
    x = wide_of(self)
    one = number_like(1.0, x)
    above = op.Add(one, x)
    lost = op.Div(op.Sub(x, op.Sub(above, one)), above)
    return op.CastLike(op.Add(op.Log(above), op.Where(op.IsNaN(lost), number_like(0.0, x), lost)), self)


def gelu(self: TTensor, approximate: str = "none") -> Value:
    # ONNX Runtime holds the numbers of the approximation as float32.
    if approximate == "none" or self.dtype != ir.DataType.DOUBLE:
        return op.Gelu(self, approximate=approximate)
    cube = op.Mul(op.Mul(self, self), self)
    inner = op.Add(self, op.Mul(number_like(0.044715, self), cube))
    tanh = op.Tanh(op.Mul(number_like(math.sqrt(2 / math.pi), self), inner))
    return op.Mul(op.Mul(number_like(0.5, self), self), op.Add(number_like(1.0, self), tanh))


def elu(self: TTensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    # The exporter also scales numbers above 0 by `input_scale`.
    if (scale, input_scale) == (1.0, 1.0):
        return op.Elu(self, alpha=alpha)
    below = op.Elu(op.Mul(self, number_like(input_scale, self)), alpha=alpha * scale)
    return op.Where(op.Greater(self, number_like(0.0, self)), op.Mul(self, number_like(scale, self)), below)


def expm1(self: TTensor) -> Value:
    # The exporter's exp(x) - 1 loses the digits of small numbers.
    x = wide_of(self)
    one, two = number_like(1.0, x), number_like(2.0, x)
    half = op.Tanh(op.Div(x, two))
    small = op.Div(op.Mul(two, half), op.Sub(one, half))
    return op.CastLike(op.Where(op.Less(op.Abs(x), one), small, op.Sub(op.Exp(x), one)), self)


def squeeze_dims(self: TTensor, dim: Sequence[int]) -> Value:
    # Eager passes over dimensions that are not of size 1.
    shape: Any = self.shape
    dims = sorted({axis % len(shape) for axis in dim} if shape else ())
    ones = [axis for axis in dims if shape[axis] == 1]
    return op.Squeeze(self, op.Constant(value_ints=ones)) if ones else op.Identity(self)


def squeeze_dim(self: TTensor, dim: int) -> Value:
    # As with several dimensions.
    return squeeze_dims(self, [dim])


def variance(
    self: TTensor, dim: Sequence[int] | None = None, correction: float | None = None, keepdim: bool = False
) -> Value:
    # Eager divides by no less than 0 where there are fewer elements than are subtracted.
    shape: Any = self.shape
    rank = len(shape)
    axes = op.Constant(value_ints=list(dim or range(rank)))
    wide = wide_of(self)
    distance = op.Sub(wide, op.ReduceMean(wide, axes))
    total = op.ReduceSum(op.Mul(distance, distance), axes, keepdims=int(keepdim))
    count = count_elements(self, axes, wide)
    subtracted = op.CastLike(op.Constant(value_float=float(1 if correction is None else correction)), wide)
    zero = op.CastLike(op.Constant(value_float=0.0), wide)
    return op.CastLike(op.Div(total, op.Max(op.Sub(count, subtracted), zero)), self)


def mean_dim(self: TTensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Value:
    # Eager's mean of no elements is NaN, ONNX Runtime's 0.
    shape: Any = self.shape
    if not shape:
        return op.Identity(self)
    dims = list(dim or range(len(shape)))
    axes = op.Constant(value_ints=dims)
    if all(isinstance(shape[axis], int) and shape[axis] for axis in dims):
        return op.ReduceMean(self, axes, keepdims=int(keepdim))
    wide = wide_of(self)
    total = op.ReduceSum(wide, axes, keepdims=int(keepdim))
    return op.CastLike(op.Div(total, count_elements(self, axes, wide)), self)


def any_dims(self: TTensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Value:
    # Without elements, `any` is false; the maximum over an empty set is the lowest number.
    shape: Any = self.shape
    truth = op.Cast(self, to=ir.DataType.BOOL)
    axes = list(range(len(shape))) if dim is None else list(dim)
    if not shape or not axes:
        return truth
    greatest = op.ReduceMax(op.Cast(truth, to=ir.DataType.INT64), op.Constant(value_ints=axes), keepdims=int(keepdim))
    return op.Greater(greatest, op.Constant(value_int=0))


def any_dim(self: TTensor, dim: int, keepdim: bool = False) -> Value:
    return any_dims(self, [dim], keepdim)


def group_norm(
    self: TTensor,
    weight: TTensor | None = None,
    bias: TTensor | None = None,
    rows: INT64 | None = None,
    channels: INT64 | None = None,
    size: INT64 | None = None,
    group: int = 1,
    eps: float = 1e-5,
) -> Value:
    # The exporter's reshape infers a size, which is impossible without elements.
    groups = op.Constant(value_ints=[group])
    length = op.Div(op.ReduceProd(op.Shape(self, start=1)), groups)
    flat = op.Reshape(self, op.Concat(op.Shape(self, start=0, end=1), groups, length, axis=0), allowzero=1)
    one, zero = (op.Expand(op.CastLike(op.Constant(value_float=number), self), groups) for number in (1.0, 0.0))
    result = op.Reshape(op.InstanceNormalization(flat, one, zero, epsilon=eps), op.Shape(self), allowzero=1)
    shape: Any = self.shape
    behind = op.Constant(value_ints=list(range(1, len(shape) - 1)))
    if weight is not None:
        result = op.Mul(result, op.Unsqueeze(weight, behind))
    if bias is not None:
        result = op.Add(result, op.Unsqueeze(bias, behind))
    # nothing uses the other results
    mean = op.ReduceMean(flat, op.Constant(value_ints=[2]), keepdims=0)
    return result, mean, op.Identity(mean)


def sort_stable(self: TTensor, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Value:
    # among equal elements, the lower place comes first
    shape: Any = self.shape
    if not shape:
        return op.Identity(self), op.Constant(value_int=0)
    place = dim % len(shape)
    count = op.Shape(self, start=place, end=place + 1)
    return op.TopK(self, count, axis=place, largest=int(descending))


def count_elements(self: Value, axes: Value, like: Value) -> Value:
    return op.CastLike(op.ReduceProd(op.Gather(op.Shape(self), axes), keepdims=0), like)


TRANSLATIONS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.any.dim: any_dim,
    torch.ops.aten.any.dims: any_dims,
    torch.ops.aten.clamp.default: clamp,
    torch.ops.aten.copy.default: copy,
    torch.ops.aten.elu.default: elu,
    torch.ops.aten.expm1.default: expm1,
    torch.ops.aten.gelu.default: gelu,
    torch.ops.aten.log1p.default: log1p,
    torch.ops.aten.log10.default: logarithm(10.0),
    torch.ops.aten.log2.default: logarithm(2.0),
    torch.ops.aten.mean.dim: mean_dim,
    torch.ops.aten.native_group_norm.default: group_norm,
    torch.ops.aten.pow.Scalar: power_of_number,
    torch.ops.aten.pow.Tensor_Scalar: power_of_tensor,
    torch.ops.aten.sort.stable: sort_stable,
    torch.ops.aten.squeeze.dim: squeeze_dim,
    torch.ops.aten.squeeze.dims: squeeze_dims,
    torch.ops.aten.var.correction: variance,
    torch.ops.aten.where.self: where,
}


def translate_nearest(
    input: TTensor, output_size: INT64 | None = None, scale_factors: Sequence[float] | None = None
) -> Value:
    if scale_factors is not None and all(is_regular(Fraction(factor)) for factor in scale_factors):
        scales = op.Constant(value_floats=[1.0, 1.0, *scale_factors])
        options = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
        return op.Resize(input, None, scales, None, **options)
    shape: Any = input.shape
    before = list(shape)[2:]
    factors: Any = scale_factors or [None] * len(before)
    # the exporter gives a list of numbers and of values
    sizes: Any = output_size
    after = [*map(size_after, before, factors)] if sizes is None else list(sizes)
    found: Value = input
    for axis in order_of_axes(list(zip(before, after, strict=True))):
        known, wanted, factor = before[axis], after[axis], factors[axis]
        if isinstance(known, int) and isinstance(wanted, int):
            if known == wanted and factor is None:
                continue
            chosen = op.Constant(value=ir.tensor(np.array(nearest_places(known, wanted, factor), np.int64)))
        else:
            chosen = write_places(input, axis + 2, wanted, factor)
        found = write_gather(found, chosen, axis + 2, len(shape))
    return op.Identity(input) if found is input else found


def size_after(before: object, factor: float) -> int | None:
    return int(before * factor) if isinstance(before, int) else None


def write_places(image: Value, axis: int, after: object, factor: float | None) -> Value:
    """Write eager's places in an axis of an image; `after` is a number, a value, or follows from the factor."""
    before = op.Squeeze(op.Shape(image, start=axis, end=axis + 1))
    if after is None:
        exact = op.Constant(value=ir.tensor(np.array(factor, np.float64)))
        after = op.Cast(op.Mul(op.Cast(before, to=ir.DataType.DOUBLE), exact), to=ir.DataType.INT64)
    elif isinstance(after, int):
        after = op.Constant(value_int=after)
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    steps = op.Cast(op.Range(zero, after, one), to=ir.DataType.FLOAT)
    if factor is None:
        scale = op.Div(*(op.Cast(size, to=ir.DataType.FLOAT) for size in (before, after)))
    else:
        scale = op.Constant(value=ir.tensor(np.array(1 / factor, np.float32)))
    return op.Min(op.Cast(op.Mul(steps, scale), to=ir.DataType.INT64), op.Sub(before, one))


def write_gather(image: Value, chosen: Value, axis: int, rank: int) -> Value:
    """Write a lookup along an axis; along the last axis, single elements would be copied, ten times as slowly."""
    if axis < rank - 1:
        return op.Gather(image, chosen, axis=axis)
    outward, inward = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    return op.Transpose(op.Gather(op.Transpose(image, perm=outward), chosen, axis=1), perm=inward)


NEAREST_TRANSLATIONS: Mapping[Any, Callable[..., Any]] = dict.fromkeys(NEAREST, translate_nearest)
