"""Reasons why OpenVINO does not take a call: it cannot convert the call, or gives another result than eager."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import ZERO_FACTOR, why_not_dimension
from hatch_lower.backends.interpolation import why_not_interpolation
from hatch_lower.backends.openvino.claims import (
    ATTENTION,
    AVERAGES,
    FLOATING,
    INDICES,
    MULTIPLY_INTEGERS,
    NORM,
    POOLS,
    REDUCING_ALL,
    TABLES,
    VARIANCE,
    overloads,
)
from hatch_lower.backends.openvino.lookups import lookup, nodes_in, points_of
from hatch_lower.backends.openvino.quantized import makes_exact_integers, why_not_product
from hatch_lower.exir.backend.canonical_partitioners.nodes import MAY_BE_ZERO, Ranges, may_be_zero
from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments
from hatch_lower.exir.graph.tensors import dtype_name

LARGEST = 1 << 24  # whole numbers up to here are float32's, too
LONGEST = 1 << 16  # places in windows, each of which is named in the model
GROUPS = "aten.native_group_norm.default"
PRODUCT = "aten.addmm.default"
CONVOLUTIONS = frozenset(overloads("conv1d conv2d conv3d convolution"))


def why_not_call(name: str, node: Node, ranges: Ranges) -> str:
    given = named_arguments(node)
    return (
        why_not_values(name, given)
        or why_not_interpolation(node, ranges, doubles=False)
        or why_not_dimensions(name, node, given)
        or why_not_sizes(name, given, ranges)
        or why_not_operands(name, node)
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
    if name == "aten.constant_pad_nd.default" and abs(given.get("value", 0)) > LARGEST:
        return f"it pads with {given['value']}, which OpenVINO writes down as float32"
    return ""


def why_not_sizes(name: str, given: Mapping[str, Any], ranges: Ranges) -> str:
    if name == GROUPS and len(shape := given["input"].meta["val"].shape) < 3 and not is_static(shape):
        return "OpenVINO has no kernel for groups of rows whose number is dynamic"
    if name in CONVOLUTIONS:
        return why_not_convolution(given)
    if name == ATTENTION and not isinstance(given["key"].meta["val"].shape[-2], int):
        return "attention over a symbolic number of keys goes wrong after a call with a single key"
    if name in POOLS:
        return why_not_pool(given, POOLS[name])
    if name in AVERAGES and any(may_be_zero(size, ranges) for size in reduced_sizes(given)):
        return f"OpenVINO's average over no elements differs, and {MAY_BE_ZERO}"
    if name == VARIANCE and not is_static(reduced_sizes(given)):
        return "OpenVINO's variance of a single number differs, and a dynamic size may be 1"
    return why_not_windows(given) if name == "aten.unfold.default" else ""


def why_not_operands(name: str, node: Node) -> str:
    if name in TABLES:
        return why_not_lookup(name, node)
    if name == MULTIPLY_INTEGERS:
        return why_not_product(node)
    if name == "aten._to_copy.default":
        (source,) = node.all_input_nodes
        before, after = source.meta["val"].dtype, node.meta["val"].dtype
        if before != after and after not in FLOATING and not makes_exact_integers(node):
            return f"OpenVINO converts {dtype_name(before)} to {dtype_name(after)} differently"
    return ""


def why_not_convolution(given: Mapping[str, Any]) -> str:
    image, weight = (given[name].meta["val"].shape for name in ("input", "weight"))
    if len(image) != len(weight):
        return "a convolution without a batch is left"
    if not is_static(weight):
        return "a convolution by a weight of a dynamic size is left"
    return ""


def is_static(shape: Iterable[object]) -> bool:
    return all(isinstance(size, int) for size in shape)


def why_not_dimensions(name: str, node: Node, given: Mapping[str, Any]) -> str:
    if given.get("dim") == [] and name in REDUCING_ALL:
        return "its list of dimensions is empty, which OpenVINO takes to mean no dimension"
    return "" if name == NORM else why_not_dimension(node)


def why_not_pool(given: Mapping[str, Any], rank: int) -> str:
    if any(len(given.get(name) or [0] * rank) != rank for name in ("kernel_size", "stride", "padding")):
        return "one number stands for several dimensions"
    if given.get("ceil_mode") and given.get("count_include_pad", True) and any(given.get("padding", ())):
        return "OpenVINO's average that counts padding differs where a window ends behind the padding (`ceil_mode`)"
    return ""


def why_not_lookup(name: str, node: Node) -> str:
    used = lookup(node)
    found = points_of(node) if used is None else [used]
    if not found:
        return f"`{name}` has several indices, which cannot be passed to OpenVINO as a single index"
    if name == "aten.index_select.default" and not found[0].indices.meta["val"].dim():
        return "its index is a scalar, and OpenVINO's result lacks a dimension"
    dtypes = {each.indices.name: each.indices.meta["val"].dtype for each in found}
    return next((f"`{index}` is {dtype_name(dtype)}" for index, dtype in dtypes.items() if dtype not in INDICES), "")


def why_not_windows(given: Mapping[str, Any]) -> str:
    shape, dim = given["self"].meta["val"].shape, given["dimension"]
    if not shape or not isinstance(shape[dim], int):
        return "windows are taken along a dimension of a fixed size"
    count = (shape[dim] - given["size"]) // given["step"] + 1
    return "" if count * given["size"] <= LONGEST else f"it has {count} windows of {given['size']} places"


def reduced_sizes(given: Mapping[str, Any]) -> list[int | torch.SymInt]:
    (source,) = nodes_in(given["self"])
    shape = source.meta["val"].shape
    dims = given.get("dim")
    return [shape[dim] for dim in dims] if dims else list(shape)
