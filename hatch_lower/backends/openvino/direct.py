"""Operations that are written in OpenVINO's own operators, past the translations of its frontend."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import complete_arguments
from hatch_lower.backends.interpolation import NEAREST
from hatch_lower.backends.openvino import claims
from hatch_lower.backends.openvino.interpolations import write_bilinear, write_nearest
from hatch_lower.exir.graph.operators import operator_name

Opset: TypeAlias = Any  # OpenVINO's operators
Value: TypeAlias = Any  # result of an operator

INTEGERS: Mapping[torch.dtype, str] = {torch.int8: "i8", torch.uint8: "u8"}
PRODUCTS = frozenset(claims.overloads("addmm bmm linear mm"))


class Direct:
    """A call in a prepared graph that writes its own OpenVINO operators; the frontend finds the call by its name."""

    def __init__(self, name: str, write: Callable[..., Value], operation: str = "") -> None:
        self.__name__ = name
        self._write = write
        self._operation = operation or name  # layers are named after it

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, opset: Opset, *inputs: Value) -> Value:
        return self._write(opset, *inputs)

    def convert(self, openvino: Any, context: Any) -> Value:
        """Write the operation for a node of the frontend's; name the new layers after the node."""
        inputs = [context.get_input(place) for place in range(context.get_input_size())]
        result = self(openvino.opset13, *inputs)
        known = {value.get_node().get_friendly_name() for value in inputs}
        pending = [result]
        while pending:
            node = pending.pop()
            if node.get_friendly_name() not in known:
                known.add(node.get_friendly_name())
                pending += [value.get_node() for value in node.input_values()]
                node.set_friendly_name(f"{self._operation}/{node.get_type_name()}")
        return result.outputs()[:1]


def write_copy(opset: Opset, value: Value) -> Value:
    # OpenVINO removes a conversion that changes nothing: a result of a dynamic size that equals an input would lie in
    # the memory of an earlier call. A kernel that repeats numbers once copies tensors, except tensors without
    # dimensions.
    rank = len(value.get_partial_shape())
    if not rank:
        return opset.convert(value, value.get_element_type())
    return opset.tile(value, opset.constant([1] * rank, dtype="int64"))


def write_part(place: int, opset: Opset, choice: Value) -> Value:
    """Write the scale (0) or the zero point (1) of a choice."""
    return opset.gather(choice, opset.constant([place], dtype="int64"), opset.constant(0, dtype="int64"))


def write_slices(node: Node, opset: Opset, table: Value, index: Value, values: Value) -> Value:
    """Write values to the indexed places in one dimension of a table."""
    (used,) = claims.lookups(node)
    dim, rank = used.dim, used.indices.meta["val"].dim()
    before, after = sizes_around(opset, table, dim, dim + 1)
    places = opset.shape_of(index) if rank else opset.constant([], dtype="int64")
    values = opset.broadcast(opset.convert_like(values, table), opset.concat([before, places, after], 0))
    if not rank:
        index, values = opset.unsqueeze(index, 0), opset.unsqueeze(values, dim)
    # a negative index counts from the end
    index = opset.floor_mod(index, opset.constant(int(used.size), dtype=index.get_element_type()))
    return opset.scatter_update(table, index, values, opset.constant(dim, dtype="int32"))


def write_points(node: Node, opset: Opset, table: Value, *indices: Value) -> Value:
    """Write the values at points of neighbouring dimensions, which several indices name."""
    found = claims.points_of(node)
    dim, zero = found[0].dim, opset.constant(0, dtype="int64")
    place = None
    for index, used in zip(indices, found, strict=True):
        if isinstance(used.size, int):
            length = opset.constant(used.size, dtype="int64")
        else:
            length = opset.gather(opset.shape_of(table), opset.constant(used.dim, dtype="int64"), zero)
        step = opset.convert(index, "i64")
        # a negative index counts from the end
        step = opset.select(opset.less(step, zero), opset.add(step, length), step)
        place = step if place is None else opset.add(opset.multiply(place, length), step)
    joined = opset.reshape(table, joined_sizes(opset, table, dim, dim + len(found)), True)
    return opset.gather(joined, place, opset.constant(dim, dtype="int64"))


def joined_sizes(opset: Opset, table: Value, first: int, end: int) -> Value:
    """Return the sizes of a table with a span of dimensions joined."""
    # a reshape copies the size of a dimension where it finds 0
    before = opset.constant([*[0] * first, -1], dtype="int64")
    return opset.concat([before, sizes_around(opset, table, first, end)[1]], 0)


def write_gathered(node: Node, opset: Opset, table: Value, index: Value) -> Value:
    dim = complete_arguments(node)["dim"] % len(table.get_partial_shape())
    return opset.gather_elements(table, index, dim)


