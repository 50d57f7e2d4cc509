"""The compile half of the null backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hatch_lower.backends.reference.claim import claim, refuse_options
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class NullBackend(BackendDetails):
    """Takes everything as a single partition without bytes."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return PreprocessResult(b"", suffix="null")

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        refuse_options("null", options)
        return NullPartitioner()


class NullPartitioner(Partitioner):
    """Tags every operation, control flow and arithmetic on sizes included, and every constant in use."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return claim(exported_program, DelegationSpec("null", []), lambda node: True, "")
