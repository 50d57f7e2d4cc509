"""Interfaces for the compile half of a backend.

A backend is two classes. The compile half is a `BackendDetails` subclass whose `preprocess` turns the edge program of
one partition into bytes, with a `Partitioner` that selects its nodes. The run half is a
`hatch_lower.runtime.delegates.Delegate` that loads the bytes. Both are found through the entry-point groups
`hatch_lower.backends` and `hatch_lower.delegates`, so an installed wheel never imports a compiler.

Names and argument names follow ExecuTorch's EXIR.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram

from hatch_lower.errors import BackendError
from hatch_lower.exir._serialize._named_data_store import NamedDataStoreOutput
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.format.constants import BLOB_SUFFIX
from hatch_lower.runtime.delegates import Delegate

__all__ = ["BackendDetails", "CompileSpec", "DebugHandleMap", "ExportedProgram", "PreprocessResult", "Target"]

DebugHandleMap = Mapping[int | str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that native code needs.

    Args:
        system: `platform.system()`.
        machine: `platform.machine()`.
        isa: the instruction set level of the processor.
        arch: the GPU architectures that the blob has machine code for: `sm_80`.
        ptx: the architecture of the blob's PTX, from which the driver of a later GPU makes machine code: `compute_80`.
        cuda: the major version of CUDA that the blob was compiled for: `13`.
    """

    system: str
    machine: str
    isa: str
    arch: tuple[str, ...] = ()
    ptx: str = ""
    cuda: str = ""


@dataclass(frozen=True, slots=True)
class PreprocessResult:
    """A backend's result for one partition.

    Args:
        processed_bytes: the blob, in the backend's own format.
        debug_handle_map: id of a delegate instruction to the debug handles that the instruction computes.
        data_store_output: named data beside the blob.
        suffix: the blob's file name suffix in the wheel, without a dot.
        requirements: PEP 508 requirements that running the blob adds, public versions only (`torch>=2.11,<2.16`).
        target: the machine that the blob needs; `None` for a portable blob.
        info: JSON-able facts that `Delegate.load` of the run half receives.
    """

    processed_bytes: bytes = b""
    debug_handle_map: DebugHandleMap | None = None
    data_store_output: NamedDataStoreOutput | None = None
    _delegate_info_meta: Any = None
    suffix: str = BLOB_SUFFIX
    requirements: tuple[str, ...] = ()
    target: Target | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class BackendDetails(ABC):
    """The compile half of a backend. Subclass it directly; subclasses are never instantiated."""

    weight_free: ClassVar[bool] = False
    """Whether the blob is independent of the weights' contents. Then `preprocess` sees stand-ins with the weights'
    layout and ties, state is left out of the cache key, and the run half is given the constants at load, in the order
    of the program's parameter, buffer and constant placeholders."""

    copies_constants: ClassVar[bool] = False
    """Whether the engine of a weight-free backend may copy its constants. Then state that methods share stays in the
    program: a change would not reach the copy. Override `copies` for an engine that copies only some constants."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        # backends are found as `BackendDetails.__subclasses__()`, which lists direct subclasses only
        if [base for base in cls.__bases__ if issubclass(base, BackendDetails)] != [BackendDetails]:
            parents = ", ".join(base.__name__ for base in cls.__bases__)
            raise TypeError(f"backend {cls.__name__} derives from {parents}; derive it from BackendDetails directly")

    @classmethod
    def copies(cls, constant: torch.Tensor) -> bool:
        """Return whether a delegate of this backend may hold a copy of a constant, which may be without contents."""
        return cls.copies_constants or not cls.weight_free

    @staticmethod
    @abstractmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Lower one partition, which is the backend's own copy; raise any exception to refuse the partition."""

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        """Return the program that `preprocess` is given; by default `edge_program` itself.

        Its graph is the backend's own and may be changed. Its tensors are the model's: a backend that changes tensors
        overrides this method and copies those tensors.
        """
        return edge_program

    @classmethod
    def preprocess_many(
        cls, edge_programs: Sequence[ExportedProgram], compile_specs: Sequence[list[CompileSpec]]
    ) -> list[PreprocessResult]:
        """Lower independent partitions; by default one after the other.

        Override to lower several partitions at a time. Each result may depend only on its own program and options,
        because each is cached separately.
        """
        return [cls.preprocess(program, specs) for program, specs in zip(edge_programs, compile_specs, strict=True)]

    @classmethod
    def preprocess_multimethod(
        cls, edge_programs: Mapping[str, list[ExportedProgram]], compile_specs: Mapping[str, list[list[CompileSpec]]]
    ) -> dict[str, list[PreprocessResult]]:
        """Lower all partitions of all methods in one call, so that partitions can share data.

        Override only to share data. Then each call is given all partitions, including equal partitions, and the results
        are a single cache entry: any change lowers all partitions again. Without an override the method is never
        called.
        """
        return {
            method: cls.preprocess_many(programs, compile_specs[method]) for method, programs in edge_programs.items()
        }

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        """Return the partitioner for a recipe's options (TOML values).

        Raises:
            BackendError: if an option is unknown or ill-typed.
        """
        msg = "a backend without a partitioner cannot be named in a recipe"
        raise BackendError(msg, where=cls.__name__, hint="define the classmethod `partitioner(options)`")

    @classmethod
    def device(cls, options: Mapping[str, Any]) -> str:
        """Return the type of the device that delegates compute on for a recipe's options (TOML values).

        `cpu` or `cuda`. All backends of a recipe have the same device, on which the arrays of the program live, too.
        """
        return "cpu"

    @classmethod
    def stand_in(cls) -> AbstractContextManager[type[Delegate]] | None:
        """Return a run half for machines without the device, which computes on the CPU while the context is open.

        For `verify = "interpret"`; `None`: the backend has none. Raises a `BackendError` if a tool is missing.
        """
        return None

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        """Return the versions of everything that shapes the blob beside torch: libraries, compilers, this code."""
        return {}

    @classmethod
    def requirements(cls, options: Mapping[str, Any]) -> Sequence[str]:
        """Return the PEP 508 requirements that are known before lowering and that every `PreprocessResult` implies.

        A build whose project does not depend on the requirements ends before lowering.

        Args:
            options: a recipe's options (TOML values).
        """
        return ()

    @classmethod
    def tools(cls, options: Mapping[str, Any]) -> Sequence[str]:
        """Return the commands whose executables shape the blobs: names that `PATH` finds, or paths.

        While neither the executables nor the other inputs of an export change, a build uses the earlier result without
        asking the backend. So name every compiler that `preprocess` may run, in the order of its search, installed or
        not.
        """
        return ()
