"""Reasons why OpenVINO does not take a call: it cannot convert the call, or gives another result than eager;
quantized operations included.

Products of integers in OpenVINO have a result of the same eight bits, so integers are multiplied as float32 here. A
scale is float64 in eager and float32 in OpenVINO; both are equal if the operation that chooses the scale is also
taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import ZERO_FACTOR, why_not_dimension
from hatch_lower.backends.interpolation import why_not_interpolation
from hatch_lower.backends.openvino import claims
from hatch_lower.backends.openvino.recurrent import CELLS, why_not_recurrent
from hatch_lower.exir.graph.nodes import MAY_BE_ZERO, Ranges, is_at_least, is_at_most, may_be_zero, producer_of
from hatch_lower.exir.graph.operators import named_arguments, operator_name
from hatch_lower.exir.graph.tensors import dtype_name

LARGEST_PRODUCT = 2**14  # largest product of two signed 8-bit integers
ROUNDERS = frozenset(claims.overloads("ceil floor round"))
BOUNDING = {"aten.clamp.default": ("min", "max"), "aten.hardtanh.default": ("min_val", "max_val")}
FILLING = frozenset(claims.overloads("full full_like"))
SUMS = frozenset(claims.overloads("add.Tensor sub.Tensor"))


def why_not_chosen(node: Node, why_not: Callable[[Node], str]) -> str:
    """Return why a scale that a call chooses, or an operation using it, is not taken: all are taken, or none."""
    chooser = chooser_of(node)
    if chooser is None:
        return "its scale is not a result of `choose_qparams`"
    group = [chooser, *(user for result in chooser.users for user in result.users)]
    for member in group:
        name = operator_name(member.target) if member.op == "call_function" else member.op
        if name not in claims.CHOSEN:
            return f"`{member.name}` uses a scale, which OpenVINO has in float32"
        if chooser_of(member) is not chooser:
            return f"`{member.name}` uses a scale and a zero point that were chosen apart"
        given = named_arguments(member)["input"]
        if name == claims.QUANTIZE_CHOSEN and given is not named_arguments(chooser)["input"]:
            return f"`{member.name}` quantizes other numbers than the numbers that its scale was chosen for"
        if name == claims.QUANTIZE_CHOSEN and any(user not in group for user in member.users):
            return f"`{member.name}` is used as integers"
        if name == claims.DEQUANTIZE_CHOSEN and given not in group:
            return f"`{member.name}` has integers that were quantized elsewhere"
        if reason := why_not(member):
            return reason if member is node else f"it belongs to `{member.name}`: {reason}"
    return ""


def chooser_of(node: Node) -> Node | None:
    """Return the operation that chooses an operation's scale and zero point, if they have one."""
    if operator_name(node.target) == claims.CHOOSE:
        return node
    given = named_arguments(node)
    parts = [part for part in (given.get("scale"), given.get("zero_point")) if isinstance(part, Node)]
    places = [part.args[1] for part in parts if part.target is getitem]
    makers = {producer_of(part) for part in parts}
    maker = makers.pop() if places == [0, 1] and len(makers) == 1 else None
    return maker if maker is not None and operator_name(maker.target) == claims.CHOOSE else None


def why_not_integer_product(node: Node) -> str:
    """Return why a product of 8-bit integers, which have a sign, is not taken."""
    count = named_arguments(node)["self"].meta["val"].shape[-1]
    if isinstance(count, int) and count * LARGEST_PRODUCT <= claims.EXACT:
        return ""
    if all(operator_name(user.target) == "aten._to_copy.default" and claims.of_floats(user) for user in node.users):
        return ""
    return f"float32 does not hold the sums of {count} products, and they are used as integers"


def makes_integers(node: Node) -> bool:
    """Return whether an operation makes 8-bit integers of numbers."""
    converts = operator_name(node.target) == "aten._to_copy.default"
    return converts and node.meta["val"].dtype in claims.QUANTIZED and claims.of_floats(node.all_input_nodes[0])


def makes_exact_integers(node: Node) -> bool:
    """Return whether an operation makes 8-bit integers of whole numbers, all of which are in their range."""
    source = claims.index_source(node.all_input_nodes[0])
    return (
        makes_integers(node)
        and has_whole_numbers(source)
        and fits_integers(source, torch.iinfo(node.meta["val"].dtype))
    )


def fits_integers(source: Node, limits: torch.iinfo) -> bool:
    given = named_arguments(source) if source.op == "call_function" else {}
    name = operator_name(source.target)
    names = ("fill_value",) if name in FILLING else BOUNDING.get(name, ())
    bounds = [given.get(bound) for bound in names]
    return bool(bounds) and all(
        isinstance(bound, (int, float)) and limits.min <= bound <= limits.max for bound in bounds
    )


