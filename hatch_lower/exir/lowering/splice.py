"""Replacement of all partitions by calls of their lowered modules, in one pass over the graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from itertools import count
from operator import getitem

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, OutputSpec
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.node import Argument

from hatch_lower.exir.backend.partitioner import DELEGATION_TAG
from hatch_lower.exir.delegate import executorch_call_delegate
from hatch_lower.exir.graph.state import STATE_MUTATIONS, input_pairs, output_pairs
from hatch_lower.exir.graph.surgery import attribute_of, copy_node, rebuild_program
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.adopt import highest_debug_handle
from hatch_lower.exir.lowering.extract import argument_of
from hatch_lower.exir.lowering.partition import Partition, PartitionPlan
from hatch_lower.runtime.torch_private.programs import copy_calling_convention


def rebuild(
    root: GraphModule,
    plan: PartitionPlan,
    dropped: Set[Node],
    modules: Mapping[Partition, LoweredBackendModule],
    handles: Iterator[int],
) -> tuple[Graph, dict[Node, Node], dict[str, object]]:
    """Return a new graph without its output, the new node of each remaining value, and the attributes."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    attributes: dict[str, object] = {}
    for node in root.graph.find_nodes(op="placeholder"):
        if node not in dropped:
            copies[node] = copy_untagged(graph, node, copies)
    numbers = count(first_free_number(root))
    for unit in plan.order:
        if isinstance(unit, Partition):
            name = f"lowered_module_{next(numbers)}"
            attributes[name] = modules[unit]
            call_partition(graph, unit, name, next(handles), copies)
            continue
        copies[unit] = copy_untagged(graph, unit, copies)
        if unit.op == "get_attr" and unit.target not in attributes:
            target = str(unit.target)
            attribute = attribute_of(root, target)
            if target in plan.nested:
                attribute = rebuild_nested(attribute, plan.nested[target], modules, handles)
            attributes[target] = attribute
    copy_calling_convention(root.graph, graph)
    return graph, copies, attributes


def rebuild_nested(
    root: GraphModule, plan: PartitionPlan, modules: Mapping[Partition, LoweredBackendModule], handles: Iterator[int]
) -> GraphModule:
    graph, copies, attributes = rebuild(root, plan, frozenset(), modules, handles)
    output = root.graph.output_node()
    graph.output(map_arg(output.args[0], copies.__getitem__)).meta.update(output.meta)
    module = GraphModule(attributes, graph)
    module.meta.update(root.meta)
    return module


def splice(
    program: ExportedProgram, plan: PartitionPlan, modules: Mapping[Partition, LoweredBackendModule]
) -> ExportedProgram:
    """Return `program` with each partition replaced by a call of its lowered module."""
    # without the constants and the buffer updates that delegates own
    root = program.graph_module
    owned = {node for partition in plan.partitions for node in partition.owned}
    inside = {node for partition in plan.partitions for node in partition.nodes}
    dropped = {node for node in owned if all(user in inside for user in node.users)}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    consumed = {specs[buffer.name].target for partition in plan.partitions for buffer, _ in partition.mutations}

    # handles of delegate calls are the program's, in all its graphs
    handles = count(highest_debug_handle(root) + 1)
    graph, copies, attributes = rebuild(root, plan, dropped, modules, handles)
    kept_values: list[Argument] = []
    output_specs: list[OutputSpec] = []
    for spec, value in output_pairs(program):
        if spec.kind in STATE_MUTATIONS and spec.target in consumed:
            continue
        new = copies[value] if isinstance(value, Node) else value
        kept_values.append(new)
        is_constant = isinstance(spec.arg, ConstantArgument)  # a node may have a constant as its value
        argument = argument_of(new) if isinstance(new, Node) and not is_constant else spec.arg
        output_specs.append(OutputSpec(spec.kind, argument, spec.target))
    graph.output(tuple(kept_values)).meta.update(root.graph.output_node().meta)

    input_specs = [spec for spec, node in input_pairs(program) if node not in dropped]
    needed = {spec.target for spec in input_specs if spec.kind is not InputKind.USER_INPUT}
    return rebuild_program(
        program,
        attributes,
        graph,
        signature=ExportGraphSignature(input_specs, output_specs),
        state_dict={name: value for name, value in program.state_dict.items() if name in needed},
        constants={name: value for name, value in program.constants.items() if name in needed},
    )


def copy_untagged(graph: Graph, node: Node, copies: Mapping[Node, Node]) -> Node:
    copied = copy_node(graph, node, copies)
    copied.meta.pop(DELEGATION_TAG, None)
    return copied


def call_partition(graph: Graph, partition: Partition, name: str, handle: int, copies: dict[Node, Node]) -> None:
    module = graph.get_attr(name)
    call = graph.call_function(executorch_call_delegate, (module, *(copies[node] for node in partition.inputs)))
    call.meta["val"] = tuple(node.meta["val"] for node in partition.outputs)
    call.meta["debug_handle"] = handle
    for index, node in enumerate(partition.outputs):
        item = graph.call_function(getitem, (call, index))
        kept = {key: value for key, value in node.meta.items() if key != DELEGATION_TAG}
        item.meta = {**kept, "debug_handle": handle}
        copies[node] = item


def first_free_number(module: GraphModule) -> int:
    # an earlier partitioner's lowered modules are there already
    names = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    numbers = [re.fullmatch(r"lowered_module_(\d+)", name) for name in names]
    return 1 + max((int(number[1]) for number in numbers if number is not None), default=-1)
