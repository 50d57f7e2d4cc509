"""Anchors: from debug handles to exported nodes, so that a stored debug map gets the source lines of a later export.

Exports with equal canonical forms have the same nodes in the same order, so a position identifies a node. An anchor is
the position of the exported node that became an edge node, counted over the graph and all nested graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.format.debug_map import DebugMap, MethodDebug, Origin
from hatch_lower.pipeline.emit.sources import SourceRoots, module_path

# method name to debug handle to the exported node's position; `None` for a node without an exported ancestor
Anchors = Mapping[str, Mapping[int, int | None]]


def anchors_of(nodes: Mapping[str, Mapping[int, Node]], exported: Mapping[str, ExportedProgram]) -> Anchors:
    """Return the anchors of a debug map's handles; `exported` must be the same objects that were lowered."""
    anchors: dict[str, Mapping[int, int | None]] = {}
    for method, handles in nodes.items():
        positions: dict[tuple[str, int], int] = {}
        places: dict[tuple[str, str], int] = {}
        for position, node in enumerate(all_nodes(exported[method].graph_module)):
            positions[node.name, id(node.graph)] = position
            places.setdefault(place_of(node), position)
        anchors[method] = {
            # checks of sizes have no ancestor, but have the source line of the operation that made the size
            handle: position_of(node, positions) if node.meta.get("from_node") else places.get(place_of(node))
            for handle, node in handles.items()
        }
    return anchors


def position_of(node: Node, positions: Mapping[tuple[str, int], int]) -> int | None:
    # the latest ancestor that is in the exported graph; older ancestors are in earlier graphs
    sources = node.meta.get("from_node")
    while sources:
        if (position := positions.get((sources[-1].name, sources[-1].graph_id))) is not None:
            return position
        sources = sources[-1].from_node
    return None


def re_anchor(
    debug: DebugMap, anchors: Anchors, exported: Mapping[str, ExportedProgram], sources: SourceRoots
) -> DebugMap:
    """Return a debug map with the module paths and source lines of an export, before decomposition."""
    methods = {
        name: re_anchor_method(method, anchors[name], list(all_nodes(exported[name].graph_module)), sources)
        for name, method in debug.methods.items()
    }
    return DebugMap(methods, sources.digests(methods.values()))


def re_anchor_method(
    debug: MethodDebug, anchors: Mapping[int, int | None], nodes: list[Node], sources: SourceRoots
) -> MethodDebug:
    handles = {}
    for handle, origin in debug.handles.items():
        position = anchors[handle]
        if position is None:
            handles[handle] = Origin(origin.op)
        else:
            node = nodes[position]
            handles[handle] = Origin(origin.op, module_path(node), sources.source(node.meta.get("stack_trace")))
    return replace(debug, handles=handles)


def place_of(node: Node) -> tuple[str, str]:
    return module_path(node), node.meta.get("stack_trace") or ""


def source_lines(program: ExportedProgram, sources: SourceRoots) -> list[str]:
    return [sources.source(node.meta.get("stack_trace")) for node in program.graph.nodes]
