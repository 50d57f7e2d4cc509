"""The graphs of control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from hatch_lower.exir.graph.surgery import all_nodes, attribute_of

higher_order = torch.ops.higher_order
COND = {higher_order.cond: [1, 2]}
SCAN = {higher_order.scan: [0]}
WHILE = {higher_order.while_loop: [0, 1]}


def _get_submodule(graph_module: GraphModule, node: Node, arg_index: int) -> tuple[str, torch.nn.Module, Node]:
    attribute = node.args[arg_index]
    assert isinstance(attribute, Node)
    name = str(attribute.target)
    module = attribute_of(graph_module, name)
    assert isinstance(module, torch.nn.Module)
    return name, module, node


def _get_control_flow_submodules(
    graph_module: GraphModule, op_to_submodule_arg_index: Mapping[HigherOrderOperator, Sequence[int]]
) -> list[tuple[str, GraphModule, Node]]:
    submodules = []
    for node in graph_module.graph.nodes:
        for index in op_to_submodule_arg_index.get(node.target, ()):
            name, module, operation = _get_submodule(graph_module, node, index)
            assert isinstance(module, GraphModule)
            submodules.append((name, module, operation))
    return submodules


def get_control_flow_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    """Return the name, the graph module and the operation of each branch and body, without those nested deeper."""
    return _get_control_flow_submodules(graph_module, {**COND, higher_order.map_impl: [0], **SCAN, **WHILE})


def get_cond_while_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    return _get_control_flow_submodules(graph_module, {**COND, **WHILE})


def get_scan_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    return _get_control_flow_submodules(graph_module, SCAN)


def bfs_trace_with_node_process(gm: GraphModule, node_op: Callable[[Node], None]) -> None:
    for node in all_nodes(gm):
        node_op(node)
