"""Translations of interpolations to the nearest element, with the places that eager computes.

ONNX's own interpolation divides, where eager multiplies by the rounded inverse. It is used for factors by which both
give the same places. Otherwise the elements are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import INT64
from onnxscript.function_libs.torch_lib.tensor_typing import TTensor

from hatch_lower.backends.interpolation import NEAREST, is_regular, order_of_axes, places
from hatch_lower.backends.onnxruntime.translations import Value, op


def nearest(input: TTensor, output_size: INT64 | None = None, scale_factors: Sequence[float] | None = None) -> Value:
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
            chosen = op.Constant(value=ir.tensor(np.array(places(known, wanted, factor), np.int64)))
        else:
            chosen = write_places(input, axis + 2, wanted, factor)
        found = look_up(found, chosen, axis + 2, len(shape))
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


def look_up(image: Value, chosen: Value, axis: int, rank: int) -> Value:
    """Write a lookup along an axis; along the last axis, single elements would be copied, ten times as slowly."""
    if axis < rank - 1:
        return op.Gather(image, chosen, axis=axis)
    outward, inward = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    return op.Transpose(op.Gather(op.Transpose(image, perm=outward), chosen, axis=1), perm=inward)


NEAREST_TRANSLATIONS: Mapping[Any, Callable[..., Any]] = dict.fromkeys(NEAREST, nearest)
