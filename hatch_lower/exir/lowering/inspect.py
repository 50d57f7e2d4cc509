"""What a lowered graph holds: its lowered modules, the graphs of control flow, and both as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._higher_order_ops.executorch_call_delegate import (
    executorch_call_delegate,
)
from torch.fx import GraphModule, Node

from hatch_lower.exir.backend.backend_details import CompileSpec
from hatch_lower.exir.graph.surgery import attribute_of
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule

CONTROL_FLOW_GRAPHS = {"cond": (1, 2), "map_impl": (0,), "scan": (0,), "while_loop": (0, 1)}


def _get_submodule(graph_module: GraphModule, node: Node, arg_index: int) -> tuple[str, torch.nn.Module, Node]:
    """Return the name and the module that an argument of a call stands for, and the call."""
    attribute = node.args[arg_index]
    assert isinstance(attribute, Node)
    name = str(attribute.target)
    module = attribute_of(graph_module, name)
    assert isinstance(module, torch.nn.Module)
    return name, module, node


def get_lowered_submodules(graph_module: GraphModule) -> list[tuple[str, LoweredBackendModule, Node]]:
    """Return the name, the module and the call of each delegate call of a graph, without those of nested graphs."""
    found = []
    for node in graph_module.graph.find_nodes(op="call_function", target=executorch_call_delegate):
        name, module, call = _get_submodule(graph_module, node, 0)
        assert isinstance(module, LoweredBackendModule)
        found.append((name, module, call))
    return found


def get_lowered_backend_modules(graph_module: GraphModule) -> list[LoweredBackendModule]:
    """Return the lowered modules that a graph calls, in the order of the calls."""
    return [module for _, module, _ in get_lowered_submodules(graph_module)]


def get_control_flow_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    """Return the name, the graph module and the operation of each branch and body of `cond`, `map`, `scan` and
    `while_loop` in a graph, without those nested deeper."""
    found = []
    for node in graph_module.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            for index in CONTROL_FLOW_GRAPHS.get(node.target.__name__, ()):
                name, module, operation = _get_submodule(graph_module, node, index)
                assert isinstance(module, GraphModule)
                found.append((name, module, operation))
    return found


def get_delegated_payload(graph_module: GraphModule) -> dict[str, tuple[str, list[CompileSpec], bytes]]:
    """Return the backend, the options and the blob of each lowered module that a graph calls, by its name."""
    return {
        name: (module.backend_id, module.compile_specs, module.processed_bytes)
        for name, module, _ in get_lowered_submodules(graph_module)
    }


def format_delegated_graph(graph_module: GraphModule) -> str:
    """Return a graph as text, with the backend and the original graph below each lowered module."""
    lowered = {name: module for name, module, _ in get_lowered_submodules(graph_module)}
    return "\n".join(["graph():", *format_nodes(graph_module, lowered)]) + "\n"


def format_nodes(graph_module: GraphModule, lowered: dict[str, LoweredBackendModule]) -> Iterator[str]:
    """Yield the lines of a graph."""
    for node in graph_module.graph.nodes:
        yield f"  {text_of(node)}"
        if node.op == "get_attr" and node.target in lowered:
            module = lowered[node.target]
            yield f"    backend_id: {module.backend_id}"
            yield "    lowered graph():"
            yield from (f"      {text_of(inner)}" for inner in module.original_module.graph.nodes)


def text_of(node: Node) -> Any:
    """Return a node as torch writes it."""
    return node.format_node()


def print_delegated_graph(graph_module: GraphModule) -> None:
    """Print a graph as `format_delegated_graph` writes it."""
    print(format_delegated_graph(graph_module))
