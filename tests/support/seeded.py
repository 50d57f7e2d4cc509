"""Engines with a fault: one operation of one module computes something else, as soon as a backend lowers it.

The fault is put into what a backend is given, so that it is in every program that has the operation; torch goes on to
compute what was exported. One that needs another operation is there only where that is in the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from hatch_lower.exir.backend import backend_api
from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.exir.backend.partitioner import DelegationSpec
from hatch_lower.exir.dialects._ops import ops
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.surgery import copy_program
from hatch_lower.exir.lowering.preprocess import PreprocessRequest
from hatch_lower.pipeline.emit.sources import module_path
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

Change = Callable[[Graph, Node], Node]

CHANGES: dict[str, Change] = {
    "double": lambda graph, node: graph.call_function(ops.edge.aten.add.Tensor, (node, node)),
    "square": lambda graph, node: graph.call_function(ops.edge.aten.mul.Tensor, (node, node)),
    "clip": lambda graph, node: graph.call_function(ops.edge.aten.relu.default, (node,)),
    "squash": lambda graph, node: graph.call_function(ops.edge.aten.sigmoid.default, (node,)),
}


@dataclass(frozen=True)
class Place:
    """An operation: the path of its module, and the names that engines know it by (`linear`, `addmm`)."""

    module: str
    names: frozenset[str]

    @staticmethod
    def of(module: str, *names: str) -> Place:
        return Place(module, frozenset(names))

    def node_in(self, program: ExportedProgram) -> Node | None:
        found = [node for node in program.graph.nodes if self._is_at(node)]
        assert len(found) < 2, f"{self} is not one operation: {found}"
        return found[0] if found else None

    def _is_at(self, node: Node) -> bool:
        operator = torch_operator(node.target)
        is_named = isinstance(operator, OpOverload) and base_name(operator) in self.names
        return is_named and module_path(node) == self.module


@dataclass(frozen=True)
class Fault:
    at: Place
    change: str = "double"
    beside: Place | None = None  # the other operation that it needs

    def applied(self, program: ExportedProgram) -> ExportedProgram:
        if self.at.node_in(program) is None or (self.beside is not None and self.beside.node_in(program) is None):
            return program
        copied = copy_program(program)
        node = self.at.node_in(copied)
        assert node is not None
        # of an operation with several results the first one is changed
        node = next((user for user in node.users if user.op == "call_function" and user.args[1:] == (0,)), node)
        assert isinstance(node.meta["val"], torch.Tensor)
        users = list(node.users)
        with copied.graph.inserting_after(node):
            changed = CHANGES[self.change](copied.graph, node)
        changed.meta.update(node.meta)
        for user in users:
            user.replace_input_with(node, changed)
        for spec in copied.graph_signature.output_specs:
            if spec.arg.name == node.name:
                spec.arg.name = changed.name
        copied.graph_module.recompile()
        return copied


@contextmanager
def seeded(fault: Fault) -> Iterator[list[ExportedProgram]]:
    """Give backends faulty programs; yield the list of those that were changed."""
    original = backend_api.make_request
    changed: list[ExportedProgram] = []

    def make_request(
        method: str, spec: DelegationSpec, backend: type[BackendDetails], program: ExportedProgram
    ) -> PreprocessRequest:
        given = fault.applied(program)
        if given is not program:
            changed.append(program)
        return original(method, spec, backend, given)

    backend_api.make_request = make_request
    try:
        yield changed
    finally:
        backend_api.make_request = original
