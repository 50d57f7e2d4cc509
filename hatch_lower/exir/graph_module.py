"""The graphs of control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch.fx import GraphModule, Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.surgery import all_nodes, attribute_of
from hatch_lower.runtime.torch_private.operators import HigherOrderOperator

Kind = TypeVar("Kind", bound=torch.nn.Module)

higher_order = torch.ops.higher_order
COND = {higher_order.cond: [1, 2]}
SCAN = {higher_order.scan: [0]}
WHILE = {higher_order.while_loop: [0, 1]}


def submodule_of(graph_module: GraphModule, node: Node, arg_index: int, kind: type[Kind]) -> tuple[str, Kind]:
    """Return the name and the module of an operation's argument; any other argument is an `EdgeError`."""
    attribute = node.args[arg_index] if arg_index < len(node.args) else None
    found = f"`{attribute}`"
    if isinstance(attribute, Node) and attribute.op == "get_attr":
        module = attribute_of(graph_module, str(attribute.target))
        if isinstance(module, kind):
            return str(attribute.target), module
        found = f"a `{type(module).__module__}.{type(module).__qualname__}`"
    raise EdgeError(
        f"an argument of `{node.target}` is not a `{kind.__module__}.{kind.__qualname__}`",
        where=f"node `{node.name}`, argument {arg_index}",
        found=found,
        hint="pass an attribute of the graph that has the type; lower modules with hatch-lower, not with ExecuTorch",
    )


def _get_submodule(graph_module: GraphModule, node: Node, arg_index: int) -> tuple[str, torch.nn.Module, Node]:
    return *submodule_of(graph_module, node, arg_index, torch.nn.Module), node


def _get_control_flow_submodules(
    graph_module: GraphModule, op_to_submodule_arg_index: Mapping[HigherOrderOperator, Sequence[int]]
) -> list[tuple[str, GraphModule, Node]]:
    return [
        (*submodule_of(graph_module, node, index, GraphModule), node)
        for node in graph_module.graph.nodes
        for index in op_to_submodule_arg_index.get(node.target, ())
    ]


def get_control_flow_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    """Return the name, the graph module and the operation of each branch and body, without deeper nested graphs."""
    return _get_control_flow_submodules(graph_module, {**COND, higher_order.map_impl: [0], **SCAN, **WHILE})


def get_cond_while_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    return _get_control_flow_submodules(graph_module, {**COND, **WHILE})


def get_scan_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    return _get_control_flow_submodules(graph_module, SCAN)


def bfs_trace_with_node_process(gm: GraphModule, node_op: Callable[[Node], None]) -> None:
    for node in all_nodes(gm):
        node_op(node)
