"""Interpolations in OpenVINO's own operators, with the places that eager computes.

OpenVINO's frontend takes the first place of an axis of one element for eager's middle, and divides where eager
multiplies. OpenVINO's own bilinear interpolation also divides, and is used where rounding does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import complete_arguments
from hatch_lower.backends.interpolation import between, nearest_places, order_of_axes, regular_factors
from hatch_lower.exir.lowering.unlike_eager import ENGINES_OWN, rounds_places

COARSE = 4096.0  # parts of 1 in the coarse part of a scale

Opset = Any
Value = Any


def write_nearest(node: Node, opset: Opset, image: Value, *sizes: Value) -> Value:
    """Write an interpolation to the nearest element; `sizes` are the values of dynamic sizes."""
    factors = regular_factors(node)
    if factors is not None:
        return interpolate(opset, image, np.array(factors, np.float32), "scales", mode="nearest")
    axes = axes_of(node, sizes)
    for axis in order_of_axes([(before, after) for before, after, _ in axes]):
        known, wanted, factor = axes[axis]
        if known is not None and isinstance(wanted, int):
            chosen = opset.constant(nearest_places(known, wanted, factor), dtype="int64")
        else:
            chosen = write_nearest_places(opset, image, axis + 2, wanted, factor)
        image = opset.gather(image, chosen, opset.constant(axis + 2, dtype="int64"))
    return image


def axes_of(node: Node, sizes: Sequence[Value]) -> list[tuple[int | None, Any, float | None]]:
    """Return, for each axis, the size before if known, the size after (a number, a value or `None`) and the factor."""
    given = complete_arguments(node)
    before = [size if isinstance(size, int) else None for size in given["input"].meta["val"].shape[2:]]
    steps: Sequence[float | None] = given["scale_factors"] or [None] * len(before)
    after: list[Any] = size_values(given["output_size"], sizes) or [
        None if size is None else int(size * float(factor or 1)) for size, factor in zip(before, steps, strict=True)
    ]
    return list(zip(before, after, steps, strict=True))


def write_nearest_places(opset: Opset, image: Value, axis: int, after: Value, factor: float | None) -> Value:
    """Write eager's places in an axis of an image; `after` is a number, a value, or follows from the factor."""
    before, steps, scale = write_steps(opset, image, axis, after, factor)
    found = opset.convert(opset.floor(opset.multiply(steps, scale)), "i64")
    return opset.minimum(found, opset.subtract(before, opset.constant(1, dtype="int64")))


def write_steps(
    opset: Opset, image: Value, axis: int, after: Value, factor: float | None
) -> tuple[Value, Value, Value]:
    """Write the size of an axis, the steps along the axis in the result, and the length of a step."""
    zero, one = (opset.constant(number, dtype="int64") for number in (0, 1))
    before = opset.gather(opset.shape_of(image), opset.constant(axis, dtype="int64"), zero)
    if after is None:
        after = opset.convert(opset.multiply(opset.convert(before, "f32"), openvino_constant(opset, factor)), "i64")
    elif isinstance(after, int):
        after = opset.constant(after, dtype="int64")
    steps = opset.convert(opset.range(zero, after, one, "i64"), "f32")
    if factor is None:
        scale = opset.divide(opset.convert(before, "f32"), opset.convert(after, "f32"))
    else:
        scale = openvino_constant(opset, 1 / factor)
    return before, steps, scale


def write_bilinear(node: Node, opset: Opset, image: Value, *sizes: Value) -> Value:
    given = complete_arguments(node)
    if rounds_places(node, ENGINES_OWN):
        return write_between(node, opset, image, *sizes)
    options = {"mode": "linear_onnx", "place": "align_corners" if given["align_corners"] else "half_pixel"}
    if given["scale_factors"] is not None:
        return interpolate(opset, image, np.array(given["scale_factors"], np.float32), "scales", **options)
    parts = [
        opset.constant([size], dtype="int64") if isinstance(size, int) else opset.unsqueeze(size, opset.constant(0))
        for size in size_values(given["output_size"], sizes)
    ]
    return interpolate(opset, image, opset.concat(parts, 0), "sizes", **options)


def write_between(node: Node, opset: Opset, image: Value, *sizes: Value) -> Value:
    """Write an interpolation between elements at eager's places, axis by axis."""
    axes = axes_of(node, sizes)
    for axis in order_of_axes([(before, after) for before, after, _ in axes]):
        before, after, factor = axes[axis]
        if isinstance(before, int) and isinstance(after, int):
            first, second, weights = between(before, after, factor)
            indices = [opset.constant(each, dtype="int64") for each in (first, second)]
            weight = openvino_constant(opset, weights)
        else:
            *indices, weight = write_pairs(opset, image, axis + 2, after, factor)
        inner = len(axes) - 1 - axis
        if inner:
            weight = opset.unsqueeze(weight, opset.constant(list(range(1, 1 + inner)), dtype="int64"))
        one, other = (opset.gather(image, each, opset.constant(axis + 2, dtype="int64")) for each in indices)
        rest = opset.subtract(openvino_constant(opset, 1.0), weight)
        image = opset.add(opset.multiply(one, rest), opset.multiply(other, weight))
    return image


def write_pairs(
    opset: Opset, image: Value, axis: int, after: Value, factor: float | None
) -> tuple[Value, Value, Value]:
    """Write two elements for each step in an axis, and the weight of the second.

    Eager multiplies and subtracts in a fused operation, which rounds once. Here the scale is the sum of two parts with
    few digits, whose products are exact up to some thousand steps, so that only the last sum is rounded.
    """
    before, steps, scale = write_steps(opset, image, axis, after, factor)
    half, zero, one = (openvino_constant(opset, number) for number in (0.5, 0.0, 1.0))
    middles = opset.add(steps, half)
    coarse = opset.floor(opset.multiply(scale, openvino_constant(opset, COARSE)))
    coarse = opset.multiply(coarse, openvino_constant(opset, 1 / COARSE))
    exact = opset.subtract(opset.multiply(coarse, middles), half)
    found = opset.add(exact, opset.multiply(opset.subtract(scale, coarse), middles))
    found = opset.maximum(found, zero)
    step = opset.constant(1, dtype="int64")
    last = opset.subtract(before, step)
    first = opset.minimum(opset.convert(opset.floor(found), "i64"), last)
    weight = opset.minimum(opset.subtract(found, opset.convert(first, "f32")), one)
    return first, opset.minimum(opset.add(first, step), last), weight


def size_values(given: Sequence[object] | None, values: Sequence[Value]) -> list[Any]:
    """Return sizes with values in the places of nodes."""
    known = iter(values)
    return [next(known) if isinstance(size, Node) else size for size in given or ()]


def interpolate(opset: Opset, image: Value, sizes: Value, kind: str, *, mode: str, place: str = "asymmetric") -> Value:
    axes = list(range(2, len(image.get_partial_shape())))
    return opset.interpolate(
        image,
        opset.constant(sizes) if isinstance(sizes, np.ndarray) else sizes,
        mode,
        kind,
        coordinate_transformation_mode=place,
        nearest_mode="floor",
        axes=opset.constant(axes, dtype="int64"),
    )


def openvino_constant(opset: Opset, value: float | Sequence[float] | None) -> Value:
    return opset.constant(value, dtype="float32")
