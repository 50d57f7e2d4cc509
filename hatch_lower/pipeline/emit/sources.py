"""The origin of a node, as its module's path and the model's source line, and anchors that give a stored debug map
the source lines of a later export.

Exports with equal canonical forms have the same nodes in the same order, so a position identifies a node. An anchor is
the position of the exported node that became an edge node, counted over the graph and all nested graphs.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.canonical import sha256_file
from hatch_lower.exir.graph.surgery import all_nodes, oldest_ancestor
from hatch_lower.format.debug_map import DebugMap, MethodDebug, Origin

OPERATOR = re.compile(r"\w+\.\w+\.\w+")

FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)', re.MULTILINE)


class SourceRoots:
    """Turns the absolute paths of stack traces into paths below the roots, or site-packages."""

    def __init__(self, roots: Iterable[Path] = ()) -> None:
        standard = Path(sysconfig.get_path("stdlib"))
        installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
        known = [*roots, *installed, standard]
        listed = {root.absolute() for root in known} | {root.resolve() for root in known}
        self._roots = sorted(listed, key=lambda root: (-len(root.parts), root))
        self._known: dict[str, str] = {}  # path in a trace → path below the roots: few files, many frames
        self._standard = {standard.absolute(), standard.resolve()}
        self._machinery = (Path(torch.__file__).parent, Path(__file__).parents[2])

    def source(self, stack_trace: str | None) -> str:
        """Return the innermost frame that is neither torch's nor Python's own, as `digits/model.py:31`, or ""."""
        for frame in reversed(list(FRAME.finditer(stack_trace or ""))):
            name = frame["path"]
            if name not in self._known:
                self._known[name] = self._relative(PurePath(name))
            if path := self._known[name]:
                return f"{path}:{frame['line']}"
        return ""

    def digests(self, methods: Iterable[MethodDebug]) -> dict[str, str]:
        sourced = {origin.source for method in methods for origin in method.handles.values() if origin.source}
        named = {source.rpartition(":")[0] for source in sourced}
        found = {name: Path(path) for path, name in self._known.items() if name in named and Path(path).is_file()}
        return {name: sha256_file(path) for name, path in sorted(found.items())}

    def origin(self, node: Node, op: str) -> Origin:
        # `op` is used if the node's exported operator is unknown
        return Origin(exported_op(node) or op, module_path(node), self.source(node.meta.get("stack_trace")))

    def _relative(self, path: PurePath) -> str:
        # empty for torch, this package, the standard library and generated code; a file outside of all roots keeps only
        # its name, as the folder would reveal the machine
        relative_torch = not path.is_absolute() and path.parts[0] == "torch"
        if (
            path.name.startswith("<")
            or relative_torch
            or any(path.is_relative_to(folder) for folder in self._machinery)
        ):
            return ""
        for root in self._roots:
            if path.is_relative_to(root):
                return "" if root in self._standard else path.relative_to(root).as_posix()
        return path.name if path.is_absolute() else path.as_posix()


def module_path(node: Node) -> str:
    paths = [entry[0] for entry in (node.meta.get("nn_module_stack") or {}).values()]
    return next((path for path in reversed(paths) if not path.startswith("_empty_nn_module_stack")), "")


def exported_op(node: Node) -> str:
    oldest = oldest_ancestor(node)
    return oldest.target if oldest is not None and OPERATOR.fullmatch(oldest.target) else ""


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
            places.setdefault(source_place(node), position)
        anchors[method] = {
            # checks of sizes have no ancestor, but have the source line of the operation that made the size
            handle: position_of(node, positions) if node.meta.get("from_node") else places.get(source_place(node))
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


def source_place(node: Node) -> tuple[str, str]:
    return module_path(node), node.meta.get("stack_trace") or ""


def source_lines(program: ExportedProgram, sources: SourceRoots) -> list[str]:
    return [sources.source(node.meta.get("stack_trace")) for node in program.graph.nodes]
