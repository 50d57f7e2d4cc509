"""The operators that OpenVINO computes as eager does, for which dtypes, and the places of a table that their indices
name.

OpenVINO's frontend knows more operators than are listed here. The unlisted operators gave other results than eager in
the samples that tests/engines/test_openvino.py keeps, or are rare. On the CPU the library computes float64 as float32
and int64 as int32, so float64 is left to other backends, and int64 is taken for indices and sizes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from hatch_lower.backends.interpolation import NEAREST
from hatch_lower.backends.openvino.recurrent import CELLS
from hatch_lower.exir.graph.operators import named_arguments, operator_name
from hatch_lower.runtime.torch_private.operators import OpOverload
from hatch_lower.runtime.torch_private.recurrent import RECURRENT

FLOATING = frozenset({torch.float32})
BOOLEAN = frozenset({torch.bool})
NUMBERS = FLOATING | {torch.int32}
INDICES = frozenset({torch.int32, torch.int64})
QUANTIZED = frozenset({torch.uint8, torch.int8})
STORED = NUMBERS | BOOLEAN | QUANTIZED


@dataclass(frozen=True, slots=True)
class Claim:
    """The arguments with which an operator may be called."""

    # dtypes of its tensors
    takes: frozenset[torch.dtype]
    # names of arguments that hold indices, of int32 or int64; also results may then be int64
    indices: tuple[str, ...] = ()
    # names of arguments that must be constants; their dtypes may differ from other arguments' dtypes
    constants: tuple[str, ...] = ()
    # of its results, only the first may be used
    first_only: bool = False
    # the operator only moves values; int64 passes through if it becomes an index in the end
    moves: bool = False


def overloads(names: str) -> list[str]:
    # a name without an overload means the default overload
    return [f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names.split()]


def claim_overloads(names: str, claim: Claim) -> dict[str, Claim]:
    return dict.fromkeys(overloads(names), claim)


QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
DEQUANTIZE_CHANNELS = "quantized_decomposed.dequantize_per_channel.default"
# with a scale that follows from the numbers of a call
CHOOSE = "quantized_decomposed.choose_qparams.tensor"
QUANTIZE_CHOSEN = "quantized_decomposed.quantize_per_tensor.tensor"
DEQUANTIZE_CHOSEN = "quantized_decomposed.dequantize_per_tensor.tensor"
CHOSEN = frozenset({CHOOSE, QUANTIZE_CHOSEN, DEQUANTIZE_CHOSEN})
MULTIPLY_INTEGERS = "aten._int_mm.default"

COMPARING_CALLS = frozenset(
    overloads(
        """
        eq.Scalar eq.Tensor ge.Scalar ge.Tensor gt.Scalar gt.Tensor le.Scalar le.Tensor lt.Scalar lt.Tensor ne.Scalar
        ne.Tensor
        """
    )
)

# by name of overload; a test compares each overload with eager, for each of its dtypes
CLAIMS: Mapping[str, Claim] = {
    **claim_overloads(
        """
        _adaptive_avg_pool2d _adaptive_avg_pool3d _log_softmax _softmax abs acos acosh addmm amax amin asin asinh atan
        atanh avg_pool2d avg_pool3d bmm ceil clamp conv1d conv2d conv3d convolution cos cosh cumsum div.Scalar
        div.Tensor elu erf exp floor gelu hardswish hardtanh layer_norm leaky_relu linalg_vector_norm linear
        log log10 log1p log2 log_softmax.int max_pool2d maximum mean mean.dim minimum mm pow.Scalar pow.Tensor_Scalar
        pow.Tensor_Tensor prod prod.dim_int reciprocal relu round rsqrt scaled_dot_product_attention sigmoid
        sign silu sin sinh softmax.int sqrt sum.dim_IntList tan tanh unfold upsample_bilinear2d.vec
        upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec var.correction
        """,
        Claim(FLOATING),
    ),
    **claim_overloads("add.Scalar add.Tensor mul.Scalar mul.Tensor neg sub.Tensor", Claim(NUMBERS)),
    **claim_overloads("argmax sort topk", Claim(FLOATING, indices=("result",))),
    **claim_overloads(
        """
        _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training max_pool2d_with_indices
        max_pool3d_with_indices native_group_norm native_layer_norm
        """,
        Claim(FLOATING, indices=("result",), first_only=True),
    ),
    **dict.fromkeys(COMPARING_CALLS, Claim(FLOATING)),  # the kernels compare integers as float32
    **claim_overloads("isinf isnan", Claim(FLOATING)),
    **claim_overloads(
        """
        any any.dim any.dims bitwise_and.Tensor bitwise_not bitwise_or.Tensor bitwise_xor.Tensor logical_and logical_not
        logical_or logical_xor
        """,
        Claim(BOOLEAN),
    ),
    **claim_overloads("_to_copy", Claim(STORED)),
    # behind a computed condition and with dynamic sizes, int32 is selected as float32
    **claim_overloads("where.self", Claim(FLOATING | QUANTIZED)),
    **claim_overloads("embedding", Claim(STORED, indices=("indices",))),
    **claim_overloads("gather", Claim(STORED, indices=("index",))),
    **claim_overloads("index_select", Claim(STORED, indices=("index",), moves=True)),
    **claim_overloads("index.Tensor index_put", Claim(STORED, indices=("indices",), moves=True)),
    **claim_overloads("copy slice_scatter", Claim(STORED, moves=True)),
    **claim_overloads(
        """
        alias arange.start_step cat clone constant_pad_nd expand flip full full_like permute repeat scalar_tensor
        select.int slice.Tensor split_with_sizes squeeze.dims unsqueeze view
        """,
        Claim(STORED, moves=True),
    ),
    # OpenVINO arranges a recurrent network's weights when it loads a model
    **dict.fromkeys(CELLS, Claim(FLOATING, constants=("params",))),
    QUANTIZE: Claim(FLOATING | QUANTIZED),
    DEQUANTIZE: Claim(FLOATING | QUANTIZED),
    # zero points count steps of a table of 256
    DEQUANTIZE_CHANNELS: Claim(FLOATING | QUANTIZED, indices=("zero_points",), constants=("scales", "zero_points")),
    CHOOSE: Claim(FLOATING | {torch.float64}, indices=("result",)),
    QUANTIZE_CHOSEN: Claim(FLOATING | QUANTIZED, indices=("zero_point",)),
    DEQUANTIZE_CHOSEN: Claim(FLOATING | QUANTIZED, indices=("zero_point",)),
    MULTIPLY_INTEGERS: Claim(frozenset({torch.int8, torch.int32})),
}

# the result has each element of their first input, and no other
KEPT_WHOLE = frozenset(overloads("alias clone expand flip permute repeat squeeze.dims unsqueeze view"))

# the argument whose places an operator's indices name; OpenVINO does not notice indices out of range
TABLES: Mapping[str, str] = {
    "aten.embedding.default": "weight",
    **dict.fromkeys(overloads("gather index.Tensor index_put index_select"), "self"),
}

# They may give a number where eager gives NaN, or the reverse, or order NaN elsewhere. Few networks do without them.
NAN_LOSING = frozenset(
    overloads(
        """
        _log_softmax _softmax amax amin argmax clamp exp hardtanh log_softmax.int max_pool2d
        max_pool2d_with_indices max_pool3d_with_indices maximum minimum relu scaled_dot_product_attention softmax.int
        sort topk upsample_bilinear2d.vec
        """
    )
) | {QUANTIZE, CHOOSE, QUANTIZE_CHOSEN}

# In a quantized model, OpenVINO also computes these in 8-bit integers, with rounding that eager lacks.
ROUNDING = frozenset(
    overloads(
        """
        _adaptive_avg_pool2d _adaptive_avg_pool3d avg_pool2d avg_pool3d clamp hardtanh layer_norm linalg_vector_norm
        mean mean.dim native_group_norm native_layer_norm sum.dim_IntList upsample_bilinear2d.vec var.correction
        """
    )
)

# beside float32 their other operand may be an 8-bit integer
PROMOTING = frozenset(overloads("add.Tensor mul.Tensor sub.Tensor"))

# the result has some elements of their inputs, and no other
CHOICES = frozenset(
    overloads("cat copy index.Tensor index_put index_select select.int slice.Tensor slice_scatter split_with_sizes")
)

# the argument of a product that OpenVINO packs, if constant
WEIGHTS: Mapping[str, str] = {
    MULTIPLY_INTEGERS: "mat2",
    **dict.fromkeys(overloads("addmm bmm mm"), "mat2"),
    **dict.fromkeys(overloads("conv1d conv2d conv3d convolution linear"), "weight"),
}

CONVOLUTIONS = frozenset(overloads("conv1d conv2d conv3d convolution"))
# composites with kernels of their own
KEPT_OPERATORS: tuple[OpOverload, ...] = (
    torch.ops.aten.scaled_dot_product_attention.default,
    torch.ops.aten.linear.default,
    *RECURRENT,
    *NEAREST,
)


COUNTED = 2**31 - 1  # places that OpenVINO can number: it computes int64 as int32
EXACT = 2**24  # whole numbers up to here are float32's, too


class Lookup(NamedTuple):
    """An index of an operation, and the dimension of a table whose places it names."""

    indices: Node
    dim: int
    size: int | torch.SymInt


def lookup(node: Node) -> Lookup | None:
    found = lookups(node)
    return found[0] if len(found) == 1 else None


def points_of(node: Node) -> list[Lookup]:
    """Return the indices of an operation that looks up points in several adjacent dimensions, or an empty list."""
    found = lookups(node) if operator_name(node.target) == "aten.index.Tensor" else []
    if len(found) < 2 or any(used.dim != found[0].dim + place for place, used in enumerate(found)):
        return []
    return found


def known_lookups(node: Node) -> list[Lookup]:
    """Return the single index of an operation, or its points; an empty list for other indices."""
    used = lookup(node)
    return points_of(node) if used is None else [used]


def lookups(node: Node) -> list[Lookup]:
    name, given = operator_name(node.target), named_arguments(node)
    shape = given[TABLES[name]].meta["val"].shape if name in TABLES else ()
    if not shape:
        return []
    index: Any = given.get("indices", given.get("index"))
    indices = list(enumerate(index)) if isinstance(index, (list, tuple)) else [(given.get("dim", 0), index)]
    return [Lookup(each, dim, shape[dim]) for dim, each in indices if each is not None]


def index_source(index: Node) -> Node:
    """Return the node that all elements of an index come from."""
    while index.op == "call_function" and operator_name(index.target) in KEPT_WHOLE:
        (index,) = tensor_inputs(index)
    return index


def nodes_in(value: Any) -> list[Node]:
    nodes: list[Node] = []
    torch.fx.map_arg(value, nodes.append)
    return nodes


def tensor_inputs(node: Node) -> list[Node]:
    return [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]


def of_floats(node: Node) -> bool:
    value: torch.Tensor = node.meta["val"]
    return value.dtype in FLOATING


def makes_truths(node: Node) -> bool:
    """Return whether an operation converts floats to bool."""
    converts = operator_name(node.target) == "aten._to_copy.default"
    return converts and node.meta["val"].dtype is torch.bool and of_floats(node.all_input_nodes[0])
