"""Operations that are written in OpenVINO's own operators, past the translations of its frontend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Opset: TypeAlias = Any  # OpenVINO's operators
Value: TypeAlias = Any  # what one of them gives


class Direct:
    """A call in a prepared graph that knows what it becomes; the frontend finds it by its name."""

    def __init__(self, name: str, write: Callable[..., Value]) -> None:
        self.__name__ = name
        self._write = write

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, opset: Opset, *inputs: Value) -> Value:
        return self._write(opset, *inputs)

    def convert(self, openvino: Any, context: Any) -> Value:
        """Write the operation for a node of the frontend's; name what was written after it."""
        inputs = [context.get_input(place) for place in range(context.get_input_size())]
        result = self(openvino.opset13, *inputs)
        known = {value.get_node().get_friendly_name() for value in inputs}
        pending = [result]
        while pending:
            node = pending.pop()
            if node.get_friendly_name() not in known:
                known.add(node.get_friendly_name())
                pending += [value.get_node() for value in node.input_values()]
                node.set_friendly_name(f"{self}/{node.get_type_name()}")
        return result.outputs()


def write_copy(opset: Opset, value: Value) -> Value:
    return opset.convert(value, value.get_element_type())


def write_slices(dim: int, size: int, rank: int) -> Callable[..., Value]:
    """Return what writes values to the places in one dimension of a table that an index of a rank names."""

    def write(opset: Opset, table: Value, index: Value, values: Value) -> Value:
        before, after = sizes_around(opset, table, dim, dim + 1)
        places = opset.shape_of(index) if rank else opset.constant([], dtype="int64")
        values = opset.broadcast(opset.convert_like(values, table), opset.concat([before, places, after], 0))
        if not rank:
            index, values = opset.unsqueeze(index, 0), opset.unsqueeze(values, dim)
        # a negative index counts from the end
        index = opset.floor_mod(index, opset.constant(size, dtype=index.get_element_type()))
        return opset.scatter_update(table, index, values, opset.constant(dim, dtype="int32"))

    return write


def write_points(dim: int, sizes: Sequence[int]) -> Callable[..., Value]:
    """Return what gives the values at points of neighbouring dimensions, from `dim` on, which several indices name."""

    def write(opset: Opset, table: Value, *indices: Value) -> Value:
        place = opset.constant(0, dtype="int64")
        for index, size in zip(indices, sizes, strict=True):
            length = opset.constant(size, dtype="int64")
            # a negative index counts from the end
            step = opset.floor_mod(opset.convert(index, "i64"), length)
            place = opset.add(opset.multiply(place, length), step)
        before, after = sizes_around(opset, table, dim, dim + len(sizes))
        joined = opset.concat([before, opset.constant([math.prod(sizes)], dtype="int64"), after], 0)
        return opset.gather(opset.reshape(table, joined, False), place, opset.constant(dim, dtype="int64"))

    return write


def sizes_around(opset: Opset, table: Value, first: int, end: int) -> Sequence[Value]:
    """Return the sizes of a table before a dimension, and from another on."""
    sizes = opset.shape_of(table)
    spans = ((0, first, 1), (end, len(table.get_partial_shape()), 1))
    return [opset.slice(sizes, *(opset.constant([bound], dtype="int64") for bound in span)) for span in spans]


def write_windows(dim: int, places: list[list[int]], rank: int) -> Callable[..., Value]:
    """Return what gives windows along a dimension, which become one dimension more, behind the others."""

    def write(opset: Opset, value: Value) -> Value:
        # The frontend's own translation fails for some ranks.
        found = opset.gather(value, opset.constant(places, dtype="int64"), opset.constant(dim, dtype="int64"))
        order = [*(place for place in range(rank + 1) if place != dim + 1), dim + 1]
        return opset.transpose(found, opset.constant(order, dtype="int64"))

    return write


def write_norm(order: float, dims: Sequence[int], *, keeps: bool) -> Callable[..., Value]:
    """Return what gives the norm of vectors; without dimensions each number is one."""

    def write(opset: Opset, value: Value) -> Value:
        # the frontend's translation counts along one dimension only, wants dimensions, and loses a NaN
        sizes = opset.absolute(value)
        if order == 0:
            sizes = opset.convert(opset.not_equal(value, number(opset, 0)), "f32")
        axes = opset.constant(dims, dtype="int64")
        if not dims:
            return sizes
        if order == 0:
            return opset.reduce_sum(sizes, axes, keeps)
        if order in (1, 2):
            return (opset.reduce_l1 if order == 1 else opset.reduce_l2)(value, axes, keeps)
        if math.isinf(order):
            found = (opset.reduce_max if order > 0 else opset.reduce_min)(sizes, axes, keeps)
            if order < 0:  # the kernel's least of infinities is the greatest number
                infinite = opset.reduce_logical_and(opset.is_inf(value), axes, keeps)
                found = opset.select(infinite, number(opset, math.inf), found)
            undefined = opset.reduce_logical_or(opset.is_nan(value), axes, keeps)
            return opset.select(undefined, number(opset, math.nan), found)
        powers = opset.power(sizes, number(opset, order))
        return opset.power(opset.reduce_sum(powers, axes, keeps), number(opset, 1 / order))

    return write


