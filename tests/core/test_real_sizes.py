"""Sizes that a model computes with real numbers, conditions and remainders, in programs with and without delegates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.exports import Workshop, packaged, write_folder
from torch.nn.functional import interpolate, pad

import hatch_lower
from hatch_lower.errors import InputError

pytestmark = pytest.mark.torch

SOURCE = """\
import math

import torch
import torch.nn.functional as F
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def larger(self, x):
        return F.interpolate(x, scale_factor=(2.3, 1.5), mode="nearest").relu()

    def smaller(self, x):
        return F.interpolate(x, scale_factor=0.7, mode="bilinear", recompute_scale_factor=True).relu()

    def padded(self, x):
        return F.pad(x, (0, -x.shape[3] % 8)).relu()

    def rounded(self, x):
        return x.new_ones(math.ceil(x.shape[2] / 3), round(x.shape[3] * 0.37), max(x.shape[2], x.shape[3])).relu()

    def chosen(self, x):
        return x.new_ones(torch.sym_ite(x.shape[2] > x.shape[3], x.shape[2], x.shape[3] + 1)).relu()


def export():
    torch.manual_seed(3)
    h, w = torch.export.Dim("h", min=8, max=80), torch.export.Dim("w", min=8, max=80)
    names = ("larger", "smaller", "padded", "rounded", "chosen")
    methods = {name: Method((torch.randn(1, 2, 16, 24),), dynamic_shapes=({2: h, 3: w},)) for name in names}
    return Model(Net().eval(), methods)
"""
SIZES = [(16, 24), (8, 80), (9, 11), (17, 33), (80, 79), (25, 50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("net")
    return write_folder(made / "_lowered", packaged(Workshop(made), SOURCE))


@pytest.mark.parametrize("recipe", ["default", "portable"])
def test_sizes_are_eagers_for_all_inputs(folder: Path, recipe: str) -> None:
    model = hatch_lower.load(folder, recipe=recipe)
    for height, width in SIZES:
        x = torch.randn(1, 2, height, width)
        larger = interpolate(x, scale_factor=(2.3, 1.5), mode="nearest").relu()
        assert torch.equal(model.larger(x), larger)
        smaller = interpolate(x, scale_factor=0.7, mode="bilinear", recompute_scale_factor=True).relu()
        torch.testing.assert_close(model.smaller(x), smaller)
        assert torch.equal(model.padded(x), pad(x, (0, -width % 8)).relu())
        assert model.rounded(x).shape == (-(-height // 3), round(width * 0.37), max(height, width))
        assert model.chosen(x).shape == (height if height > width else width + 1,)


def test_sizes_out_of_range_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(InputError, match="h must be at least 8"):
        hatch_lower.load(folder).larger(torch.randn(1, 2, 7, 24))
