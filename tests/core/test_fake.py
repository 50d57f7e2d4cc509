"""Programs whose weights are fake tensors, and real ones put back."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensor

from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._fake_program import FakeModeError, get_fake_program, update_to_real_program

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.shift


def program() -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", max=8)
    return to_edge(torch.export.export(Net().eval(), (torch.randn(2, 3),), dynamic_shapes=({0: batch},)))


def test_weights_are_fake_and_other_tensors_are_shared() -> None:
    real = program()
    fake = get_fake_program(real)
    assert {type(each) for each in fake.state_dict.values()} == {FakeTensor}
    assert [(name, each.shape) for name, each in fake.state_dict.items()] == [
        (name, each.shape) for name, each in real.state_dict.items()
    ]
    assert fake.constants["shift"] is real.constants["shift"]
    assert str(fake.graph) == str(real.graph)


def test_changes_of_the_copy_are_not_seen_in_the_program() -> None:
    real = program()
    fake = get_fake_program(real)
    for node in fake.graph.nodes:
        node.meta["delegation_tag"] = "all"
    fake.graph_signature.input_specs.clear()
    assert not any("delegation_tag" in node.meta for node in real.graph.nodes)
    assert len(real.graph_signature.input_specs) == 4


def test_the_real_weights_come_back_as_they_are() -> None:
    real = program()
    fake = get_fake_program(real)
    update_to_real_program(fake, real)
    assert all(fake.state_dict[name] is each for name, each in real.state_dict.items())
    image = torch.randn(5, 3)
    assert torch.equal(fake.module()(image), real.module()(image))


def test_a_program_without_fake_tensors_is_refused() -> None:
    real = program()
    for node in real.graph.find_nodes(op="placeholder"):
        node.meta["val"] = torch.zeros(1)
    with pytest.raises(AssertionError) as caught:
        get_fake_program(real)
    assert isinstance(caught.value, FakeModeError)
    assert str(caught.value) == (
        "the inputs of the program have no fake tensors, so the mode for other tensors is unknown\n"
        "  found: Tensor, Tensor, Tensor, Tensor\n"
        "  to do: pass a program as `torch.export.export` or `to_edge` returns it"
    )
