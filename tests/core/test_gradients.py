"""Methods that compute gradients, with and without saying in which mode of torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.exports import Workshop, packaged, write_folder

import hatch_lower

pytestmark = pytest.mark.torch

SOURCE = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))
        self.register_buffer("count", torch.zeros(()))

    def energy(self, x):
        return torch.mm(x, self.weight).square().sum()

    def forces(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            force = torch.autograd.grad(self.energy(x), [x])[0]
        self.count.add_(1)
        with torch.no_grad():
            return force + self.count

    def in_the_mode_of_torch(self, x):
        x = x.detach().requires_grad_()
        energy = self.energy(x)
        return energy, torch.autograd.grad(energy, [x])[0]

    def nested(self, x):
        with torch.enable_grad():
            with torch.no_grad():
                y = x * 2
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.mm(y, self.weight).float()

    def steps(self, x):
        for _ in range(3):
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                step = torch.autograd.grad(self.energy(y), [y])[0]
            x = x - 0.01 * step
        return x


def export():
    torch.manual_seed(3)
    rows = torch.export.Dim("rows", min=2, max=64)
    names = ("forces", "in_the_mode_of_torch", "nested", "steps")
    return Model(Net().eval(), {name: Method((torch.randn(3, 4),), dynamic_shapes=({0: rows},)) for name in names})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("net")
    return write_folder(made / "_lowered", packaged(Workshop(made), SOURCE))


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("recipe", ["default", "portable"])
def test_gradients_are_eagers_in_each_mode_of_the_caller(folder: Path, recipe: str, gradients: bool) -> None:
    made: dict[str, object] = {}
    exec(SOURCE, made)
    net = made["export"]().module  # type: ignore[operator]
    model = hatch_lower.load(folder, recipe=recipe)
    for rows in (3, 5, 64):
        x = torch.randn(rows, 4)
        for name in ("forces", "in_the_mode_of_torch", "nested", "steps"):
            expected = getattr(net, name)(x.clone())
            with torch.set_grad_enabled(gradients):
                found = getattr(model, name)(x.clone().requires_grad_(gradients))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
