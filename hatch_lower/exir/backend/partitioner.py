"""What the author of a partitioner imports: a partitioner says which nodes of a program a backend takes."""

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
# The key under which stands why a build leaves a node to torch. A tag on the node is taken away again; a partitioner
# that reads the key can choose better what else it takes.
LEFT_OUT = "hatch_lower_left_out"


class DelegationSpec(NamedTuple):
    """Which backend takes a partition, and with which options."""

    backend_id: str
    compile_specs: list[CompileSpec]


class Partitioner(ABC):
    """Says which nodes of an edge program a backend takes, by writing `node.meta["delegation_tag"]`."""

    def __init__(self, spec: Mapping[Any, Any] = MappingProxyType({})) -> None:
        self._spec = spec

    def __call__(self, exported_program: ExportedProgram) -> PartitionResult:
        return self.partition(exported_program)

    @property
    def spec(self) -> Mapping[Any, Any]:
        return self._spec

    @abstractmethod
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag nodes and return the tags' delegation specs; everything else of the program is left as it is."""

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Return the ops to keep whole, and an optional filter on nodes."""
        return ([], None)


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """A program whose nodes carry `delegation_tag`, and what each tag means."""

    tagged_exported_program: ExportedProgram
    partition_tags: dict[str, DelegationSpec]
    reasons: Mapping[str, str] = field(default_factory=dict)  # node name to the reason why it was not taken
    # operators that were taken although they differ from eager for NaN or infinity, for `finite-only` allows it
    finite_only: frozenset[str] = frozenset()
