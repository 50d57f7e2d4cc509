"""Backends and partitioners for tests of the machinery."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram

from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.graph.state import STATE_MUTATIONS, constant_specs
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

calls: list[tuple[ExportedProgram, list[CompileSpec]]] = []


class RecordingBackend(BackendDetails):
    """Notes each `preprocess` call; its blob is the text of the graph that it was given."""

    weight_free = True

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        calls.append((edge_program, compile_specs))
        handles = {
            index: (node.meta["debug_handle"],)
            for index, node in enumerate(edge_program.graph.nodes)
            if node.op == "call_function"
        }
        return PreprocessResult(str(edge_program.graph).encode(), handles)


class RecordingWeightsBackend(BackendDetails):
    """As `RecordingBackend`, for a backend whose blob depends on the weights' contents."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        calls.append((edge_program, compile_specs))
        return PreprocessResult(b"weights inside")


@contextmanager
def recorded() -> Iterator[list[tuple[ExportedProgram, list[CompileSpec]]]]:
    """Give the `preprocess` calls from the start of the block on."""
    calls.clear()
    yield calls


class TagBy(Partitioner):
    """Tags each operation as `choose(name)` says (`None`: not taken), and every constant by its first tagged user."""

    def __init__(
        self,
        choose: Callable[[torch.fx.Node], str | None],
        backend_id: str = "RecordingBackend",
        specs: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__()
        self.choose = choose
        self.backend = DelegationSpec(backend_id, [CompileSpec(key, value) for key, value in (specs or {}).items()])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags = {}
        for node in exported_program.graph.nodes:
            if node.op == "call_function" and (tag := self.choose(node)) is not None:
                node.meta["delegation_tag"] = tag
                tags[tag] = self.backend
        users = exported_program.graph_signature.user_inputs
        for node in exported_program.graph.nodes:
            if node.op == "placeholder" and node.name not in users:
                for user in node.users:
                    if user.meta.get("delegation_tag"):
                        node.meta["delegation_tag"] = user.meta["delegation_tag"]
                        break
        return PartitionResult(exported_program, tags)


def everything(node: torch.fx.Node) -> str:
    """Put every operation into one partition."""
    return "all"


class BoundBackend(BackendDetails):
    """Weight-free: its blob names a program that `BoundDelegate` interprets on the constants that it is bound to."""

    weight_free = True
    programs: ClassVar[dict[str, ExportedProgram]] = {}

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        name = f"program {len(cls.programs)}"
        cls.programs[name] = edge_program
        return PreprocessResult(name.encode())


class BoundDelegate(Delegate):
    """Runs a program of `BoundBackend` node by node; new state is written to the constants."""

    def __init__(self, program: ExportedProgram, constants: Sequence[torch.Tensor]) -> None:
        self.program = program
        self.constants = list(constants)
        names = [spec.target for spec in constant_specs(program)]
        outputs = program.graph_signature.output_specs
        self.written = [names.index(spec.target) for spec in outputs if spec.kind in STATE_MUTATIONS]

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[torch.Tensor]) -> BoundDelegate:
        return cls(BoundBackend.programs[blob.path.read_text()], constants)

    def run(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        results = torch.fx.Interpreter(self.program.graph_module).run(*self.constants, *inputs)
        new = [result.clone() for result in results[: len(self.written)]]
        for index, value in zip(self.written, new, strict=True):
            self.constants[index].copy_(value)
        return results[len(self.written) :]


class Versioned(BackendDetails):
    """Takes every `relu`; a library counts for its blobs."""

    library: ClassVar[str] = "1.0"

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return PreprocessResult(f"made with {Versioned.library}".encode())

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        return TagBy(lambda node: str(node) if "relu" in str(node.target) else None, "Versioned")

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        if cls.library == "broken":
            raise BackendError("the library is broken")
        return {"library": cls.library}
