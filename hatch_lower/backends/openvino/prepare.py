"""A partition in canonical form for OpenVINO's frontend: names and numbers follow from the graph alone.

Constants are inputs of the model, behind the other inputs, so that the model does not depend on their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import getitem
from typing import Any, ClassVar

import torch
from torch.export.graph_signature import InputSpec
from torch.fx import Node

from hatch_lower.backends.call_map import inverse
from hatch_lower.backends.engine_partitioner import complete_arguments
from hatch_lower.backends.openvino import claims
from hatch_lower.backends.openvino.direct import Direct, is_call, write_copy, write_part, writer_of
from hatch_lower.backends.openvino.recurrent import (
    CELLS,
    states_of,
    weights_of,
    write_last_state,
    write_layer,
    write_recurrent_output,
)
from hatch_lower.backends.partition_copy import PartitionCopy, memory_order
from hatch_lower.exir.graph.nodes import producer_of
from hatch_lower.exir.graph.operators import named_arguments, operator_name, torch_operator
from hatch_lower.exir.graph.state import constant_of
from hatch_lower.runtime.torch_private.operators import OpOverload

aten = torch.ops.aten
# operators that count negative indices from the end, as eager does
COUNTING_BACK = frozenset(claims.overloads("index.Tensor index_put"))

# OpenVINO gives true where these compare a NaN, but not with the mirrored operator and exchanged operands
MIRRORED = {
    aten.gt.Tensor: aten.lt.Tensor,
    aten.gt.Scalar: aten.lt.Tensor,
    aten.ge.Tensor: aten.le.Tensor,
    aten.ge.Scalar: aten.le.Tensor,
}


class OpenvinoCopy(PartitionCopy):
    """A partition for OpenVINO's frontend: inputs `x0`, …, constants `c0`, …, literals `s0`, …, operations `n0`, …."""

    backend_id: ClassVar[str] = "openvino"

    def write_placeholders(self, constants: Sequence[tuple[Node, InputSpec]]) -> None:
        # unused inputs are left out
        self.literals: dict[str, torch.Tensor] = {}
        self.bound: list[int] = []  # positions of the constants that the model takes
        # whether OpenVINO computes matched operations in integers
        self.quantizes = any(is_call(node, (claims.QUANTIZE,)) for node in self.program.graph.nodes)
        self.operations = [node for node in self.program.graph.nodes if node.op == "call_function"]
        # of the placeholders; a size that is known at run time is -1
        self.dtypes: list[torch.dtype] = []
        self.shapes: list[tuple[int, ...]] = []
        # the nodes whose values the engine returns, with their positions
        self.returned: dict[Node, int] = {}
        # operations whose results are cleared where a row saw no key, with copies of the rows' conditions
        self.cleared: dict[Node, Node] = {}
        # of a recurrent network: the copies of its layers
        self.layers: dict[Node, list[Node]] = {}
        # positions of the inputs that are indices, each with the least and the size that they must be less than
        self.indices: set[tuple[int, int, int]] = set()
        for node, position in self.inputs.items():
            if any(user.op != "output" for user in node.users):
                self._write_input(node, position)
        for position, (node, spec) in enumerate(constants):
            if any(user.op != "output" for user in node.users):
                constant = constant_of(self.program, spec)
                self.values[node] = self._placeholder(f"c{len(self.bound)}", constant.dtype, tuple(constant.shape))
                self.bound.append(position)

    def _write_input(self, node: Node, position: int) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            dtype, shape = value.dtype, tuple(size if isinstance(size, int) else -1 for size in value.shape)
        elif isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            dtype, shape = torch.int64, ()
        else:
            raise self.refusal(
                "take a value that is neither a tensor nor a size", f"placeholder `{node.name}`", repr(value)
            )
        self.values[node] = self._placeholder(f"x{len(self.passed)}", dtype, shape)
        self.passed.append(position)

    def _placeholder(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Node:
        self.dtypes.append(dtype)
        self.shapes.append(shape)
        return self.graph.create_node("placeholder", name, name=name)

    def write_operation(self, node: Node, index: int) -> Node:
        args, kwargs = self.arguments(node)
        target = torch_operator(node.target)
        rounds = self.quantizes and operator_name(target) in claims.ROUNDING
        used = claims.lookup(node)
        if operator_name(target) in CELLS:
            return self._write_recurrent(node, index)
        for each in claims.known_lookups(node):
            self._note_indices(each, operator_name(target) in COUNTING_BACK)
        if target is aten.index.Tensor and used is not None:
            target, args = aten.index_select.default, (args[0], used.dim, self.values[used.indices])
        elif (writer := writer_of(node)) is not None:
            tensors = claims.nodes_in(list(complete_arguments(node).values()))
            target, kwargs = Direct(f"n{index}", partial(writer, node)), {}
            args = tuple(self.values[tensor] for tensor in tensors)
        elif target is getitem and operator_name(producer_of(node).target) == claims.CHOOSE:
            target, args = Direct(f"n{index}", partial(write_part, args[1])), args[:1]
        elif target is getitem and producer_of(node) in self.layers:
            target, args = self._recurrent_result(producer_of(node), args[1], f"n{index}")
        elif target in MIRRORED:
            target, args = MIRRORED[target], (self._operand(args[1], node), args[0])
        elif target in COMPOSITES:
            given: Any = torch.fx.map_arg(complete_arguments(node), self.values.__getitem__)
            (target, args), kwargs = COMPOSITES[target](given, node.meta["val"].dim()), {}
        elif target in SQUEEZES:
            ones = dimensions_of_one(node)  # without such a dimension, OpenVINO removes other dimensions
            target, args = (aten.squeeze.dims, (args[0], ones)) if ones else (aten.alias.default, args[:1])
        elif target is aten.var.correction and kwargs.get("correction") is None:
            kwargs = {**kwargs, "correction": 1}  # the frontend takes `None` for 0
        if rounds:  # an operation without effect keeps integer kernels from matching
            args = (self._call(aten.maximum.default, args[0], self._literal(torch.tensor(float("-inf")))), *args[1:])
        copied = self.graph.create_node("call_function", target, args, kwargs, name=f"n{index}")
        if target in WITH_INDICES and isinstance(node.meta["val"], torch.Tensor):
            copied = self._call(getitem, copied, 0)
        if node in self.cleared:
            return self._clear(node, self.cleared[node], copied)
        return self._clear_masked_rows(node, copied) if target is aten.scaled_dot_product_attention.default else copied

    def _write_recurrent(self, node: Node, index: int) -> Node:
        given = complete_arguments(node)
        value = self.values[given["input"]]
        states = [self.values[state] for state in states_of(given)]
        layers = self.layers[node] = []
        for layer in range(given["num_layers"]):
            name = f"n{index}" if layer == given["num_layers"] - 1 else f"n{index}l{layer}"
            weights = [self.values[weight] for weight in weights_of(given, layer)]
            written = Direct(name, partial(write_layer, node, layer), f"n{index}")
            value = self.graph.create_node("call_function", written, (value, *states, *weights), name=name)
            layers.append(value)
        return layers[-1]

    def _recurrent_result(self, network: Node, place: Any, name: str) -> tuple[Direct, tuple[Node, ...]]:
        layers = self.layers[network]
        if place == 0:
            return Direct(name, partial(write_recurrent_output, network)), (layers[-1],)
        return Direct(name, partial(write_last_state, place)), tuple(layers)

    def _note_indices(self, used: claims.Lookup, counts_back: bool) -> None:
        source = claims.index_source(used.indices)
        if source in self.inputs and isinstance(used.size, int):
            self.indices.add((self.inputs[source], -used.size if counts_back else 0, used.size))

    def _operand(self, value: object, node: Node) -> Node:
        # a number becomes a constant of the other operand's type
        if isinstance(value, Node):
            return value
        (other,) = node.all_input_nodes
        return self._literal(torch.tensor(value, dtype=other.meta["val"].dtype))

    def _literal(self, value: torch.Tensor) -> Node:
        name = f"s{len(self.literals)}"
        self.literals[name] = value
        return self.graph.create_node("get_attr", name, name=name)

    def _call(self, target: Any, *args: Any) -> Node:
        # the partition does not have this operation
        return self.graph.create_node("call_function", target, args, name=f"m{len(self.graph.nodes)}")

    def _clear_masked_rows(self, node: Node, attention: Node) -> Node:
        # in eager, attention is 0 for a query that sees no key; OpenVINO has NaN there
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if not isinstance(mask, Node):
            return attention
        dtype = mask.meta["val"].dtype
        seen = self.values[mask]
        if dtype is not torch.bool:
            seen = self._call(aten.ne.Tensor, seen, self._literal(torch.tensor(float("-inf"), dtype=dtype)))
        seen = self._call(aten.any.dim, seen, -1, True)
        joined = joined_heads(node, mask)
        if joined is None:
            return self._clear(node, seen, attention)
        # OpenVINO computes attention and the joining of its heads in a kernel, if no operation stands between
        self.cleared[joined] = self._call(aten.select.int, seen, 1, 0) if mask.meta["val"].dim() == 4 else seen
        return attention

    def _clear(self, node: Node, seen: Node, result: Node) -> Node:
        nothing = self._literal(torch.tensor(0.0, dtype=node.meta["val"].dtype))
        return self._call(aten.where.self, seen, result, nothing)

    def write_result(self, value: Node) -> object:
        # the model returns the tensor with its dimensions in the order of memory
        order = memory_order(value.meta.get("val"))
        position = self.returned.setdefault(value, len(self.results))
        if position == len(self.results):
            copied = self.values[value]
            name = f"r{len(self.results)}"
            if order is not None:
                copied = self.graph.create_node("call_function", aten.permute.default, (copied, order), name=name)
            elif copied.target in COPIES:  # the frontend returns a copy's source, and refuses to return a tensor twice
                copied = self.graph.create_node("call_function", Direct(name, write_copy), (copied,), name=name)
            self.results.append(copied)
        return position if order is None else {"result": position, "permute": inverse(order)}


def dtype_of(node: Node) -> torch.dtype:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else torch.int64


def dimensions_of_one(squeeze: Node) -> list[int]:
    """Return the dimensions of size 1 among the dimensions that an operation names."""
    given = complete_arguments(squeeze)
    shape, named = given["self"].meta["val"].shape, given["dim"]
    dims = {dim % len(shape) for dim in (named if isinstance(named, (list, tuple)) else [named])} if shape else set()
    return sorted(dim for dim in dims if isinstance(shape[dim], int) and shape[dim] == 1)


def joined_heads(attention: Node, mask: Node) -> Node | None:
    """Return the operation that joins the heads of attention in a dimension, if a mask is the same for all heads."""
    shape = mask.meta["val"].shape
    moved = only_user(attention)
    joined = None if moved is None else only_user(moved)
    if moved is None or joined is None or operator_name(joined.target) != "aten.view.default":
        return None
    turned = operator_name(moved.target) == "aten.permute.default" and named_arguments(moved)["dims"] == [0, 2, 1, 3]
    same_rows = written_sizes(joined)[:-1] == written_sizes(moved)[:2]
    return joined if turned and same_rows and (len(shape) == 2 or (len(shape) == 4 and shape[1] == 1)) else None


def only_user(node: Node) -> Node | None:
    """Return the only operation that uses a value, past copies and views to the same sizes."""
    while len(node.users) == 1:
        source, node = node, next(iter(node.users))
        if node.op != "call_function":
            return None
        copies = operator_name(node.target) in ("aten.clone.default", "aten.view.default")
        if not copies or written_sizes(node) != written_sizes(source):
            return node
    return None


def written_sizes(node: Node) -> list[str]:
    return [str(size) for size in node.meta["val"].shape]


# A composite that any backend of a recipe keeps whole is whole for all: so unknown composites reach OpenVINO's
# frontend.

Call = tuple[OpOverload, tuple[object, ...]]


def convolution_call(given: Mapping[str, object], rank: int) -> Call:
    count = rank - 2
    sizes = (for_each(given[name], count) for name in ("stride", "padding", "dilation"))
    tensors = (given["input"], given["weight"], given["bias"])
    return aten.convolution.default, (*tensors, *sizes, False, [0] * count, given["groups"])


def for_each(value: Any, count: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def layer_norm(given: Mapping[str, object], rank: int) -> Call:
    # the operator also returns mean and deviation
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    return aten.native_layer_norm.default, tuple(given[name] for name in names)


def max_pool(given: Mapping[str, object], rank: int) -> Call:
    # the operator also returns indices
    sizes = (for_each(given[name], 2) for name in ("kernel_size", "stride", "padding", "dilation"))
    return aten.max_pool2d_with_indices.default, (given["self"], *sizes, given["ceil_mode"])


def softmax_call(operator: OpOverload, given: Mapping[str, object], rank: int) -> Call:
    # the last argument: the dtype stays
    return operator, (given["self"], given["dim"], False)


COMPOSITES: Mapping[OpOverload, Callable[[Mapping[str, object], int], Call]] = {
    **dict.fromkeys((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), convolution_call),
    aten.layer_norm.default: layer_norm,
    aten.log_softmax.int: partial(softmax_call, aten._log_softmax.default),
    aten.max_pool2d.default: max_pool,
    aten.softmax.int: partial(softmax_call, aten._softmax.default),
}

SQUEEZES = frozenset({aten.squeeze.dim, aten.squeeze.dims})
COPIES = frozenset({aten.alias.default, aten.clone.default})

# of their results only the first is that of a composite
WITH_INDICES = frozenset({aten.native_layer_norm.default, aten.max_pool2d_with_indices.default})
