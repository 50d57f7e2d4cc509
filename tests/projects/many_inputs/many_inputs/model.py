"""A module with weights from a file, and a factor from everything else that can be read."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from hatch_lower import Method, Model
from many_inputs.layers.scale import scale
from many_inputs.readers import read_everything

DATA = Path(__file__).parent / "data"


class Many(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(load_file(DATA / "weights.safetensors")["weight"])
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = x @ self.weight
        return product * self.factor


def export() -> Model:
    factor = scale(float(len(read_everything(DATA))))
    return Model(Many(factor).eval(), methods={"forward": Method(args=(torch.zeros(2, 3),))})


def export_half() -> Model:
    return Model(Many(0.5).eval(), methods={"forward": Method(args=(torch.zeros(2, 3),))})
