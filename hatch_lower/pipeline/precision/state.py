"""The tensors of a model that calls change, and their values before any call."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

import torch
from torch.export import ExportedProgram

from hatch_lower.exir.graph.nodes import written_into
from hatch_lower.exir.graph.state import constant_of, constant_placeholders
from hatch_lower.exir.graph.surgery import attribute_of, functionalized
from hatch_lower.exir.graph.tensors import is_plain_tensor, storage_key


def changed_storages(programs: Iterable[ExportedProgram]) -> frozenset[int]:
    """Return the storage keys of the constants that programs write into, directly or through views."""
    return frozenset(
        storage_key(constant_of(program, spec))
        for program in programs
        for node, spec in constant_placeholders(program).items()
        if node in written_into(program.graph_module)
    )


def state_names(program: ExportedProgram, storages: Collection[int]) -> frozenset[str]:
    """Return the names of a program's constants that lie in storages, whichever method changes these."""
    named = {str(spec.target): constant_of(program, spec) for spec in constant_placeholders(program).values()}
    return frozenset(
        name for name, tensor in named.items() if is_plain_tensor(tensor) and storage_key(tensor) in storages
    )


def without_writes(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which no operation writes into memory that another operation reads.

    A cast or an observer stands behind the operation that makes a value, and misses later writes into its memory.
    """
    return functionalized(program) if written_into(program.graph_module) else program


class InitialState:
    """The values of a module's state before any call.

    A module of a method lacks the tensors that only other methods use.
    """

    def __init__(self, module: torch.nn.Module, names: Collection[str]) -> None:
        tensors: list[torch.Tensor] = []
        for name in sorted(names):
            with suppress(AttributeError):
                tensors.append(attribute_of(module, name))
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)
