"""Partitions from a support predicate and from groups: torch's and ExecuTorch's partitioner classes, linear."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from torch.fx import GraphModule, Node
from torch.fx.passes.infra import partitioner as torch_partitioner
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.operator_support import OperatorSupportBase

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.canonical_partitioners.grouping import group_nodes
from hatch_lower.exir.graph.operators import OperatorSet

Support = OperatorSupportBase | Callable[[Node], bool]

NON_COMPUTE_OPERATORS = ("aten.view", "_operator.getitem")
ONE_OPERATION = "no neighboring operation is taken, and partitions of a single operation are not wanted"


class GroupError(PartitionError, ValueError):
    """A node is in two groups of nodes that must stay apart from each other."""


def predicate(graph_module: GraphModule, support: Support | None) -> Callable[[Node], bool]:
    if support is None:
        return lambda node: False
    if isinstance(support, OperatorSupportBase):
        submodules = dict(graph_module.named_modules())
        return lambda node: bool(support.is_node_supported(submodules, node))
    return support


def supported_leaves(graph_module: GraphModule, support: Support | None) -> list[Node]:
    # functions are called for operations only: they may not expect a placeholder
    if not isinstance(support, OperatorSupportBase):
        return []
    supports = predicate(graph_module, support)
    return [node for node in graph_module.graph.nodes if node.op in ("placeholder", "get_attr") and supports(node)]


class CapabilityBasedPartitioner(torch_partitioner.CapabilityBasedPartitioner):
    """Proposes as few partitions of the supported nodes as possible, in time linear in the graph.

    Replaces torch's class of this name, whose time grows with the third power of the graph.

    Args:
        operator_support: the support predicate. An `OperatorSupportBase` is asked about placeholders and graph
            attributes too; accepted placeholders and attributes join the partition of their first user.
        allows_single_node_partition: keep partitions in which only one operation computes something.
        non_compute_ops: names of operators that compute nothing, besides views and `getitem`.
        allowed_single_node_partition_ops: names of operators that may be alone in a partition.
        skip_horizontal_fusion: make independent nodes partitions of their own.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        operator_support: Support,
        allows_single_node_partition: bool = False,
        non_compute_ops: Sequence[str] | None = None,
        allowed_single_node_partition_ops: Sequence[str] | None = None,
        skip_horizontal_fusion: bool = False,
    ) -> None:
        # torch's own initializer is left out: it builds the transitive closure of the graph
        self.graph_module = graph_module
        self.operator_support = operator_support  # type: ignore[assignment]
        self.allows_single_node_partition = allows_single_node_partition
        self.non_compute_ops = list(non_compute_ops or ())
        self.allowed_single_node_partition_ops = list(allowed_single_node_partition_ops or ())
        self.skip_horizontal_fusion = skip_horizontal_fusion
        self.node_groups: Sequence[Collection[Node]] = ()
        self.leaves: Iterable[Node] = ()
        self.refusals: dict[str, str] = {}  # of supported and grouped nodes in no proposed partition, by name

    def propose_partitions(self) -> list[Partition]:
        """Return the partitions in reverse running order, as torch does; the nodes are in graph order."""
        supports = predicate(self.graph_module, self.operator_support)
        leaves = [node for group in self.node_groups for node in group]
        leaves += [*self.leaves, *supported_leaves(self.graph_module, self.operator_support)]
        grouping = group_nodes(
            self.graph_module.graph, supports, self.node_groups, leaves, connected=self.skip_horizontal_fusion
        )
        self.refusals = {node.name: reason for node, reason in grouping.given_up.items()}
        counts = self.count_computing()
        proposed: list[Partition] = []
        for nodes in reversed(grouping.partitions):
            if self.allows_single_node_partition or sum(map(counts, nodes)) > 1:
                proposed.append(Partition(id=len(proposed), nodes=nodes))
            else:
                self.refusals.update({node.name: ONE_OPERATION for node in nodes})
        return proposed

    def count_computing(self) -> Callable[[Node], int]:
        idle = OperatorSet([*NON_COMPUTE_OPERATORS, *self.non_compute_ops])
        single = OperatorSet(self.allowed_single_node_partition_ops)
        # an operation that may be alone counts as two, so that its partition counts as more than one operation
        return lambda node: (node not in idle) + (node in single) if node.op == "call_function" else 0


class GroupBasedPartitioner(CapabilityBasedPartitioner):
    """Proposes partitions in which the nodes of each group are together.

    A group that cannot be in one partition (a path leaves the group through an unsupported node and comes back) is
    dissolved: its supported nodes are partitioned separately.

    Args:
        operator_support: the support predicate; unsupported nodes are removed from their groups.
        node_groups: lists of nodes to keep together.

    Raises:
        ValueError: as `GroupError`, if a node is in two groups.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        operator_support: Support,
        allows_single_node_partition: bool = False,
        non_compute_ops: Sequence[str] | None = None,
        allowed_single_node_partition_ops: Sequence[str] | None = None,
        node_groups: Sequence[Collection[Node]] | None = None,
    ) -> None:
        super().__init__(
            graph_module,
            operator_support,
            allows_single_node_partition,
            non_compute_ops,
            allowed_single_node_partition_ops,
        )
        supports = predicate(graph_module, operator_support)
        self.node_groups = [[node for node in group if supports(node)] for group in separate_groups(node_groups or ())]


def separate_groups(groups: Iterable[Iterable[Node]]) -> list[list[Node]]:
    """Return groups without repetitions; a node in two groups is a `GroupError`."""
    separated = [list(dict.fromkeys(group)) for group in groups]
    seen: dict[Node, int] = {}
    for number, group in enumerate(separated):
        for node in group:
            if seen.setdefault(node, number) != number:
                raise GroupError(
                    f"the node `{node.name}` is in two groups",
                    where=f"groups {seen[node]} and {number}",
                    hint="put each node into one group; merge groups that belong together",
                )
    return separated