def write_sign(node: Node, opset: Opset, value: Value) -> Value:
    # OpenVINO's sign of NaN is NaN, and eager's is 0
    return opset.select(opset.is_nan(value), number(opset, 0), opset.sign(value))


def write_truth(node: Node, opset: Opset, value: Value) -> Value:
    # OpenVINO's own conversion gives false for NaN
    return opset.not_equal(value, number(opset, 0))


def sizes_around(opset: Opset, table: Value, first: int, end: int) -> Sequence[Value]:
    """Return the sizes of a table before a dimension, and from another on."""
    sizes = opset.shape_of(table)
    spans = ((0, first, 1), (end, len(table.get_partial_shape()), 1))
    return [opset.slice(sizes, *(opset.constant([bound], dtype="int64") for bound in span)) for span in spans]


def write_windows(node: Node, opset: Opset, value: Value) -> Value:
    """Write windows along a dimension; the places in a window become an extra, last dimension."""
    # The frontend's own translation fails for some ranks.
    given = complete_arguments(node)
    shape, size = given["self"].meta["val"].shape, given["size"]
    rank, dim = len(shape), given["dimension"] % len(shape)
    places = [list(range(start, start + size)) for start in range(0, shape[dim] - size + 1, given["step"])]
    found = opset.gather(value, opset.constant(places, dtype="int64"), opset.constant(dim, dtype="int64"))
    order = [*(place for place in range(rank + 1) if place != dim + 1), dim + 1]
    return opset.transpose(found, opset.constant(order, dtype="int64"))


def write_vector_norm(node: Node, opset: Opset, value: Value) -> Value:
    """Write the norm of vectors; without dimensions each number is a vector."""
    # the frontend's translation counts along one dimension only, requires dimensions, and loses a NaN
    given = complete_arguments(node)
    order, keeps, rank = given["ord"], given["keepdim"], given["self"].meta["val"].dim()
    dims = list(given["dim"] or range(rank)) if rank else []  # a list that is empty or left stands for all
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
        if order < 0:  # the kernel's minimum of infinities is the largest number
            infinite = opset.reduce_logical_and(opset.is_inf(value), axes, keeps)
            found = opset.select(infinite, number(opset, math.inf), found)
        undefined = opset.reduce_logical_or(opset.is_nan(value), axes, keeps)
        return opset.select(undefined, number(opset, math.nan), found)
    powers = opset.power(sizes, number(opset, order))
    return opset.power(opset.reduce_sum(powers, axes, keeps), number(opset, 1 / order))


def write_log1p(node: Node, opset: Opset, value: Value) -> Value:
    # The frontend's log(1 + x) loses the digits of small numbers: the rounding error of 1 + x is added here. From a sum
    # of 1 and an exponential OpenVINO would make its softplus, which is 4e-6 where the result should be nearly 0.
    x = opset.convert(value, "f32")
    above = opset.subtract(x, number(opset, -1))
    lost = opset.divide(opset.subtract(x, opset.subtract(above, number(opset, 1))), above)
    return opset.add(opset.log(above), opset.select(opset.is_nan(lost), number(opset, 0), lost))


def write_quantize(node: Node, opset: Opset, value: Value) -> Value:
    """Quantize numbers as eager does, in a form that integer kernels match."""
    # Round before `fake_quantize`: halfway between two integers, `fake_quantize` alone rounds to an even number of
    # steps from the lowest, and eager to an even integer
    given = complete_arguments(node)
    zero_point, least, greatest = given["zero_point"], given["quant_min"], given["quant_max"]
    value = opset.convert(value, "f32")  # the frontend gives whole numbers as integers
    steps = opset.round(opset.multiply(value, number(opset, 1.0 / given["scale"])), "half_to_even")
    raised = raise_of(node)
    bounds = (least - zero_point, greatest - zero_point, least + raised, greatest + raised)
    fitted = opset.fake_quantize(steps, *(number(opset, bound) for bound in bounds), greatest - least + 1)
    return opset.convert(fitted, "u8" if raised else INTEGERS[given["dtype"]])


def raise_of(node: Node) -> int:
    """Return the number that makes the integers of a quantization unsigned when added.

    OpenVINO's kernels of convolutions take unsigned integers on all processors. OpenVINO converts signed integers: by
    other steps if there are not 256 steps, and to float32 if a processor has AMX and zero is not 0.
    """
    given = complete_arguments(node) if is_call(node, (claims.QUANTIZE,)) else {}
    if given.get("dtype") is not torch.int8 or not all(is_call(user, (claims.DEQUANTIZE,)) for user in node.users):
        return 0
    symmetric = given["zero_point"] == 0 and (given["quant_min"], given["quant_max"]) in ((-128, 127), (-127, 127))
    return 0 if symmetric and all(takes_signs(user) for each in node.users for user in each.users) else 128


