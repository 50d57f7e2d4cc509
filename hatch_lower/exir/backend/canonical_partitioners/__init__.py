"""Partitioners and their parts: which operations and constants of a program a backend takes.

Everything here is linear in the graph, changes nothing of a program but `meta["delegation_tag"]` (only
`duplicate_constant_node` adds placeholders), and never proposes partitions that need each other's results.
"""

from hatch_lower.exir.backend.canonical_partitioners.canonical import (
    generate_grouped_partitions_from_list_of_nodes,
    generate_partitions_from_list_of_nodes,
    generate_pattern_op_partitions,
)
from hatch_lower.exir.backend.canonical_partitioners.capability import (
    CapabilityBasedPartitioner,
    GroupBasedPartitioner,
    GroupError,
    Partition,
    Support,
)
from hatch_lower.exir.backend.canonical_partitioners.constants import (
    duplicate_constant_node,
    duplicate_constant_nodes,
    tag_constant_data,
    tag_mutated_buffer,
)
from hatch_lower.exir.backend.canonical_partitioners.grouping import Grouping, group_nodes
from hatch_lower.exir.backend.canonical_partitioners.operators import OperatorSet, operator_name
from hatch_lower.exir.backend.canonical_partitioners.patterns import find_pattern
from hatch_lower.exir.backend.canonical_partitioners.reasons import WhyNoPartition, WhyNoPartitionReporter
from hatch_lower.exir.backend.canonical_partitioners.strategies import (
    AllNodePartitioner,
    GroupPartitioner,
    OperatorListPartitioner,
    PatternPartitioner,
    SupportPartitioner,
)

__all__ = [
    "AllNodePartitioner",
    "CapabilityBasedPartitioner",
    "GroupBasedPartitioner",
    "GroupError",
    "GroupPartitioner",
    "Grouping",
    "OperatorListPartitioner",
    "OperatorSet",
    "Partition",
    "PatternPartitioner",
    "Support",
    "SupportPartitioner",
    "WhyNoPartition",
    "WhyNoPartitionReporter",
    "duplicate_constant_node",
    "duplicate_constant_nodes",
    "find_pattern",
    "generate_grouped_partitions_from_list_of_nodes",
    "generate_partitions_from_list_of_nodes",
    "generate_pattern_op_partitions",
    "group_nodes",
    "operator_name",
    "tag_constant_data",
    "tag_mutated_buffer",
]
