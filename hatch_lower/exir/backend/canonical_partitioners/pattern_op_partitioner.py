"""ExecuTorch's functions that make partitions of patterns and of lists of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import Partition

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.canonical_partitioners.group_partitioner import (
    CapabilityBasedPartitioner,
    Support,
    predicate,
    separate_groups,
    supported_leaves,
)
from hatch_lower.exir.backend.canonical_partitioners.patterns import pattern_places


def generate_pattern_op_partitions(
    graph_module: GraphModule,
    patterns: Sequence[Graph] | None = None,
    partitions_list: Sequence[Sequence[Node]] | None = None,
    op_support: Support | None = None,
    ignore_literals: bool = False,
    skip_horizontal_fusion: bool = False,
) -> list[Partition]:
    """Return the largest partitions of the places of patterns, listed nodes and supported nodes.

    A place of a pattern is taken whole or, apart from nodes that are supported by themselves, not at all.

    Args:
        partitions_list: lists of nodes to take beside the patterns.
        ignore_literals: let literals of the patterns stand for any value.
        skip_horizontal_fusion: make independent nodes partitions of their own.

    Raises:
        PartitionError: for a pattern that has no operation or is not connected.
    """
    listed = {node: None for nodes in partitions_list or () for node in nodes}
    alone = predicate(graph_module, op_support)
    partitioner = CapabilityBasedPartitioner(
        graph_module,
        lambda node: node in listed or alone(node),
        allows_single_node_partition=True,
        skip_horizontal_fusion=skip_horizontal_fusion,
    )
    partitioner.node_groups = pattern_places(graph_module.graph, patterns or (), ignore_literals)
    partitioner.leaves = [*listed, *supported_leaves(graph_module, op_support)]
    return partitioner.propose_partitions()


def generate_partitions_from_list_of_nodes(
    graph_module: GraphModule, pattern_list: Sequence[Sequence[Node]] | None = None, op_support: Support | None = None
) -> list[Partition]:
    """Return the largest partitions of listed and supported nodes; the division into lists is ignored."""
    require_either(pattern_list, op_support)
    return generate_pattern_op_partitions(graph_module, partitions_list=pattern_list, op_support=op_support)


def generate_grouped_partitions_from_list_of_nodes(
    graph_module: GraphModule, pattern_list: Sequence[Sequence[Node]] | None = None, op_support: Support | None = None
) -> list[Partition]:
    """Return the largest partitions of listed and supported nodes in which the nodes of each list are together.

    A list that cannot be in one partition is left out, but for its nodes that are supported by themselves. A node in
    two lists is a `GroupError`, which is a `ValueError`.
    """
    require_either(pattern_list, op_support)
    supports = predicate(graph_module, op_support)
    partitioner = CapabilityBasedPartitioner(graph_module, supports, allows_single_node_partition=True)
    partitioner.node_groups = separate_groups(pattern_list or ())
    return partitioner.propose_partitions()


def require_either(pattern_list: Sequence[Sequence[Node]] | None, op_support: Support | None) -> None:
    if pattern_list is None and op_support is None:
        raise PartitionError(
            "there is neither a list of nodes nor a support object to partition by",
            hint="pass `pattern_list` or `op_support`",
        )