def has_whole_numbers(node: Node) -> bool:
    pending: list[object] = [node]
    seen: set[Node] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, Node) and value not in seen:
            seen.add(value)
            pending += whole_if(value)
        elif not isinstance(value, Node) and not (isinstance(value, (int, float)) and float(value).is_integer()):
            return False
    return True


def whole_if(node: Node) -> list[object]:
    """Return the values that must be whole numbers for a node's result to be whole."""
    name = operator_name(node.target) if node.op == "call_function" else ""
    if name in ROUNDERS or not node.meta["val"].dtype.is_floating_point:
        return []
    given = named_arguments(node) if name else {}
    if name in SUMS:
        return [given["self"], given["other"], given.get("alpha", 1)]
    if name in FILLING:
        return [given["fill_value"]]
    if name in BOUNDING:
        return [given.get(argument) for argument in ("self", *BOUNDING[name])]
    return list(node.all_input_nodes) if name in claims.KEPT_WHOLE else [None]


LONGEST = 1 << 16  # places in windows, each of which is named in the model
GROUPS = "aten.native_group_norm.default"
PRODUCT = "aten.addmm.default"
ATTENTION = "aten.scaled_dot_product_attention.default"
AVERAGES = frozenset({"aten.mean.default", "aten.mean.dim"})
AVERAGING_POOLS: Mapping[str, int] = {"aten.avg_pool2d.default": 2, "aten.avg_pool3d.default": 3}  # their dimensions
POOLS: Mapping[str, int] = {
    **AVERAGING_POOLS,
    "aten.max_pool2d.default": 2,
    "aten.max_pool2d_with_indices.default": 2,
    "aten.max_pool3d_with_indices.default": 3,
}
VARIANCE = "aten.var.correction"

# with an empty list of dimensions they reduce all dimensions, and in OpenVINO none
REDUCING_ALL = frozenset(claims.overloads("mean.dim var.correction"))
NORM = "aten.linalg_vector_norm.default"
GATHER = "aten.gather.default"


def why_not_openvino_call(name: str, node: Node, ranges: Ranges) -> str:
    given = named_arguments(node)
    return (
        why_not_values(name, given)
        or why_not_interpolation(node, ranges, doubles=False)
        or why_not_dimensions(name, node, given)
        or why_not_sizes(name, given, ranges)
        or why_not_operands(name, node, ranges)
    )


def why_not_values(name: str, given: Mapping[str, Any]) -> str:
    if any(given.get(form) for form in ("accumulate", "divisor_override", "enable_gqa", "half_to_float")):
        return f"this form of `{name}` has no counterpart"
    if name == PRODUCT and 0 in (given.get("alpha", 1), given.get("beta", 1)):
        return ZERO_FACTOR
    if given.get("dropout_p"):
        return f"`{name}` draws random numbers"
    if name == "aten.elu.default" and any(given.get(scale, 1) != 1 for scale in ("scale", "input_scale")):
        return f"OpenVINO's `{name}` has no scales"
    if name == VARIANCE and given.get("correction") not in (None, 0, 1):
        return f"its correction is {given.get('correction')}, and OpenVINO knows 0 and 1"
    if name == "aten.arange.start_step" and any(isinstance(given.get(part), float) for part in ("start", "step")):
        return "its start or step is a float, and OpenVINO takes the result's dtype from another argument"
    if given.get("out_dtype", torch.float32) not in (None, torch.float32):
        return f"its result is {dtype_name(given['out_dtype'])}"
    if name == "aten.constant_pad_nd.default" and abs(given.get("value", 0)) > claims.EXACT:
        return f"it pads with {given['value']}, which OpenVINO writes down as float32"
    return ""


def why_not_sizes(name: str, given: Mapping[str, Any], ranges: Ranges) -> str:
    if name == GROUPS and len(shape := given["input"].meta["val"].shape) < 3 and not is_static_shape(shape):
        return "OpenVINO has no kernel for groups of rows whose number is dynamic"
    if name == "aten.view.default" and not given["size"]:
        return "OpenVINO ends the process for a product that is viewed as a single number"
    if name in claims.CONVOLUTIONS:
        return why_not_convolution(given)
    if name == ATTENTION and not has_several_keys(given["key"].meta["val"].shape[-2], ranges):
        return "attention over a symbolic number of keys goes wrong after a call with a single key"
    if name == ATTENTION and given["query"].meta["val"].dim() < 3:
        return "OpenVINO's attention has a batch"
    if name in POOLS:
        return why_not_average(name, given) or why_not_window(given, POOLS[name], ranges)
    if name in AVERAGES and any(may_be_zero(size, ranges) for size in reduced_sizes(given)):
        return f"OpenVINO's average over no elements differs, and {MAY_BE_ZERO}"
    if name == VARIANCE and not is_static_shape(reduced_sizes(given)):
        return "OpenVINO's variance of a single number differs, and a dynamic size may be 1"
    return why_not_windows(given) if name == "aten.unfold.default" else ""


