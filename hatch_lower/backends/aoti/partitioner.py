"""Which nodes become compiled partitions: as many as possible, in as few convex groups as possible.

One pass in topological order gives each operation a number that grows only behind an operation that is not taken. Taken
operations of one number form a group: every path from one group into another passes to a greater number, so no two
groups need each other's results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from hatch_lower.backends.aoti.configuration import Options
from hatch_lower.backends.aoti.support import KEPT_OPERATORS, is_symbolic, why_not
from hatch_lower.backends.aoti.symbols import find_sources, is_resolvable
from hatch_lower.exir.backend.canonical_partitioners.nodes import is_view, producer_of
from hatch_lower.exir.backend.partitioner import (
    DELEGATION_TAG,
    SHARED_TAGS,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from hatch_lower.exir.graph.state import CONSTANT_KINDS

BACKEND_ID = "aoti"
ONLY_VIEWS = "it computes nothing, and nothing beside it is compiled"
ONLY_SIZES = "it computes a size that is needed elsewhere"


class AotiPartitioner(Partitioner):
    """Takes everything that inductor compiles on the CPU.

    Args:
        options: the recipe's options.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(MappingProxyType({"isa": options.isa.name, "exclude": options.exclude}))
        self.options = options

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the operations to compile and the constants that they alone, or together, use."""
        reasons = Refusals(frozenset(self.options.exclude))
        groups = group_operations(exported_program, reasons)
        while (unresolved := find_unresolved(groups)) is not None:
            reasons.refused[unresolved] = "it takes a symbolic size that no tensor beside it has"
            groups = group_operations(exported_program, reasons)
        tags: dict[str, DelegationSpec] = {}
        for nodes in groups.values():
            tag = f"{BACKEND_ID}_{len(tags)}"
            tags[tag] = DelegationSpec(BACKEND_ID, self.options.to_specs())
            for node in nodes:
                node.meta[DELEGATION_TAG] = tag
        tag_constants(exported_program)
        return PartitionResult(exported_program, tags, reasons.texts(exported_program))

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Return the composites that inductor lowers at least as well whole."""
        return list(KEPT_OPERATORS), None


class Refusals:
    """Why operations are not taken, each looked up once."""

    def __init__(self, exclude: frozenset[str]) -> None:
        self.refused: dict[Node, str] = {}
        self._exclude = exclude
        self._known: dict[Node, str] = {}

    def why(self, node: Node) -> str:
        """Return the reason against an operation, or an empty string."""
        if node in self.refused:
            return self.refused[node]
        if node not in self._known:
            if node.target is operator.getitem and not is_symbolic(node):
                self._known[node] = self.why(producer_of(node))
            else:
                self._known[node] = why_not(node, self._exclude)
        return self._known[node]

    def texts(self, program: ExportedProgram) -> dict[str, str]:
        """Return the reason for each operation that carries no tag."""
        untagged = [
            node for node in program.graph.nodes if node.op == "call_function" and DELEGATION_TAG not in node.meta
        ]
        return {node.name: self.why(node) or (ONLY_SIZES if is_symbolic(node) else ONLY_VIEWS) for node in untagged}


def group_operations(program: ExportedProgram, reasons: Refusals) -> dict[int, list[Node]]:
    """Return the operations to compile by the number of their group, in graph order."""
    numbers = number_operations(program, reasons)
    taken = {node: number for node, number in numbers.items() if not is_symbolic(node) and not reasons.why(node)}
    useful = {number for node, number in taken.items() if not is_view(node)}
    taken = {node: number for node, number in taken.items() if number in useful}
    sizes = [node for node in numbers if is_symbolic(node) and not reasons.why(node)]
    # A size that a group both makes possible and needs must be computed inside it.
    for node in reversed(sizes):
        if any(taken.get(user) == numbers[node] for user in node.users):
            taken[node] = numbers[node]
    # Others that are needed elsewhere stay outside: each group reads them off its own tensors.
    for node in sizes:
        number = taken.get(node)
        if number is None or all(taken.get(user) == number for user in node.users):
            continue
        if all(taken.get(source) != number for source in node.all_input_nodes):
            del taken[node]
    groups: dict[int, list[Node]] = {}
    for node in numbers:
        if node in taken:
            groups.setdefault(taken[node], []).append(node)
    return groups


def number_operations(program: ExportedProgram, reasons: Refusals) -> dict[Node, int]:
    """Return each operation's number: one more than that of an input that is not taken, else its inputs' greatest."""
    numbers: dict[Node, int] = {}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and producer_of(node) in numbers:
            numbers[node] = numbers[producer_of(node)]
            continue
        refused = bool(reasons.why(node))
        numbers[node] = max(
            (
                numbers[source] + (0 if refused or not reasons.why(source) else 1)
                for source in node.all_input_nodes
                if source in numbers
            ),
            default=0,
        )
    return numbers


def find_unresolved(groups: Mapping[int, list[Node]]) -> Node | None:
    """Return an operation that needs a symbolic size which none of its group's tensor inputs shows."""
    for nodes in groups.values():
        members = set(nodes)
        inputs = {source: None for node in nodes for source in node.all_input_nodes if source not in members}
        shapes = [source.meta["val"].shape for source in inputs if isinstance(source.meta["val"], torch.Tensor)]
        needed = {source for source in inputs if is_symbolic(source) and is_symbol(source.meta["val"])}
        if not needed:
            continue
        sources = find_sources(shapes)
        bad = {source for source in needed if not is_resolvable(source.meta["val"].node.expr, sources)}
        for node in nodes:
            if bad.intersection(node.all_input_nodes):
                return node
    return None


def is_symbol(value: Any) -> bool:
    """Return whether a number is symbolic, not a Python number."""
    return isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat))


def tag_constants(program: ExportedProgram) -> None:
    """Tag the constants of partitions: with the one tag of all users, or with all tags where others use it too."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    written = {
        spec.target: nodes[spec.arg.name]
        for spec in signature.output_specs
        if spec.kind is OutputKind.BUFFER_MUTATION and spec.arg.name in nodes
    }
    for spec in signature.input_specs:
        if spec.kind not in CONSTANT_KINDS:
            continue
        node = nodes[spec.arg.name]
        found = [user.meta.get(DELEGATION_TAG) for user in node.users]
        tags = tuple(dict.fromkeys(tag for tag in found if tag is not None))
        value = written.get(spec.target)
        if value is not None:
            # State that others see, or whose new value comes from elsewhere, stays in the program.
            if len(tags) == 1 and None not in found and value.meta.get(DELEGATION_TAG) == tags[0]:
                node.meta[DELEGATION_TAG] = tags[0]
        elif len(tags) == 1 and None not in found:
            node.meta[DELEGATION_TAG] = tags[0]
        elif tags:
            node.meta[SHARED_TAGS] = tags
