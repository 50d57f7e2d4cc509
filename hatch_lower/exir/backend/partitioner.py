"""Interfaces for partitioners, which select the nodes of a program that a backend takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.runtime.torch_private.operators import OpOverload

DELEGATION_TAG = "delegation_tag"  # the key of `node.meta` under which a partitioner writes a node's tag
# The key of the reason why a build leaves a node to torch. A tag on the node is removed later; a partitioner that reads
# the key can choose better partitions.
LEFT_OUT = "hatch_lower_left_out"


class DelegationSpec(NamedTuple):
    """The backend of a partition, and its options."""

    backend_id: str
    compile_specs: list[CompileSpec]


class Partitioner(ABC):
    """Selects the nodes of an edge program that a backend takes, by writing `node.meta["delegation_tag"]`."""

    def __init__(self, spec: Mapping[Any, Any] = MappingProxyType({})) -> None:
        self._spec = spec

    def __call__(self, exported_program: ExportedProgram) -> PartitionResult:
        return self.partition(exported_program)

    @property
    def spec(self) -> Mapping[Any, Any]:
        return self._spec

    @abstractmethod
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag nodes and return the tags' delegation specs; the rest of the program stays unchanged."""

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Return the ops to keep whole, and an optional filter on nodes."""
        return ([], None)


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """A program whose nodes carry `delegation_tag`, and the delegation spec of each tag."""

    tagged_exported_program: ExportedProgram
    partition_tags: dict[str, DelegationSpec]
    reasons: Mapping[str, str] = field(default_factory=dict)  # name of a node that was not taken, to the reason
    # operators that were taken although they differ from eager for NaN or infinity, for `finite-only` allows it
    finite_only: frozenset[str] = frozenset()
