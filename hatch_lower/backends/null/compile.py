"""The compile half of the null backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hatch_lower.backend.api import (
    BackendDetails,
    CompileSpec,
    DelegationSpec,
    Partitioner,
    PartitionResult,
    PreprocessResult,
)
from hatch_lower.errors import BackendError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["NullBackend", "NullPartitioner"]


class NullBackend(BackendDetails):
    """Takes everything as one partition and makes empty bytes of it."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Return an empty blob."""
        return PreprocessResult(b"", suffix="null")

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        """Return the partitioner.

        Raises:
            BackendError: if there are options: it has none.
        """
        refuse_options("null", options)
        return NullPartitioner()


class NullPartitioner(Partitioner):
    """Tags every operation, control flow and arithmetic on sizes included, and every constant."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag everything with one tag."""
        tag = "null_0"
        constants = constant_names(exported_program)
        found = False
        for node in exported_program.graph.nodes:
            if node.op == "call_function" or node.name in constants:
                node.meta["delegation_tag"] = tag
                found = found or node.op == "call_function"
        return PartitionResult(exported_program, {tag: DelegationSpec("null", [])} if found else {})