def takes_signs(node: Node) -> bool:
    """Return whether OpenVINO's kernels of an operation take integers with a sign on all processors."""
    grouped = is_call(node, claims.CONVOLUTIONS) and complete_arguments(node)["groups"] > 1
    return is_call(node, PRODUCTS) or (grouped and node.meta["val"].dim() == 5)


def is_call(node: Node, names: Collection[str]) -> bool:
    return node.op == "call_function" and operator_name(node.target) in names


def write_dequantize(node: Node, opset: Opset, value: Value) -> Value:
    given = complete_arguments(node)
    steps = opset.convert(value, "f32")
    zero_point = given["zero_point"] + raise_of(given["input"])
    # an operation without effect, which keeps integer kernels from matching
    if any(is_call(user, claims.ROUNDING) for user in node.users):
        steps = opset.maximum(steps, number(opset, float("-inf")))
    return opset.multiply(opset.subtract(steps, number(opset, zero_point)), number(opset, given["scale"]))


def write_dequantize_channels(
    node: Node, opset: Opset, value: Value, scales: Value, zero_points: Value = None
) -> Value:
    rank = node.meta["val"].dim()
    axis = complete_arguments(node)["axis"] % rank
    shape = opset.constant([-1 if dim == axis else 1 for dim in range(rank)], dtype="int64")
    steps = opset.convert(value, "f32")
    if zero_points is not None:
        steps = opset.subtract(steps, opset.reshape(opset.convert(zero_points, "f32"), shape, False))
    return opset.multiply(steps, opset.reshape(scales, shape, False))


def write_choice(node: Node, opset: Opset, value: Value) -> Value:
    """Write the scale and the zero point that spread integers over the numbers of a tensor, and zero."""
    given = complete_arguments(node)
    least, greatest, rank = given["quant_min"], given["quant_max"], given["input"].meta["val"].dim()
    axes = opset.constant(list(range(rank)), dtype="int64")
    bottom = opset.minimum(opset.reduce_min(value, axes), number(opset, 0))
    top = opset.maximum(opset.reduce_max(value, axes), number(opset, 0))
    scale = opset.divide(opset.subtract(top, bottom), number(opset, greatest - least))
    scale = opset.maximum(scale, number(opset, given["eps"]))
    below = opset.round(opset.divide(bottom, scale), "half_to_even")
    zero_point = opset.clamp(opset.subtract(number(opset, least), below), least, greatest)
    first = opset.constant(0, dtype="int64")
    return opset.concat([opset.unsqueeze(found, first) for found in (scale, zero_point)], 0)


def write_quantize_chosen(node: Node, opset: Opset, value: Value, scale: Value, zero_point: Value) -> Value:
    given = complete_arguments(node)
    inverse = opset.divide(number(opset, 1), scale)
    steps = opset.add(opset.round(opset.multiply(value, inverse), "half_to_even"), zero_point)
    return opset.convert(opset.clamp(steps, given["quant_min"], given["quant_max"]), INTEGERS[given["dtype"]])


def write_dequantize_chosen(node: Node, opset: Opset, value: Value, scale: Value, zero_point: Value) -> Value:
    return opset.multiply(opset.subtract(opset.convert(value, "f32"), zero_point), scale)


def write_product(node: Node, opset: Opset, left: Value, right: Value) -> Value:
    # a product of integers would have their type
    product = opset.matmul(opset.convert(left, "f32"), opset.convert(right, "f32"), False, False)
    return opset.convert(product, "i32")


def number(opset: Opset, value: float) -> Value:
    return opset.constant(value, dtype="float32")


# Operators that OpenVINO's frontend translates with other results than eager's. A writer gets the operation of the
# partition, OpenVINO's operators, and the translations of the operation's tensors.
WRITTEN: Mapping[str, Callable[..., Value]] = {
    "aten.gather.default": write_gathered,
    "aten.index.Tensor": write_points,  # a single index becomes another operator
    "aten.index_put.default": write_slices,
    "aten.linalg_vector_norm.default": write_vector_norm,
    "aten.log1p.default": write_log1p,
    "aten.sign.default": write_sign,
    "aten.unfold.default": write_windows,
    "aten.upsample_bilinear2d.vec": write_bilinear,
    **dict.fromkeys(map(str, NEAREST), write_nearest),
    claims.CHOOSE: write_choice,
    claims.DEQUANTIZE: write_dequantize,
    claims.DEQUANTIZE_CHANNELS: write_dequantize_channels,
    claims.DEQUANTIZE_CHOSEN: write_dequantize_chosen,
    claims.MULTIPLY_INTEGERS: write_product,
    claims.QUANTIZE: write_quantize,
    claims.QUANTIZE_CHOSEN: write_quantize_chosen,
}


def writer_of(node: Node) -> Callable[..., Value] | None:
    """Return the function that writes an operation; `None` for the frontend's own translation."""
    return write_truth if claims.makes_truths(node) else WRITTEN.get(operator_name(node.target))
