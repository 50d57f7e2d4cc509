"""The compile half of the reference backend: a partition as a plan with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hatch_lower.backends.reference.claim import claim, is_operation, refuse_options
from hatch_lower.backends.reference.run import join_blob
from hatch_lower.exir.backend.backend_details import BackendDetails, CompileSpec, PreprocessResult
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.backend.utils import DelegateMappingBuilder
from hatch_lower.format.plan import write_plan
from hatch_lower.pipeline.emit.constants import constants_bytes
from hatch_lower.pipeline.emit.emit import MethodToEmit, emit_program

if TYPE_CHECKING:
    from torch.export import ExportedProgram

METHOD = "forward"


class ReferenceBackend(BackendDetails):
    """Serializes a partition; its delegate runs op by op, and keeps the state of the buffers inside."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        arguments = edge_program.call_spec.in_spec.child(0).num_children
        names = tuple(f"x{index}" for index in range(arguments))
        emitted = emit_program("reference", {METHOD: MethodToEmit(METHOD, edge_program, names)})
        mapping = DelegateMappingBuilder()
        for path, handles in emitted.debug.methods[METHOD].instructions.items():
            mapping.insert_delegate_mapping_entry(handles=handles, identifier=path)
        return PreprocessResult(
            join_blob(write_plan(emitted.plan), constants_bytes(emitted.storages)),
            debug_handle_map=mapping.get_delegate_mapping(),
            suffix="reference",
            info={"stateful": True} if any(constant.mutable for constant in emitted.plan.constants.values()) else {},
        )

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        refuse_options("reference", options)
        return ReferencePartitioner()


class ReferencePartitioner(Partitioner):
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        reason = "the reference backend leaves control flow, assertions and arithmetic on sizes to the program"
        return claim(exported_program, DelegationSpec("reference", []), is_operation, reason)
