"""Interpolations in OpenVINO's own operators, with the places that eager computes.

Its frontend takes the first place of an axis of one element for eager's middle, and divides where eager multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import arguments_of
from hatch_lower.backends.interpolation import order_of_axes, places, regular_factors

Opset = Any
Value = Any


def write_nearest(node: Node, opset: Opset, image: Value, *sizes: Value) -> Value:
    """Write an interpolation to the nearest element; `sizes` stand for those that are no numbers."""
    factors = regular_factors(node)
    if factors is not None:
        return interpolate(opset, image, np.array(factors, np.float32), "scales", mode="nearest")
    given = arguments_of(node)
    before = [size if isinstance(size, int) else None for size in given["input"].meta["val"].shape[2:]]
    steps: Sequence[float | None] = given["scale_factors"] or [None] * len(before)
    after: list[Any] = values_of(given["output_size"], sizes) or [
        None if size is None else int(size * float(factor or 1)) for size, factor in zip(before, steps, strict=True)
    ]
    for axis in order_of_axes(list(zip(before, after, strict=True))):
        known, wanted, factor = before[axis], after[axis], steps[axis]
        if known is not None and isinstance(wanted, int):
            chosen = opset.constant(places(known, wanted, factor), dtype="int64")
        else:
            chosen = write_places(opset, image, axis + 2, wanted, factor)
        image = opset.gather(image, chosen, opset.constant(axis + 2, dtype="int64"))
    return image


def write_places(opset: Opset, image: Value, axis: int, after: Value, factor: float | None) -> Value:
    """Write eager's places in an axis of an image; `after` is a number, a value, or follows from the factor."""
    zero, one = (opset.constant(number, dtype="int64") for number in (0, 1))
    before = opset.gather(opset.shape_of(image), opset.constant(axis, dtype="int64"), zero)
    if after is None:
        after = opset.convert(opset.multiply(opset.convert(before, "f32"), constant(opset, factor)), "i64")
    elif isinstance(after, int):
        after = opset.constant(after, dtype="int64")
    steps = opset.convert(opset.range(zero, after, one, "i64"), "f32")
    if factor is None:
        scale = opset.divide(opset.convert(before, "f32"), opset.convert(after, "f32"))
    else:
        scale = constant(opset, 1 / factor)
    found = opset.convert(opset.floor(opset.multiply(steps, scale)), "i64")
    return opset.minimum(found, opset.subtract(before, one))


def write_bilinear(node: Node, opset: Opset, image: Value, *sizes: Value) -> Value:
    given = arguments_of(node)
    options = {"mode": "linear_onnx", "place": "align_corners" if given["align_corners"] else "half_pixel"}
    if given["scale_factors"] is not None:
        return interpolate(opset, image, np.array(given["scale_factors"], np.float32), "scales", **options)
    parts = [
        opset.constant([size], dtype="int64") if isinstance(size, int) else opset.unsqueeze(size, opset.constant(0))
        for size in values_of(given["output_size"], sizes)
    ]
    return interpolate(opset, image, opset.concat(parts, 0), "sizes", **options)


def values_of(given: Sequence[object] | None, values: Sequence[Value]) -> list[Any]:
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


def constant(opset: Opset, value: float | None) -> Value:
    return opset.constant(value, dtype="float32")
