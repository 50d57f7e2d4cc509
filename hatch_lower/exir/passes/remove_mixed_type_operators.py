"""Conversions that eager makes inside an operation, as operations of their own.

An engine may refuse an operation on tensors of two dtypes: a float32 multiplied by a mask of int64, for example. A
conversion of its own is taken or left apart from the operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from hatch_lower.exir.dialects._ops import edge_overload
from hatch_lower.exir.graph.operators import named_arguments, operator_name, torch_operator
from hatch_lower.exir.graph.surgery import graph_modules

CONVERT = edge_overload(torch.ops.aten._to_copy.default)
COMPARING = frozenset(f"aten.{name}.Tensor" for name in ("eq", "ge", "gt", "le", "lt", "ne"))
# eager converts the operands `self` and `other` to a common dtype, and computes with it
CONVERTING = COMPARING | {
    *(f"aten.{name}.Tensor" for name in ("add", "div", "mul", "sub")),
    *("aten.maximum.default", "aten.minimum.default", "aten.pow.Tensor_Tensor", "aten.where.self"),
}
EIGHT_BITS = frozenset({torch.int8, torch.uint8})  # patterns of quantized models contain their promotion


class RemoveMixedTypeOperators(PassBase):
    """Converts the tensors of arithmetic, comparisons and choices to their common dtype before the operation."""

    def call(self, graph_module: GraphModule) -> PassResult:
        changed = False
        for module in graph_modules(graph_module):
            changed |= convert_operands(module.graph)
        return PassResult(graph_module, changed)


def convert_operands(graph: Graph) -> bool:
    made: dict[tuple[Node, torch.dtype], Node] = {}
    for node in list(graph.nodes):
        dtype = computing_dtype(node)
        operands = [] if dtype is None else list(operands_besides(node, dtype))
        if dtype is None or not operands or not keeps_result(node, operands, dtype):
            continue
        for operand in operands:
            if (operand, dtype) not in made:
                with graph.inserting_before(node):
                    made[operand, dtype] = converted = graph.call_function(CONVERT, (operand,), {"dtype": dtype})
                for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                    if key in node.meta:
                        converted.meta[key] = node.meta[key]
                converted.meta["val"] = converted_fake(operand, dtype)
            node.replace_input_with(operand, made[operand, dtype])
    return bool(made)


def computing_dtype(node: Node) -> torch.dtype | None:
    """Return the dtype with which eager computes an operation; `None` for other operators."""
    name = operator_name(node.target) if node.op == "call_function" else ""
    if name not in CONVERTING:
        return None
    if name not in COMPARING:
        result: torch.dtype = node.meta["val"].dtype
        return result
    first, second = (value_of(named_arguments(node)[operand]) for operand in ("self", "other"))
    return torch.result_type(first, second)


def operands_besides(node: Node, dtype: torch.dtype) -> Iterator[Node]:
    """Yield the tensors that an operation converts to a dtype; each once."""
    given = named_arguments(node)
    for operand in dict.fromkeys((given["self"], given["other"])):
        value = value_of(operand)
        if isinstance(value, torch.Tensor) and value.dtype not in {dtype, *EIGHT_BITS}:
            yield operand


def keeps_result(node: Node, operands: list[Node], dtype: torch.dtype) -> bool:
    """Return whether an operation on converted operands has a result of the same dtype, sizes and strides."""
    before = node.meta["val"]
    if named_arguments(node).get("condition") in operands or free_unbacked_symbols(before):
        return False
    values = {operand: converted_fake(operand, dtype) for operand in operands}
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: values.get(each, each.meta["val"]))
    after = torch_operator(node.target)(*args, **kwargs)
    return layout_of(after) == layout_of(before)


def layout_of(value: torch.Tensor) -> tuple[str, ...]:
    # as text: a comparison of dynamic sizes would record a guard
    return str(value.dtype), str(value.shape), str(value.stride())


def converted_fake(operand: Node, dtype: torch.dtype) -> torch.Tensor:
    converted: torch.Tensor = torch.ops.aten._to_copy.default(operand.meta["val"], dtype=dtype)
    return converted


def value_of(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, Node) else argument
