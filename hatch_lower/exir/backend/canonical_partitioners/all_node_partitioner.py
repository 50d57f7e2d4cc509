"""The partitioner that takes a whole program."""

from __future__ import annotations

from torch.export import ExportedProgram

from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.graph.state import constant_placeholders


class AllNodePartitioner(Partitioner):
    """Tags every operation and every constant of a program with one tag, the backend's id."""

    def __init__(self, backend_id: str, compile_specs: list[CompileSpec]) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tag = self.delegation_spec.backend_id
        constants = constant_placeholders(exported_program)
        tags = {}
        for node in exported_program.graph.nodes:
            if node.op != "output" and (node.op != "placeholder" or node in constants):
                node.meta[DELEGATION_TAG] = tag
                tags[tag] = self.delegation_spec
        return PartitionResult(exported_program, tags)
