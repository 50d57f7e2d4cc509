"""Submodules as programs: what they own, in which order, and what their owner may drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from hatch_lower.errors import PartitionError
from hatch_lower.exir.graph.surgery import copy_program
from hatch_lower.exir.lowered_backend_module import create_exported_program_from_submodule, create_submodule_from_nodes
from hatch_lower.exir.lowering.convert import to_edge

pytestmark = pytest.mark.torch


class Counter(torch.nn.Module):
    def __init__(self, *, returned: bool = False) -> None:
        super().__init__()
        self.returned = returned
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 3))
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = x * self.weight + self.shift
        total = self.total + result
        self.total.copy_(total)
        return (torch.relu(result) * self.weight, total) if self.returned else (torch.relu(result) * self.weight,)


def tagged(made: torch.nn.Module, choose: Callable[[Node], bool]) -> ExportedProgram:
    program = copy_program(to_edge(torch.export.export(made.eval(), (torch.randn(3),), strict=False)))
    users = program.graph_signature.user_inputs
    for node in program.graph.nodes:
        inner = node.op == "call_function" or (node.op == "placeholder" and node.name not in users)
        if inner and choose(node):
            node.meta["delegation_tag"] = "t"
    return program


def take(program: ExportedProgram, *, is_submodule: bool = False) -> tuple[Node, Any]:
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and "delegation_tag" in node.meta]
    module, call = create_submodule_from_nodes(program.graph_module, nodes, "t")
    return call, create_exported_program_from_submodule(module, program, "t", call, is_submodule)


def test_a_program_owns_its_constants_and_their_changes() -> None:
    owner = tagged(Counter(), lambda node: True)
    _, (program, inputs, outputs) = take(owner)
    assert [spec.kind for spec in program.graph_signature.input_specs] == [
        InputKind.PARAMETER,
        InputKind.BUFFER,
        InputKind.BUFFER,
        InputKind.USER_INPUT,
    ]
    assert [spec.kind for spec in program.graph_signature.output_specs] == [
        OutputKind.BUFFER_MUTATION,
        OutputKind.USER_OUTPUT,
    ]
    assert program.state_dict["weight"] is owner.state_dict["weight"]
    assert program.constants["shift"] is owner.constants["shift"]
    assert sorted(spec.target for spec in inputs.values()) == ["shift", "total", "weight"]
    assert [spec.target for spec in outputs.values()] == ["total"]
    made = Counter().eval()
    runnable = program.module()
    for _ in range(3):
        image = torch.randn(3)
        assert torch.equal(runnable(image)[0], made(image)[0])


def test_results_of_the_call_are_found_in_their_new_places() -> None:
    owner = tagged(Counter(), lambda node: node.name not in ("aten_relu_default", "aten_mul_tensor_1"))
    call, (program, inputs, _) = take(owner)
    (first,) = program.graph_signature.output_specs[:1]
    assert first.kind is OutputKind.BUFFER_MUTATION
    results = {user.args[1]: [each.name for each in user.users] for user in call.users}
    assert results == {0: ["output"], 1: ["aten_relu_default"]}
    # the weight is used outside too: the owner keeps it
    assert sorted(spec.target for spec in inputs.values()) == ["shift", "total"]


@pytest.mark.parametrize("is_submodule", [True, False])
def test_what_is_not_owned_is_an_input(is_submodule: bool) -> None:
    owner = tagged(Counter(), lambda node: node.op == "call_function" or is_submodule)
    _, (program, inputs, outputs) = take(owner, is_submodule=is_submodule)
    assert {spec.kind for spec in program.graph_signature.input_specs} == {InputKind.USER_INPUT}
    assert {spec.kind for spec in program.graph_signature.output_specs} == {OutputKind.USER_OUTPUT}
    assert (inputs, outputs, program.state_dict, program.constants) == ({}, {}, {}, {})


def test_new_state_that_is_used_elsewhere_cannot_be_owned() -> None:
    owner = tagged(Counter(returned=True), lambda node: True)
    with pytest.raises(PartitionError, match="the new value of the buffer `total` has another use"):
        take(owner)
