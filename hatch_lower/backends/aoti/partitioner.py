"""Which nodes become compiled partitions: all that inductor compiles, and the sizes that a partition needs inside."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import ClassVar

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from hatch_lower.backends.aoti.configuration import Options
from hatch_lower.backends.aoti.support import KEPT_OPERATORS, is_symbolic, why_not
from hatch_lower.backends.aoti.symbols import find_sources, is_resolvable
from hatch_lower.backends.engine_partitioner import EnginePartitioner
from hatch_lower.exir.backend.canonical_partitioners.graph_partitioner import KeptOperators
from hatch_lower.exir.backend.canonical_partitioners.grouping import group_nodes
from hatch_lower.exir.backend.canonical_partitioners.nodes import is_view, producer_of

BACKEND_ID = "aoti"
ONLY_VIEWS = "it computes nothing, and its neighbours are not compiled"
ONLY_SIZES = "it computes a size that is needed outside the partition"


class Refusals:
    # an operation is looked up once
    def __init__(self, exclude: frozenset[str]) -> None:
        self.known: dict[Node, str] = {}
        self._exclude = exclude

    def __call__(self, node: Node) -> str:
        if node not in self.known:
            is_part = node.target is operator.getitem and not is_symbolic(node)
            self.known[node] = self(producer_of(node)) if is_part else why_not(node, self._exclude)
        return self.known[node]


class AotiPartitioner(EnginePartitioner[Refusals]):
    def __init__(self, options: Options) -> None:
        super().__init__(BACKEND_ID, options.to_specs(), {"isa": options.isa.name, "exclude": options.exclude})
        self.options = options

    takes_state: ClassVar[bool] = True

    def reasons(self, program: ExportedProgram) -> Refusals:
        return Refusals(frozenset(self.options.exclude))

    def graphs(self, program: ExportedProgram) -> Iterable[Graph]:
        # branches and bodies of control flow are left to the program
        return [program.graph]

    def groups(self, graph: Graph, why_not: Refusals) -> Iterable[Iterable[Node]]:
        # native code takes tensors only: a group must find each symbolic size that it needs in the shapes of its inputs
        groups = group_operations(graph, why_not)
        while (unresolved := find_unresolved(groups)) is not None:
            why_not.known[unresolved] = "it takes a symbolic size that no tensor input of its partition has"
            groups = group_operations(graph, why_not)
        return groups

    def computes(self, node: Node) -> bool:
        return not is_view(node) and not is_symbolic(node)

    def idle_refusal(self, node: Node) -> str:
        return ONLY_SIZES if is_symbolic(node) else ONLY_VIEWS

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        return list(KEPT_OPERATORS), None


def group_operations(graph: Graph, reasons: Refusals) -> list[list[Node]]:
    grouping = group_nodes(graph, lambda node: not reasons(node))
    numbers = {node: number for number, nodes in enumerate(grouping.partitions) for node in nodes}
    taken = {node: number for node, number in numbers.items() if not is_symbolic(node)}
    useful = {number for node, number in taken.items() if not is_view(node)}
    taken = {node: number for node, number in taken.items() if number in useful}
    sizes = [node for node in numbers if is_symbolic(node)]
    # A size that a group both makes possible and needs must be computed inside the group.
    for node in reversed(sizes):
        if any(taken.get(user) == numbers[node] for user in node.users):
            taken[node] = numbers[node]
    # Other sizes that are needed elsewhere stay outside: each group reads them off its own tensors.
    for node in sizes:
        number = taken.get(node)
        if number is None or all(taken.get(user) == number for user in node.users):
            continue
        if all(taken.get(source) != number for source in node.all_input_nodes):
            del taken[node]
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in taken:
            groups.setdefault(taken[node], []).append(node)
    return list(groups.values())


def find_unresolved(groups: Iterable[Collection[Node]]) -> Node | None:
    """Return an operation that needs a symbolic size which none of its group's tensor inputs shows."""
    for nodes in groups:
        members = set(nodes)
        inputs = {source: None for node in nodes for source in node.all_input_nodes if source not in members}
        shapes = [source.meta["val"].shape for source in inputs if isinstance(source.meta["val"], torch.Tensor)]
        symbols = (torch.SymInt, torch.SymBool, torch.SymFloat)
        needed = {source for source in inputs if isinstance(source.meta["val"], symbols)}
        if not needed:
            continue
        sources = find_sources(shapes)
        bad = {source for source in needed if not is_resolvable(source.meta["val"].node.expr, sources)}
        for node in nodes:
            if bad.intersection(node.all_input_nodes):
                return node
    return None
