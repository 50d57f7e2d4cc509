"""A partition's graph with canonical names, for torch's exporter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch.export.graph_signature import InputSpec
from torch.fx import Graph, Node

from hatch_lower.backends.call_map import inverse
from hatch_lower.backends.interpolation import is_nearest, regular_factors
from hatch_lower.backends.partition_copy import (
    INDEX_POSITIONS,
    PartitionCopy,
    is_floored,
    memory_order,
    without_negatives,
    write_floored,
)
from hatch_lower.exir.graph.nodes import is_view
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.state import constant_of
from hatch_lower.exir.graph.surgery import reach
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of

LOGARITHMS = (torch.ops.aten.log.default, torch.ops.aten.log10.default, torch.ops.aten.log2.default)


class OnnxCopy(PartitionCopy):
    """A partition for torch's exporter: constants are placeholders, results are told apart by their memory order."""

    backend_id: ClassVar[str] = "onnxruntime"

    def write_placeholders(self, constants: Sequence[tuple[Node, InputSpec]]) -> None:
        # the model takes only inputs that an operation uses
        self.constants: dict[str, torch.Tensor] = {}
        self.operations: dict[Node, int] = {}
        self.layouts: dict[tuple[str, tuple[int, ...] | None], int] = {}
        for node, spec in constants:
            copied = self._placeholder(f"c{len(self.constants)}", node)
            self.constants[copied.name] = constant_of(self.program, spec)
        for node, position in self.inputs.items():
            self._placeholder(f"x{position}", node)
            if any(user.op != "output" for user in node.users):
                self.passed.append(position)

    def _placeholder(self, name: str, node: Node) -> Node:
        copied = self.graph.placeholder(name)
        copied.meta["val"] = node.meta["val"]
        self.values[node] = copied
        return copied

    def write_operation(self, node: Node, index: int) -> Node:
        target = torch_operator(node.target)
        args, kwargs = self.arguments(node)
        place = INDEX_POSITIONS.get(target)
        if place is not None:
            # ONNX Runtime counts a negative index from the end, where eager refuses the index.
            given: Any = node.args[place]
            indices = args[place]
            for step, (operator, limit) in enumerate(without_negatives(given)):
                indices = self._call(operator, (indices, limit), {}, f"i{index}_{step}", given.meta["val"])
            args = (*args[:place], indices, *args[place + 1 :])
        if is_nearest(node) and (factors := regular_factors(node)) is not None:
            args, kwargs = (args[0], None, factors), {}
        copied: Node
        if target is torch.ops.aten.expand.default and expands_nothing(node):
            # ONNX Runtime copies a tensor whose dynamic sizes it cannot compare with the expansion's
            copied = self._call(torch.ops.aten.alias.default, args[:1], {}, f"n{index}", node.meta["val"])
        elif is_floored(node):
            copied = write_floored(partial(self._computed, index), node, *args[:2])
        elif target is torch.ops.aten.sigmoid.default and is_of_logarithm(node):
            copied = write_sigmoid(partial(self._computed, index), *args)
        else:
            copied = self._call(target, args, kwargs, f"n{index}", node.meta["val"])
        self.operations[copied] = index
        return copied

    def _computed(self, index: int, target: Any, *args: Any) -> Node:
        value = target(*torch.fx.map_arg(args, lambda source: source.meta["val"]))
        return self._call(target, args, {}, f"n{index}_{len(self.graph.nodes)}", value)

    def _call(self, target: Any, args: Any, kwargs: Any, name: str, value: object) -> Node:
        copied = self.graph.create_node("call_function", target, args, kwargs, name=name)
        # The exporter's passes copy a debug handle to their new nodes; here the handle is the operation's number.
        copied.meta.update(val=value, debug_handle=len(self.operations))
        return copied

    def write_result(self, value: Node) -> object:
        # the model returns the tensor with its dimensions in the order of memory
        copied = self.values[value]
        order = memory_order(copied.meta["val"])
        layout = copied.name, None if order is None else tuple(order)
        position = self.layouts.setdefault(layout, len(self.layouts))
        if position == len(self.results):
            self.results.append(copied)
        return position if order is None else {"result": position, "permute": inverse(order)}


def expands_nothing(node: Node) -> bool:
    before, after = (each.meta["val"].shape for each in (node.all_input_nodes[0], node))
    return [str(size) for size in before] == [str(size) for size in after]


def is_of_logarithm(sigmoid: Node) -> bool:
    """Return whether a logarithm is taken of a sigmoid, or of a value computed from the sigmoid elementwise."""
    if sigmoid.meta["val"].dtype is torch.float16:  # exp(12) is infinite where a kernel has half precision
        return False
    computed = reach([sigmoid], lambda node: filter(keeps_elements, node.users))
    return any(torch_operator(user.target) in LOGARITHMS for node in computed for user in node.users)


def keeps_elements(node: Node) -> bool:
    return is_pointwise(torch_operator(node.target)) or is_view(node)


def is_pointwise(target: object) -> bool:
    return isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags


def write_sigmoid(call: Callable[..., Node], x: Node) -> Node:
    # ONNX Runtime's own is an approximation, which is 0 from -18 on: the logarithm of that is infinite
    aten = torch.ops.aten
    return call(aten.reciprocal.default, call(aten.add.Tensor, call(aten.exp.default, call(aten.neg.default, x)), 1))


def count_dimensions(graph: Graph) -> None:
    # Count dimensions from the first: ONNX Runtime does not reduce dimensions counted from the last if a tensor has no
    # elements
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) or torch.Tag.reduction not in node.target.tags:
            continue
        names = [argument.name for argument in schema_of(node.target).arguments]
        dims = named_arguments(node).get("dim")
        if dims is None:
            continue
        rank = node.args[0].meta["val"].ndim or 1
        dims = dims % rank if isinstance(dims, int) else [dim % rank for dim in dims]
        node.args = tuple(dims if name == "dim" else argument for name, argument in zip(names, node.args, strict=False))
        node.kwargs = {name: dims if name == "dim" else argument for name, argument in node.kwargs.items()}


def convert_behind_numbers(graph: Graph) -> None:
    # The exporter's promotion of dtypes fails for, or passes over, operators whose first argument is a number
    for node in list(graph.nodes):
        if (
            not is_pointwise(node.target)
            or len(node.args) < 2
            or isinstance(node.args[0], Node)
            or not isinstance(node.args[1], Node)
        ):
            continue
        number, tensor, *rest = node.args
        dtype = node.meta["val"].dtype
        if dtype in (tensor.meta["val"].dtype, torch.bool):
            continue
        with graph.inserting_before(node):
            converted = graph.call_function(torch.ops.aten._to_copy.default, (tensor,), {"dtype": dtype})
        converted.meta.update(node.meta, val=tensor.meta["val"].to(dtype))
        node.args = (number, converted, *rest)
