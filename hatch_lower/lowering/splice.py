"""Put lowered modules in the place of their partitions: one pass over the graph for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from torch.fx import Graph, GraphModule, Node

from hatch_lower.graph.surgery import attribute_of, graph_modules, rebuild_program
from hatch_lower.lowering.extract import argument_of
from hatch_lower.lowering.module import LoweredBackendModule, executorch_call_delegate
from hatch_lower.lowering.partition import TAG, Partition, Plan

__all__ = ["splice"]


def splice(program: ExportedProgram, plan: Plan, modules: Mapping[str, LoweredBackendModule]) -> ExportedProgram:
    """Return `program` with each partition replaced by a call of its lowered module.

    Args:
        program: the tagged program that `plan` was made from.
        plan: its partitions and their order.
        modules: tag to lowered module.

    Returns:
        A program without the constants, and without the buffer updates, that delegates own.
    """
    root = program.graph_module
    graph = Graph()
    copies: dict[Node, Node] = {}
    attributes: dict[str, Any] = {}
    owned = {node for partition in plan.partitions for node in partition.owned}
    inside = {node for partition in plan.partitions for node in partition.nodes}
    dropped = {node for node in owned if all(user in inside for user in node.users)}
    consumed = {(buffer.name, value) for partition in plan.partitions for buffer, value in partition.mutations}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    consumed_targets = {specs[name].target for name, _ in consumed}

    placeholders = [node for node in root.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        if node not in dropped:
            copies[node] = copy_node(graph, node, copies)
    handle = highest_handle(root)
    number = first_free_number(root)
    for unit in plan.order:
        if isinstance(unit, Partition):
            name = f"lowered_module_{number}"
            number, handle = number + 1, handle + 1
            attributes[name] = modules[unit.tag]
            call_partition(graph, unit, name, handle, copies)
        else:
            copies[unit] = copy_node(graph, unit, copies)
            if unit.op == "get_attr":
                attributes[str(unit.target)] = attribute_of(root, str(unit.target))

    output = root.graph.output_node()
    values = output.args[0]
    assert isinstance(values, (list, tuple))
    kept_values: list[Any] = []
    output_specs: list[OutputSpec] = []
    for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
        if spec.kind is OutputKind.BUFFER_MUTATION and spec.target in consumed_targets:
            continue
        new = copies[value] if isinstance(value, Node) else value
        kept_values.append(new)
        argument = spec.arg if isinstance(spec.arg, ConstantArgument) else argument_of(new)
        output_specs.append(OutputSpec(spec.kind, argument, spec.target))
    graph.output(tuple(kept_values)).meta.update(output.meta)

    input_specs: list[InputSpec] = [
        spec
        for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True)
        if node not in dropped
    ]
    graph._codegen = root.graph._codegen
    needed = {spec.target for spec in input_specs if spec.kind is not InputKind.USER_INPUT}
    return rebuild_program(
        program,
        GraphModule(attributes, graph),
        signature=ExportGraphSignature(input_specs, output_specs),
        state_dict={name: value for name, value in program.state_dict.items() if name in needed},
        constants={name: value for name, value in program.constants.items() if name in needed},
    )


def copy_node(graph: Graph, node: Node, copies: Mapping[Node, Node]) -> Node:
    """Copy a node that stays, without its tag."""
    copied = graph.node_copy(node, copies.__getitem__)
    copied.meta.pop(TAG, None)
    copied.meta.pop("shared_delegation_tags", None)
    return copied


def call_partition(graph: Graph, partition: Partition, name: str, handle: int, copies: dict[Node, Node]) -> None:
    """Add the call of a lowered module and a `getitem` for each of its results."""
    module = graph.get_attr(name)
    call = graph.call_function(executorch_call_delegate, (module, *(copies[node] for node in partition.inputs)))
    call.meta["val"] = tuple(node.meta["val"] for node in partition.outputs)
    call.meta["debug_handle"] = handle
    for index, node in enumerate(partition.outputs):
        item = graph.call_function(getitem, (call, index))
        kept = {key: value for key, value in node.meta.items() if key != TAG}
        item.meta = {**kept, "debug_handle": handle}
        copies[node] = item


def highest_handle(module: GraphModule) -> int:
    """Return the highest debug handle in a graph and the graphs nested in it."""
    handles = (node.meta.get("debug_handle") or 0 for each in graph_modules(module) for node in each.graph.nodes)
    return max(handles, default=0)


def first_free_number(module: GraphModule) -> int:
    """Return the number of the next lowered module: one more than there are."""
    return sum(isinstance(child, LoweredBackendModule) for child in module.children())