def has_several_keys(count: int | torch.SymInt, ranges: Ranges) -> bool:
    return isinstance(count, int) or is_at_least(2, count, ranges)


def why_not_operands(name: str, node: Node, ranges: Ranges) -> str:
    if name in CELLS:
        return why_not_recurrent(node)
    if name in claims.TABLES:
        return why_not_lookup(name, node, ranges)
    if name == claims.MULTIPLY_INTEGERS:
        return why_not_integer_product(node)
    if name == "aten._to_copy.default":
        (source,) = node.all_input_nodes
        before, after = source.meta["val"].dtype, node.meta["val"].dtype
        is_exact = after in claims.FLOATING or claims.makes_truths(node) or makes_exact_integers(node)
        if before != after and not is_exact:
            return f"OpenVINO converts {dtype_name(before)} to {dtype_name(after)} differently"
    return ""


def why_not_convolution(given: Mapping[str, Any]) -> str:
    image, weight = (given[name].meta["val"].shape for name in ("input", "weight"))
    if len(image) != len(weight):
        return "a convolution without a batch is left"
    if not is_static_shape(weight):
        return "a convolution by a weight of a dynamic size is left"
    return ""


def is_static_shape(shape: Iterable[object]) -> bool:
    return all(isinstance(size, int) for size in shape)


def why_not_dimensions(name: str, node: Node, given: Mapping[str, Any]) -> str:
    if given.get("dim") == [] and name in REDUCING_ALL:
        return "its list of dimensions is empty, which OpenVINO takes to mean no dimension"
    return "" if name == NORM else why_not_dimension(node)


def why_not_average(name: str, given: Mapping[str, Any]) -> str:
    if name not in AVERAGING_POOLS:
        return ""
    if any(len(given.get(part) or [0] * POOLS[name]) != POOLS[name] for part in ("kernel_size", "stride", "padding")):
        return "one number stands for several dimensions"
    if given.get("ceil_mode") and given.get("count_include_pad", True) and any(given.get("padding", ())):
        return "OpenVINO's average that counts padding differs where a window ends behind the padding (`ceil_mode`)"
    return ""


def why_not_window(given: Mapping[str, Any], rank: int, ranges: Ranges) -> str:
    if not given.get("ceil_mode"):  # torch itself refuses a window that is larger than its tensor
        return ""
    windows, margins = (widened(given.get(part) or [0], rank) for part in ("kernel_size", "padding"))
    sizes = given["self"].meta["val"].shape[-rank:]
    if all(is_at_least(w - 2 * m, size, ranges) for w, m, size in zip(windows, margins, sizes, strict=True)):
        return ""
    return "OpenVINO refuses a window that is larger than its tensor (`ceil_mode`)"


def widened(numbers: Sequence[int], rank: int) -> Sequence[int]:
    """Return a number for each dimension."""
    return list(numbers) * rank if len(numbers) == 1 else numbers


def why_not_lookup(name: str, node: Node, ranges: Ranges) -> str:
    found = claims.known_lookups(node)
    if not found:
        return f"`{name}` has several indices, which cannot be passed to OpenVINO as a single index"
    if len(found) > 1 and not is_at_most(claims.COUNTED, math.prod(each.size for each in found), ranges):
        return f"`{name}` has several indices for more places than OpenVINO numbers"
    if name == GATHER and not keeps_sizes(named_arguments(node)):
        return f"the index of `{name}` is smaller than its table in another dimension"
    if name == "aten.index_select.default" and not found[0].indices.meta["val"].dim():
        return "its index is a scalar, and OpenVINO's result lacks a dimension"
    dtypes = {each.indices.name: each.indices.meta["val"].dtype for each in found}
    return next(
        (f"`{index}` is {dtype_name(dtype)}" for index, dtype in dtypes.items() if dtype not in claims.INDICES), ""
    )


def keeps_sizes(given: Mapping[str, Any]) -> bool:
    """Return whether the table and the index of a `gather` have the same sizes, but for the dimension of places."""
    table, index = (list(map(str, given[name].meta["val"].shape)) for name in ("self", "index"))
    dim = given["dim"] % len(table)
    return table[:dim] == index[:dim] and table[dim + 1 :] == index[dim + 1 :]


def why_not_windows(given: Mapping[str, Any]) -> str:
    shape, dim = given["self"].meta["val"].shape, given["dimension"]
    if not shape or not isinstance(shape[dim], int):
        return "windows are taken along a dimension of a fixed size"
    count = (shape[dim] - given["size"]) // given["step"] + 1
    return "" if count * given["size"] <= LONGEST else f"it has {count} windows of {given['size']} places"


def reduced_sizes(given: Mapping[str, Any]) -> list[int | torch.SymInt]:
    (source,) = claims.nodes_in(given["self"])
    shape = source.meta["val"].shape
    dims = given.get("dim")
    return [shape[dim] for dim in dims] if dims else list(shape)
