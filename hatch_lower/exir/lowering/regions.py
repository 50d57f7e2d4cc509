"""Regions of a graph with another setting of torch: gradients or autocast."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.traceback import set_current_meta

from hatch_lower.exir.graph.state import named_after, output_pairs
from hatch_lower.exir.graph.surgery import (
    all_nodes,
    attribute_of,
    copy_program,
    functionalized,
    graph_modules,
    nested_graph_modules,
    output_values,
    rebuild_program,
)
from hatch_lower.exir.lowering.aliases import without_aliases

AUTOCAST = torch.ops.higher_order.wrap_with_autocast
GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled


def without_regions(program: ExportedProgram) -> ExportedProgram:
    """Return a program with its regions inlined, and with the casts of autocast."""
    program = without_aliases(without_gradient_regions(program))
    attributes = [
        attribute_of(module, str(source.target))
        for module in graph_modules(program.graph_module)
        for node in module.graph.nodes
        if node.target is AUTOCAST
        for source in node.all_input_nodes
        if source.op == "get_attr"
    ]
    regions = [attribute for attribute in attributes if isinstance(attribute, GraphModule)]
    if not regions:
        return program
    targets = {node: node.target for region in regions for node in region.graph.nodes if node.op == "call_function"}
    try:
        for node in targets:
            node.target = Traced(node)
        for region in regions:
            region.recompile()
        return functionalized(program)
    finally:
        for node, target in targets.items():
            node.target = target
        for region in regions:
            region.recompile()


class Traced:
    """Stand-in for an operator in a region that keeps the node's source line and module, which torch would lose."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._operator: Any = node.target
        self.__name__ = "traced"  # torch generates code with the name

    def __str__(self) -> str:
        return str(self._operator)

    def __call__(self, *args: object, **kwargs: object) -> object:
        with set_current_meta(self._node):
            return self._operator(*args, **kwargs)


def without_gradient_regions(program: ExportedProgram) -> ExportedProgram:
    """Return a program with its regions with or without gradients inlined."""
    # Gradients that a method computes are operations by now, so the mode has no effect. torch would trace each region
    # in its mode, and fails where a region asks for gradients.
    if all(node.target is not GRADIENTS for node in all_nodes(program.graph_module)):
        return program
    copied = copy_program(program)
    inline_gradient_regions(copied.graph_module)
    outputs = [named_after(spec, value) for spec, value in output_pairs(copied)]
    signature = replace(copied.graph_signature, output_specs=outputs)
    return rebuild_program(copied, copied.graph_module, copied.graph_module.graph, signature=signature)


def inline_gradient_regions(module: GraphModule) -> None:
    for _, nested in nested_graph_modules(module):
        inline_gradient_regions(nested)
    for node in list(module.graph.nodes):
        if node.target is GRADIENTS:
            inline_region(module, node)
    module.recompile()


def inline_region(module: GraphModule, node: Node) -> None:
    source: Any = node.args[1]
    region: GraphModule = attribute_of(module, source.target)
    operands = iter(node.args[2:])
    values: dict[Node, Any] = {}
    with module.graph.inserting_before(node):
        for inner in region.graph.nodes:
            if inner.op == "placeholder":
                values[inner] = next(operands)
            elif inner.op == "get_attr":
                values[inner] = module.graph.get_attr(add_attribute(module, attribute_of(region, inner.target)))
                values[inner].meta = dict(inner.meta)
            elif inner.op != "output":
                values[inner] = module.graph.node_copy(inner, values.__getitem__)
    results: list[Any] = [values[value] if isinstance(value, Node) else value for value in output_values(region)]
    if isinstance(region.graph.output_node().args[0], Node):
        node.replace_all_uses_with(results[0])
    for user in list(node.users):
        if user.target is operator.getitem:
            index: Any = user.args[1]
            user.replace_all_uses_with(results[index])
            module.graph.erase_node(user)
    module.graph.erase_node(node)
    if not source.users:
        module.graph.erase_node(source)


def add_attribute(module: GraphModule, value: object) -> str:
    number = 0
    while hasattr(module, f"region_{number}"):
        number += 1
    setattr(module, f"region_{number}", value)
    return f"region_{number}"
