"""One method, two operations, one weight; `HATCH_LOWER_TEST_MEGABYTES` adds a table of that size."""

from __future__ import annotations

import os

import torch

from hatch_lower import Method, Model


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(3.0))
        megabytes = int(os.environ.get("HATCH_LOWER_TEST_MEGABYTES", "0"))
        self.table = torch.nn.Parameter(torch.ones(megabytes, 1 << 18)) if megabytes else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = torch.relu(x * self.scale)
        return scaled if self.table is None else scaled * self.table[0, :3]


def export() -> Model:
    return Model(Scaled().eval(), methods={"forward": Method(args=(torch.ones(2, 3),))})
