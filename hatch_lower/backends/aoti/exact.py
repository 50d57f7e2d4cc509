"""Functions for which inductor's formulas lose all digits of some numbers, in formulas that do not.

Inductor writes `expm1(x)` as `exp(x) - 1` and `atanh(x)` by the logarithm of `(1 + x) / (1 - x)`, which are 0
for numbers below 6e-8, and `acosh(x)` with the square of `x`, which is infinite from 2e19 on. Its standard deviation
is the root of a variance of the same dtype, infinite from 2e19 on and 0 below 3e-23, where eager computes with
float64; the same holds for `std_mean`. The absolute value of the least int8 or int16 is a number of C++'s int, where
eager's wraps around. The power -0.5 of -0.0 and of minus infinity is the power of C++, where eager computes the
reciprocal of a root. Inductor also takes `elu` and `selu` apart into `expm1`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.runtime.torch_private.operators import OpOverload

Call = Callable[..., Any]  # writes an operation

STD = torch.ops.aten.std.correction
STD_MEAN = torch.ops.aten.std_mean.correction
POW = torch.ops.aten.pow.Tensor_Scalar
RSQRT_DTYPES = (torch.float32, torch.float64, torch.bfloat16)  # for other dtypes eager computes C++'s power, too
LARGE = 2.0**28  # from here on `x * x - 1` is `x * x`, in float64 too


def is_inexact_function(node: Node) -> bool:
    op = torch_operator(node.target)
    if op is torch.ops.aten.abs.default:
        return node.meta["val"].dtype in (torch.int8, torch.int16)
    if op is POW:
        return bool(node.args[1] == -0.5) and node.meta["val"].dtype in RSQRT_DTYPES
    return op in FORMULAS or op in (STD, STD_MEAN)


def write_exactly(call: Call, node: Node, x: Any, *rest: Any, **kwargs: Any) -> Any:
    """Write such a node by calls of operators; half precision is computed in float32, as in eager."""
    if torch_operator(node.target) is STD_MEAN:
        return write_std_mean(call, node, x, *rest, **kwargs)
    dtype = node.meta["val"].dtype
    convert = torch.ops.prims.convert_element_type.default
    if torch_operator(node.target) is STD:
        return call(convert, call(STD, call(convert, x, torch.float64), *rest, **kwargs), dtype)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if torch_operator(node.target) is POW:
        return call(convert, call(torch.ops.aten.rsqrt.default, call(convert, x, wide)), dtype)
    result = FORMULAS[torch_operator(node.target)](call, call(convert, x, wide), *rest, **kwargs)
    return call(convert, result, dtype)


def write_std_mean(call: Call, node: Node, x: Any, dims: Any = None, *, keepdim: bool = False, **kwargs: Any) -> Any:
    aten, convert = torch.ops.aten, torch.ops.prims.convert_element_type.default
    wide = call(convert, x, torch.float64)
    results = call(STD, wide, dims, keepdim=keepdim, **kwargs), call(aten.mean.dim, wide, dims, keepdim)
    return tuple(call(convert, result, node.meta["val"][0].dtype) for result in results)


def write_expm1(call: Call, x: Any) -> Any:
    aten = torch.ops.aten
    half = call(aten.tanh.default, call(aten.mul.Tensor, x, 0.5))
    return call(aten.mul.Tensor, half, call(aten.add.Tensor, call(aten.exp.default, x), 1.0))


def write_elu(call: Call, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    aten = torch.ops.aten
    below = call(aten.mul.Tensor, write_expm1(call, call(aten.mul.Tensor, x, input_scale)), alpha * scale)
    return call(aten.where.self, call(aten.gt.Scalar, x, 0), call(aten.mul.Tensor, x, scale), below)


def atanh(call: Call, x: Any) -> Any:
    aten = torch.ops.aten
    size = call(aten.abs.default, x)
    ratio = call(aten.div.Tensor, call(aten.mul.Tensor, size, 2.0), call(aten.rsub.Scalar, size, 1.0))
    half = call(aten.mul.Tensor, call(aten.log1p.default, ratio), 0.5)
    return call(aten.copysign.Tensor, half, x)


def absolute(call: Call, x: Any) -> Any:
    aten = torch.ops.aten
    return call(aten.maximum.default, x, call(aten.neg.default, x))


def acosh(call: Call, x: Any) -> Any:
    aten = torch.ops.aten
    large = call(aten.add.Tensor, call(aten.log.default, x), math.log(2))
    return call(aten.where.self, call(aten.gt.Scalar, x, LARGE), large, call(aten.acosh.default, x))


FORMULAS: Mapping[OpOverload, Callable[..., Any]] = {
    torch.ops.aten.abs.default: absolute,
    torch.ops.aten.acosh.default: acosh,
    torch.ops.aten.atanh.default: atanh,
    torch.ops.aten.elu.default: write_elu,
    torch.ops.aten.expm1.default: write_expm1,
}
