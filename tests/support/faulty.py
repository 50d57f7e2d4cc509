"""A backend with faults of an engine: operators that it computes wrongly, refuses to lower, or fails to load or run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.backends.reference.claim import claim, is_operation
from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.errors import ProgramError
from hatch_lower.exir.backend.backend_details import BackendDetails, CompileSpec, PreprocessResult
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.dialects._ops import ops
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.surgery import copy_program
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.selection import DelegateKinds
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

SWAPPED = {
    "sin": ops.edge.aten.cos.default,
    "cos": ops.edge.aten.sin.default,
    "tanh": ops.edge.aten.sigmoid.default,
    "relu": ops.edge.aten.abs.default,
    "exp": ops.edge.aten.sin.default,
}
"""What the backend computes in the place of an operator."""


@dataclass(frozen=True)
class Faults:
    """Names of operators, as `sin`."""

    wrong: tuple[str, ...] = ()
    wrong_pairs: tuple[tuple[str, str], ...] = ()  # the first is wrong where the second is in the same program
    refused: tuple[str, ...] = ()
    refused_pairs: tuple[tuple[str, str], ...] = ()  # a program with both
    not_loaded: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()
    refuses_all: bool = False
    fixes_sizes: bool = False  # reads each dynamic size as a number
    incomplete: bool = False  # a library of it is missing


def name_of(node: Node) -> str:
    target = torch_operator(node.target)
    return base_name(target) if isinstance(target, OpOverload) else ""


def names_in(program: ExportedProgram) -> set[str]:
    return {name_of(node) for node in program.graph.nodes if node.op == "call_function"}


class FaultyBackend(BackendDetails):
    faults: ClassVar[Faults] = Faults()
    lowered: ClassVar[int] = 0  # calls of `preprocess`

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        cls.lowered += 1
        faults, there = cls.faults, names_in(edge_program)
        refused = [name for name in faults.refused if name in there]
        refused += [f"{one} beside {other}" for one, other in faults.refused_pairs if {one, other} <= there]
        if refused or faults.refuses_all:
            raise ValueError(f"no kernel for {', '.join(refused) or 'anything'}")
        wrong = {*faults.wrong, *(one for one, other in faults.wrong_pairs if other in there)}
        copied = copy_program(edge_program)
        for node in copied.graph.nodes if faults.fixes_sizes else ():
            if isinstance(value := node.meta.get("val"), torch.Tensor):
                list(map(int, value.shape))
        for node in copied.graph.nodes:
            if node.op == "call_function" and name_of(node) in wrong:
                node.target = SWAPPED[name_of(node)]
        copied.graph_module.recompile()
        made = ReferenceBackend.preprocess(copied, [])
        broken = {
            "load": any(name in there for name in faults.not_loaded),
            "run": any(name in there for name in faults.not_run),
        }
        return replace(made, info={**made.info, **broken}, suffix="faulty")

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        if cls.faults.incomplete:
            raise OSError("no compiler")
        return {"faults": repr(asdict(cls.faults))}

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        return FaultyPartitioner()


class FaultyPartitioner(Partitioner):
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return claim(exported_program, DelegationSpec("faulty", []), is_operation, "it is no operation")


class FaultyDelegate(Delegate):
    def __init__(self, inner: Delegate, fails: bool) -> None:
        self._inner = inner
        self._fails = fails

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Any]) -> Delegate:
        if blob.info.get("load"):
            raise ProgramError("the engine does not load the partition")
        known = {key: value for key, value in blob.info.items() if key not in ("load", "run")}
        inner = ReferenceDelegate.load(replace(blob, info=known), constants)
        return FaultyDelegate(inner, bool(blob.info.get("run")))

    def run(self, inputs: list[torch.Tensor]) -> Any:
        if self._fails:
            raise RuntimeError("the engine fails")
        return self._inner.run(inputs)


def declare(patch: pytest.MonkeyPatch) -> None:
    """Let the backends `faulty` and `reference` be the ones that are installed."""
    declared = [
        EntryPoint("faulty", f"{__name__}:FaultyBackend", "hatch_lower.backends"),
        EntryPoint("reference", "hatch_lower.backends.reference.compile:ReferenceBackend", "hatch_lower.backends"),
    ]
    halves: dict[str, type[Delegate]] = {"faulty": FaultyDelegate, "reference": ReferenceDelegate}
    patch.setattr("hatch_lower.exir.backend.registry.entry_points", lambda group: declared)
    patch.setattr(DelegateKinds, "load", lambda self, name: halves[name])


@contextmanager
def faulty(**faults: Any) -> Iterator[Callable[[], int]]:
    """Give the backend faults; yield a function that returns how many programs it has lowered since."""
    before, FaultyBackend.faults = FaultyBackend.faults, Faults(**faults)
    FaultyBackend.lowered = 0
    try:
        yield lambda: FaultyBackend.lowered
    finally:
        FaultyBackend.faults = before
