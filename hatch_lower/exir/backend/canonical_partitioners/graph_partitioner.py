"""Partitioners for any backend: all nodes, a list of operators, patterns, a support predicate, groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from types import MappingProxyType
from typing import ClassVar

from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from hatch_lower.exir.backend.canonical_partitioners.group_partitioner import (
    CapabilityBasedPartitioner,
    Support,
    predicate,
)
from hatch_lower.exir.backend.canonical_partitioners.patterns import pattern_places
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.backend.utils import WhyNoPartitionReporter, tag_constant_data, tag_mutated_buffer
from hatch_lower.exir.graph.nodes import producer_of
from hatch_lower.exir.graph.operators import OperatorSet, operator_name
from hatch_lower.exir.graph.surgery import nested_graph_modules
from hatch_lower.runtime.torch_private.operators import OpOverload

KeptOperators = tuple[list[OpOverload], Callable[[Node], bool] | None]


class SupportPartitioner(Partitioner):
    """Takes the operations that a predicate supports, in as few partitions as possible.

    Args:
        support: torch's or ExecuTorch's operator support object, or a function of a node.
        reporter: receives the reasons of `support` for refusing nodes; the reasons go into the result.
        allows_single_node_partition: take partitions in which only one operation computes something.
        non_compute_ops: names of operators that compute nothing, besides views and `getitem`.
        keep: operators that are not decomposed.
        keep_filter: whether a call of an operator in `keep` is kept; by default all calls are.
    """

    # the default reason for an operation in no partition
    refusal: ClassVar[str] = "the backend `{backend}` does not support this call of `{operator}`"

    def __init__(
        self,
        backend_id: str,
        compile_specs: list[CompileSpec],
        support: Support,
        *,
        reporter: WhyNoPartitionReporter | None = None,
        allows_single_node_partition: bool = True,
        non_compute_ops: Sequence[str] = (),
        keep: Iterable[OpOverload] = (),
        keep_filter: Callable[[Node], bool] | None = None,
    ) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)
        self.support = support
        self.reporter = reporter
        self.allows_single_node_partition = allows_single_node_partition
        self.non_compute_ops = tuple(non_compute_ops)
        self.keep = tuple(keep)
        self.keep_filter = keep_filter

    def proposer(self, graph_module: GraphModule) -> CapabilityBasedPartitioner:
        return CapabilityBasedPartitioner(
            graph_module, self.support, self.allows_single_node_partition, self.non_compute_ops
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        if self.reporter is not None:
            self.reporter.clear()
        tags: dict[str, DelegationSpec] = {}
        reasons = WhyNoPartitionReporter()
        self.tag_graph(exported_program.graph_module, tags, reasons)
        tag_constant_data(exported_program)
        tag_mutated_buffer(exported_program)
        return PartitionResult(exported_program, tags, reasons.reasons)

    def tag_graph(
        self, graph_module: GraphModule, tags: dict[str, DelegationSpec], reasons: WhyNoPartitionReporter
    ) -> None:
        proposer = self.proposer(graph_module)
        partitions = proposer.propose_partitions()
        # reversed: the last partition to run is proposed first, and tags are numbered in running order
        for partition in reversed(partitions):
            tag = f"{self.delegation_spec.backend_id}_{len(tags)}"
            tags[tag] = self.delegation_spec
            for node in partition.nodes:
                node.meta[DELEGATION_TAG] = tag
        # only after the proposal: the support predicate reports its reasons when called
        known = {**proposer.refusals, **({} if self.reporter is None else self.reporter.reasons)}
        taken = {node for partition in partitions for node in partition.nodes}
        for node in graph_module.graph.nodes:
            if node.op == "call_function" and node not in taken:
                operator = operator_name(producer_of(node).target)
                default = self.refusal.format(operator=operator, backend=self.delegation_spec.backend_id)
                reasons.report_reject(node, known.get(node.name) or default)
        whole = {  # branches of control flow that is taken whole belong to its partition
            node.target
            for node in graph_module.graph.find_nodes(op="get_attr")
            if any(DELEGATION_TAG in user.meta for user in node.users)
        }
        for name, nested in nested_graph_modules(graph_module):
            if name not in whole:
                self.tag_graph(nested, tags, reasons)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        return list(self.keep), self.keep_filter


class OperatorListPartitioner(SupportPartitioner):
    """Takes the calls of listed operators, and keeps the listed operators from decomposition.

    Args:
        operators: overloads or packets of any dialect, functions, or names (`aten.add.Tensor`, `aten.add`).
    """

    refusal = "`{operator}` is not among the operators of the backend `{backend}`"

    def __init__(
        self,
        backend_id: str,
        compile_specs: list[CompileSpec],
        operators: Iterable[object],
        *,
        allows_single_node_partition: bool = True,
        non_compute_ops: Sequence[str] = (),
    ) -> None:
        listed = OperatorSet(operators)
        super().__init__(
            backend_id,
            compile_specs,
            listed.__contains__,
            allows_single_node_partition=allows_single_node_partition,
            non_compute_ops=non_compute_ops,
            keep=listed.overloads(),
        )
        self._spec = MappingProxyType({"operators": listed.operators})


class GroupPartitioner(SupportPartitioner):
    """Takes groups of operations, each whole or not at all, and further operations that a predicate supports.

    Args:
        find_groups: returns the groups of a graph; groups that overlap are taken together.
        support: the predicate for operations outside the groups.
    """

    refusal = "this call of `{operator}` is in no group that `{backend}` takes"

    def __init__(
        self,
        backend_id: str,
        compile_specs: list[CompileSpec],
        find_groups: Callable[[GraphModule], Sequence[Collection[Node]]],
        support: Support | None = None,
        *,
        keep: Iterable[OpOverload] = (),
        keep_filter: Callable[[Node], bool] | None = None,
    ) -> None:
        alone = (lambda node: False) if support is None else support
        super().__init__(backend_id, compile_specs, alone, keep=keep, keep_filter=keep_filter)
        self.find_groups = find_groups

    def proposer(self, graph_module: GraphModule) -> CapabilityBasedPartitioner:
        # as a function: beside groups a support object is asked about operations only
        supports = predicate(graph_module, self.support)
        proposer = CapabilityBasedPartitioner(graph_module, supports, allows_single_node_partition=True)
        proposer.node_groups = self.find_groups(graph_module)
        return proposer


class PatternPartitioner(GroupPartitioner):
    """Takes the places of patterns, each whole or not at all, and further operations that a predicate supports.

    Args:
        patterns: graphs in the edge dialect, for example of a pattern's edge program.
        support: the predicate for operations outside the patterns.
        ignore_literals: let literals of the patterns stand for any value.
    """

    refusal = "no pattern of the backend `{backend}` covers this call of `{operator}`"

    def __init__(
        self,
        backend_id: str,
        compile_specs: list[CompileSpec],
        patterns: Sequence[Graph],
        support: Support | None = None,
        *,
        ignore_literals: bool = False,
        keep: Iterable[OpOverload] = (),
        keep_filter: Callable[[Node], bool] | None = None,
    ) -> None:
        super().__init__(backend_id, compile_specs, self.places, support, keep=keep, keep_filter=keep_filter)
        self.patterns = tuple(patterns)
        self.ignore_literals = ignore_literals

    def places(self, graph_module: GraphModule) -> list[list[Node]]:
        return pattern_places(graph_module.graph, self.patterns, self.ignore_literals)
