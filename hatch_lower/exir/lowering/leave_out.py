"""Operations that a partitioner must not take: known by their place in a method, and taken out of its partitions.

A place is a number: an operation's position among all nodes of the method's edge program, before the first partitioner
takes its turn. A place depends on the graph alone, not on names and source lines, so that equal exports have equal
places.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from hatch_lower.exir.backend.canonical_partitioners.grouping import group_nodes
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, LEFT_OUT, DelegationSpec, PartitionResult
from hatch_lower.exir.graph.nodes import producer_of
from hatch_lower.exir.graph.surgery import all_nodes, computes, graph_modules

PLACE = "hatch_lower_place"  # metadata key of an operation; copies of a node keep the key

Places = Mapping[int, str]  # place of an operation that is left out, to the reason


def number_places(program: ExportedProgram) -> None:
    for place, node in enumerate(all_nodes(program.graph_module)):
        if computes(node):
            node.meta[PLACE] = place


def nodes_by_place(program: ExportedProgram) -> dict[int, Node]:
    return {node.meta[PLACE]: node for node in all_nodes(program.graph_module) if PLACE in node.meta and computes(node)}


def describe_operation(node: Node) -> str:
    """Return a node's operator and literals, and the types and sizes of its arguments and results."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: value_form(source.meta.get("val")))
    return repr((str(node.target), args, sorted(kwargs.items()), value_form(node.meta.get("val"))))


def value_form(value: object) -> Any:
    if isinstance(value, (tuple, list)):
        return [value_form(item) for item in value]
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(map(str, value.shape))}"
    return type(value).__name__


def mark_left_out(program: ExportedProgram, places: Places) -> None:
    """Write the reason on each operation that is left out, and on its `getitem` nodes, in place."""
    for node in all_nodes(program.graph_module) if places else ():
        reason = places.get(producer_of(node).meta.get(PLACE, -1))
        if reason is not None and node.op == "call_function":
            node.meta[LEFT_OUT] = reason


def without_left_out(result: PartitionResult) -> PartitionResult:
    """Return a partitioner's tags without marked operations, with each cut partition divided into convex parts."""
    # The whole partition was convex, so a path between two of its parts leads through marked operations only. Each
    # partition can therefore be divided separately.
    program, tags = result.tagged_exported_program, dict(result.partition_tags)
    reasons = dict(result.reasons)
    for module in graph_modules(program.graph_module):
        marked = [node for node in module.graph.nodes if LEFT_OUT in node.meta]
        cut = dict.fromkeys(node.meta.pop(DELEGATION_TAG) for node in marked if DELEGATION_TAG in node.meta)
        told = {node.name: str(node.meta.pop(LEFT_OUT)) for node in marked}  # another backend may take the node
        reasons.update((node.name, told[node.name]) for node in marked if node.target is not operator.getitem)
        for tag in cut:
            split_partition(module, tag, tags)
    return PartitionResult(program, tags, reasons, result.finite_only)


def split_partition(module: GraphModule, tag: str, tags: dict[str, DelegationSpec]) -> None:
    """Give each part of a partition that was cut a tag of its own; `tags` is extended."""

    def is_member(node: Node) -> bool:
        return bool(node.meta.get(DELEGATION_TAG) == tag)

    _, *others = group_nodes(module.graph, is_member).partitions or ((),)
    for nodes in others:
        own = f"{tag}_part_{len(tags)}"
        tags[own] = tags[tag]
        for node in nodes:
            node.meta[DELEGATION_TAG] = own