def write_log1p(opset: Opset, value: Value) -> Value:
    # The frontend's log(1 + x) loses the digits of small numbers: what rounding 1 + x took is added here. Of a sum of 1
    # and an exponential OpenVINO would make its softplus, which is 4e-6 where it should be nearly 0.
    x = opset.convert(value, "f32")
    above = opset.subtract(x, number(opset, -1))
    lost = opset.divide(opset.subtract(x, opset.subtract(above, number(opset, 1))), above)
    return opset.add(opset.log(above), opset.select(opset.is_nan(lost), number(opset, 0), lost))


def write_quantise(scale: float, zero_point: int, least: int, greatest: int, dtype: str) -> Callable[..., Value]:
    """Return what quantises numbers as eager does, and what integers' kernels are recognised by."""

    def write(opset: Opset, value: Value) -> Value:
        # `fake_quantize` of numbers that are whole before it: by itself it would round others where a number lies
        # between two, for it rounds to an even number of steps from the least, and eager from zero
        value = opset.convert(value, "f32")  # the frontend gives whole numbers as integers
        steps = opset.round(opset.multiply(value, number(opset, 1.0 / scale)), "half_to_even")
        bounds = (least - zero_point, greatest - zero_point, least, greatest)
        fitted = opset.fake_quantize(steps, *(number(opset, bound) for bound in bounds), greatest - least + 1)
        return opset.convert(fitted, dtype)

    return write


def write_dequantise(scale: float, zero_point: int, *, hidden: bool) -> Callable[..., Value]:
    """Return what gives the numbers of quantised ones; `hidden`: integers' kernels do not recognise it."""

    def write(opset: Opset, value: Value) -> Value:
        steps = opset.convert(value, "f32")
        if hidden:
            steps = opset.maximum(steps, number(opset, float("-inf")))
        return opset.multiply(opset.subtract(steps, number(opset, zero_point)), number(opset, scale))

    return write


def write_dequantise_channels(axis: int, rank: int) -> Callable[..., Value]:
    def write(opset: Opset, value: Value, scales: Value, zero_points: Value = None) -> Value:
        shape = opset.constant([-1 if dim == axis % rank else 1 for dim in range(rank)], dtype="int64")
        steps = opset.convert(value, "f32")
        if zero_points is not None:
            steps = opset.subtract(steps, opset.reshape(opset.convert(zero_points, "f32"), shape, False))
        return opset.multiply(steps, opset.reshape(scales, shape, False))

    return write


def write_choice(rank: int, least: int, greatest: int, eps: float) -> Callable[..., Value]:
    """Return what gives the scale and the zero point that spread integers over the numbers of a tensor, and zero."""

    def write(opset: Opset, value: Value) -> Value:
        axes = opset.constant(list(range(rank)), dtype="int64")
        bottom = opset.minimum(opset.reduce_min(value, axes), number(opset, 0))
        top = opset.maximum(opset.reduce_max(value, axes), number(opset, 0))
        scale = opset.divide(opset.subtract(top, bottom), number(opset, greatest - least))
        scale = opset.maximum(scale, number(opset, eps))
        below = opset.round(opset.divide(bottom, scale), "half_to_even")
        zero_point = opset.clamp(opset.subtract(number(opset, least), below), least, greatest)
        first = opset.constant(0, dtype="int64")
        return opset.concat([opset.unsqueeze(found, first) for found in (scale, zero_point)], 0)

    return write


def write_part(place: int) -> Callable[..., Value]:
    """Return what gives the scale (0) or the zero point (1) of a choice."""

    def write(opset: Opset, choice: Value) -> Value:
        return opset.gather(choice, opset.constant([place], dtype="int64"), opset.constant(0, dtype="int64"))

    return write


def write_quantise_chosen(least: int, greatest: int, dtype: str) -> Callable[..., Value]:
    def write(opset: Opset, value: Value, scale: Value, zero_point: Value) -> Value:
        inverse = opset.divide(number(opset, 1), scale)
        steps = opset.round(opset.multiply(value, inverse), "half_to_even")
        return opset.convert(opset.clamp(opset.add(steps, zero_point), least, greatest), dtype)

    return write


def write_dequantise_chosen(opset: Opset, value: Value, scale: Value, zero_point: Value) -> Value:
    return opset.multiply(opset.subtract(opset.convert(value, "f32"), zero_point), scale)


def write_product(opset: Opset, left: Value, right: Value) -> Value:
    # a product of integers would have their type
    product = opset.matmul(opset.convert(left, "f32"), opset.convert(right, "f32"), False, False)
    return opset.convert(product, "i32")


def number(opset: Opset, value: float) -> Value:
    return opset.constant(value, dtype="float32")
