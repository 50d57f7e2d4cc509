"""Translations of the operators by which PT2E quantizes, which torch's exporter translates for some arguments only.

Between a `DequantizeLinear` of both its operands and a `QuantizeLinear` of its result, ONNX Runtime computes a
convolution with integers. For products the module `integers` writes integer operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import FLOAT, INT64
from onnxscript.function_libs.torch_lib.tensor_typing import TTensor

from hatch_lower.backends.onnxruntime.translations import Value, op
from hatch_lower.runtime.torch_private.quantized import quantized_decomposed

# `out_dtype` is float32 if given: `operators.json` lists these operators for no other result.


def quantize_per_tensor(
    input: FLOAT, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int
) -> Value:
    literals = onnx_constant(scale, ir.DataType.FLOAT), onnx_constant(zero_point, dtype)
    return clip_quantized(op.QuantizeLinear(input, *literals), quant_min, quant_max, dtype)


def quantize_per_tensor_tensor(
    input: FLOAT, scale: TTensor, zero_point: INT64, quant_min: int, quant_max: int, dtype: int
) -> Value:
    quantized = op.QuantizeLinear(input, scalar(scale, ir.DataType.FLOAT), scalar(zero_point, dtype))
    return clip_quantized(quantized, quant_min, quant_max, dtype)


def dequantize_per_tensor(
    input: TTensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Value:
    return op.DequantizeLinear(input, onnx_constant(scale, ir.DataType.FLOAT), onnx_constant(zero_point, dtype))


def dequantize_per_tensor_tensor(
    input: TTensor,
    scale: TTensor,
    zero_point: INT64,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Value:
    return op.DequantizeLinear(input, scalar(scale, ir.DataType.FLOAT), scalar(zero_point, dtype))


def quantize_per_channel(
    input: FLOAT, scales: TTensor, zero_points: INT64, axis: int, quant_min: int, quant_max: int, dtype: int
) -> Value:
    quantized = op.QuantizeLinear(
        input, op.Cast(scales, to=ir.DataType.FLOAT), op.Cast(zero_points, to=dtype), axis=axis
    )
    return clip_quantized(quantized, quant_min, quant_max, dtype)


def dequantize_per_channel(
    input: TTensor,
    scales: TTensor,
    zero_points: INT64,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Value:
    return op.DequantizeLinear(input, op.Cast(scales, to=ir.DataType.FLOAT), op.Cast(zero_points, to=dtype), axis=axis)


def choose_qparams(input: FLOAT, quant_min: int, quant_max: int, eps: float, dtype: int) -> Value:
    # Step by step as in eager, since a scale that is off by one bit changes all values quantized with the scale.
    zero = onnx_constant(0.0, ir.DataType.FLOAT)
    least = op.Min(op.ReduceMin(input, keepdims=0), zero)
    greatest = op.Max(op.ReduceMax(input, keepdims=0), zero)
    steps = onnx_constant(float(quant_max - quant_min), ir.DataType.FLOAT)
    scale = op.Max(op.Div(op.Sub(greatest, least), steps), onnx_constant(eps, ir.DataType.FLOAT))
    below = op.Cast(op.Round(op.Div(least, scale)), to=ir.DataType.INT64)
    zero_point = op.Clip(
        op.Sub(onnx_constant(quant_min, ir.DataType.INT64), below),
        onnx_constant(quant_min, ir.DataType.INT64),
        onnx_constant(quant_max, ir.DataType.INT64),
    )
    one = op.Constant(value_ints=[1])
    return op.Reshape(op.Cast(scale, to=ir.DataType.DOUBLE), one), op.Reshape(zero_point, one)


def translate_int_mm(self: TTensor, mat2: TTensor) -> Value:
    # Make the first operand unsigned: ONNX Runtime is slow for two signed operands.
    if self.dtype == ir.DataType.UINT8:
        return op.MatMulInteger(self, mat2)
    moved = op.Add(op.Cast(self, to=ir.DataType.INT32), onnx_constant(128, ir.DataType.INT32))
    return op.MatMulInteger(op.Cast(moved, to=ir.DataType.UINT8), mat2, onnx_constant(128, ir.DataType.UINT8))


def onnx_constant(value: float, dtype: int) -> Value:
    return op.Constant(value=ir.tensor(np.array(value, dtype=ir.DataType(dtype).numpy())))


def scalar(value: Value, dtype: int) -> Value:
    return op.Squeeze(op.Cast(value, to=dtype))


def clip_quantized(quantized: Value, quant_min: int, quant_max: int, dtype: int) -> Value:
    # ONNX saturates at the limits of the dtype.
    limits = np.iinfo(ir.DataType(dtype).numpy())
    if (quant_min, quant_max) == (limits.min, limits.max):
        return quantized
    return op.Clip(quantized, onnx_constant(quant_min, dtype), onnx_constant(quant_max, dtype))


QUANTIZED: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._int_mm.default: translate_int_mm,
    quantized_decomposed.choose_qparams.tensor: choose_qparams,
    quantized_decomposed.dequantize_per_channel.default: dequantize_per_channel,
    quantized_decomposed.dequantize_per_tensor.default: dequantize_per_tensor,
    quantized_decomposed.dequantize_per_tensor.tensor: dequantize_per_tensor_tensor,
    quantized_decomposed.quantize_per_channel.default: quantize_per_channel,
    quantized_decomposed.quantize_per_tensor.default: quantize_per_tensor,
    quantized_decomposed.quantize_per_tensor.tensor: quantize_per_tensor_tensor,
}
