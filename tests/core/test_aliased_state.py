"""State that goes by several names, or of which names are views; and modules that Python cannot copy."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exports import Workshop, packaged, write_folder

import hatch_lower
from hatch_lower.runtime.module_copy import copy_module

pytestmark = pytest.mark.torch

SOURCE = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        one = torch.zeros(3)
        self.register_buffer("one", one)
        self.register_buffer("same", one)
        self.register_buffer("whole", torch.zeros(4, 3))
        self.register_buffer("row", self.whole[1])
        self.register_buffer("turned", self.whole.t())
        span = torch.zeros(4)
        self.register_buffer("begin", span[:3])
        self.register_buffer("end", span[1:])
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.tied = self.weight
        self.register_buffer("shadow", self.weight.data)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)])
        self.norms[1].running_mean = self.norms[0].running_mean

    def two_names(self, x):
        self.one.add_(1)
        return x + self.same

    def view(self, x):
        self.row.add_(1)
        self.turned.mul_(2)
        return x + self.whole

    def other_view(self, x):
        self.whole.add_(x)
        return self.row * 1

    def overlap(self, x):
        self.begin.add_(1)
        self.end.mul_(2).add_(x)
        return self.begin + self.end

    def parameter(self, x):
        self.shadow.mul_(2)
        return x * self.tied

    def trained(self, x):
        return self.norms[1].train()(self.norms[0].train()(x))


EXAMPLES = dict(two_names=(3,), view=(4, 3), other_view=(4, 3), overlap=(3,), parameter=(3,), trained=(5, 3))


def export():
    torch.manual_seed(3)
    return Model(Net(), {name: Method((torch.randn(shape),)) for name, shape in EXAMPLES.items()})
"""


def made() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("net")
    return write_folder(work / "_lowered", packaged(Workshop(work), SOURCE))


@pytest.mark.parametrize("recipe", ["default", "portable"])
def test_state_of_several_names_goes_on_as_eagers(folder: Path, recipe: str) -> None:
    model, names = hatch_lower.load(folder, recipe=recipe), made()
    inputs = {name: torch.randn(shape) for name, shape in names["EXAMPLES"].items()}

    def compare(calls: int, other: Any, net: Any) -> None:
        for _ in range(calls):
            for name, x in inputs.items():
                with torch.no_grad():
                    torch.testing.assert_close(getattr(other, name)(x), getattr(net, name)(x))

    net = names["export"]().module
    compare(2, model, net)
    if recipe == "portable":  # a clone has a delegate's own state as it was packaged
        clone, net_of_clone = model.clone(), copy_module(net)
        compare(2, clone, net_of_clone)
        compare(1, model, net)
    model.reset()
    compare(2, model, names["export"]().module)


def test_copies_keep_the_ties_of_tensors() -> None:
    net = copy_module(made()["Net"]())
    net.row.add_(1)
    net.same.add_(2)
    net.shadow.mul_(3)
    assert net.whole[1].tolist() == net.turned[:, 1].tolist() == [1, 1, 1]
    assert net.one.tolist() == [2, 2, 2]
    assert net.tied is net.weight
    assert net.weight.tolist() == [3, 3, 3]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_modules_with_computed_tensors_and_locks_are_copied() -> None:
    net: Any = torch.nn.Sequential(torch.nn.utils.weight_norm(torch.nn.Conv1d(2, 3, 3)))
    net.lock, net.computed = threading.Lock(), {"a": [net[0].bias * 2]}
    with pytest.raises((RuntimeError, TypeError)):
        copy.deepcopy(net)
    copied = copy_module(net)
    x = torch.randn(1, 2, 8)
    assert torch.equal(copied(x), net(x))
    assert torch.equal(copied.computed["a"][0], net.computed["a"][0])
    assert copied[0].weight_v is not net[0].weight_v
    assert copied[0].weight_v.requires_grad
