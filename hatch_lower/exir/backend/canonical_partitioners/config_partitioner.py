"""A partitioner that takes operations by configurations, each for one operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.infra.partitioner import Partition

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.canonical_partitioners.pattern_op_partitioner import (
    generate_grouped_partitions_from_list_of_nodes,
)
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.exir.graph.state import constant_specs
from hatch_lower.runtime.torch_private.operators import OpOverload


def is_constant_data(ep: ExportedProgram, node: Node) -> bool:
    return any(spec.arg.name == node.name for spec in constant_specs(ep))


def format_target_name(target_name: str) -> str:
    """Return `add.Tensor` for `aten.add.Tensor`: an operator's name without its namespace."""
    parts = target_name.split(".")
    return ".".join(parts[1:] if len(parts) > 2 else parts)


class PartitionerConfig(ABC):
    """The calls of one operator that a backend takes."""

    @property
    @abstractmethod
    def target_name(self) -> str:
        """The operator's name without its namespace, `linear.default`; usually a class attribute."""

    @abstractmethod
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        """Return whether the backend takes a call of the operator."""

    @abstractmethod
    def get_original_aten(self) -> OpOverload | None:
        """Return the operator of the exported program that must not be decomposed for the call to be found, if any."""

    @abstractmethod
    def get_partition(self, node: Node, ep: ExportedProgram) -> list[Node]:
        """Return the nodes to take with a call, including the call; may be empty."""


class ConfigerationBasedPartitioner(Partitioner):
    """Takes the calls that its configurations accept; nodes that are taken with the same node are in one partition.

    Two configurations for the same operator are a `PartitionError`.
    """

    def __init__(self, delegation_spec: DelegationSpec, partitioner_configs: Iterable[PartitionerConfig]) -> None:
        super().__init__()
        self.delegation_spec = delegation_spec
        self.target_partitioner_configs: dict[str, PartitionerConfig] = {}
        for config in partitioner_configs:
            other = self.target_partitioner_configs.setdefault(config.target_name, config)
            if other is not config:
                raise PartitionError(
                    f"two configurations have the same target_name `{config.target_name}`",
                    found=f"{type(other).__name__} and {type(config).__name__}",
                    hint="pass only one of the two",
                )

    def config_of(self, node: Node, ep: ExportedProgram) -> PartitionerConfig | None:
        if node.op != "call_function":
            return None
        config = self.target_partitioner_configs.get(format_target_name(operator_name(node.target)))
        return config if config is not None and config.check_constraints(node, ep) else None

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        operators = (config.get_original_aten() for config in self.target_partitioner_configs.values())

        def is_taken(node: Node) -> bool:
            config = self.config_of(node, ep)
            return config is not None and config.get_original_aten() is not None

        return [op for op in operators if op is not None], is_taken

    def get_matched_nodes_from_configs(self, ep: ExportedProgram) -> list[list[Node]]:
        group_of: dict[Node, list[Node]] = {}
        for node in list(ep.graph.nodes):
            config = self.config_of(node, ep)
            if config is None:
                continue
            # a constant of an earlier group does not join two groups: every partition may own the constant
            taken = [
                member
                for member in config.get_partition(node, ep)
                if member not in group_of or not is_constant_data(ep, member)
            ]
            joined = list(
                dict.fromkeys(member for neighbour in taken for member in (*group_of.get(neighbour, ()), neighbour))
            )
            group_of.update(dict.fromkeys(joined, joined))
        return list({id(group): group for group in group_of.values()}.values())

    def generate_partitions(self, ep: ExportedProgram) -> list[Partition]:
        return generate_grouped_partitions_from_list_of_nodes(ep.graph_module, self.get_matched_nodes_from_configs(ep))

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags: dict[str, DelegationSpec] = {}
        for partition in self.generate_partitions(exported_program):
            tag = f"tag{partition.id}"
            tags[tag] = self.delegation_spec
            for node in partition.nodes:
                node.meta[DELEGATION_TAG] = tag
        return PartitionResult(exported_program, tags)
