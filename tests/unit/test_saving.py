"""A lowered program becomes a folder that loads, without a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hatch_lower
from hatch_lower.backend.partitioners import AllNodePartitioner
from hatch_lower.errors import PackageError
from hatch_lower.lowering.manager import to_edge_transform_and_lower
from hatch_lower.saving import save_program

pytestmark = pytest.mark.torch


class Step(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3))
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return torch.relu(x @ self.weight) * scale + self.total


@pytest.mark.parametrize("backends", [[], [AllNodePartitioner("reference", [])]])
def test_what_was_saved_computes_what_the_module_does(tmp_path: Path, backends: list[AllNodePartitioner]) -> None:
    module = Step()
    x, scale = torch.randn(2, 3), torch.randn(3)
    program = torch.export.export(module, (x,), {"scale": scale}, strict=False)
    constants = {"width": 3, "table": torch.arange(4.0)}
    lowered = to_edge_transform_and_lower(program, partitioner=backends, constant_methods=constants)
    folder = save_program(lowered.to_program(), tmp_path / "out")
    loaded = hatch_lower.load(folder)
    for _ in range(2):
        torch.testing.assert_close(loaded(x, scale=scale), module(x, scale=scale))
    assert loaded.width() == 3
    torch.testing.assert_close(loaded.table(), torch.arange(4.0))
    manifest = hatch_lower.load(folder, verify=True)
    torch.testing.assert_close(manifest(x, scale=scale), Step.forward(reset(module), x, scale=scale))


def reset(module: Step) -> Step:
    module.total.zero_()
    return module


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    program = torch.export.export(Step(), (torch.randn(2, 3),), {"scale": torch.randn(3)}, strict=False)
    with pytest.raises(PackageError) as caught:
        save_program(to_edge_transform_and_lower(program).to_program(), tmp_path)
    assert str(caught.value) == (
        "a lowered program is saved into an empty folder only\n"
        f"  where: {tmp_path}\n"
        "  found: `notes.txt`\n"
        "  to do: name a folder that does not exist"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
