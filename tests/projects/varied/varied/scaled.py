"""Random weights, an op that no kernel is made for, a sum that threads divide, state, a file that is read."""

from __future__ import annotations

from pathlib import Path

import torch

from hatch_lower import Method, Model


class Scaled(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.first = torch.nn.Linear(48, 96)
        self.second = torch.nn.Conv1d(3, 8, 5)
        self.scale = scale
        self.register_buffer("total", torch.zeros(48))

    def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.nn.functional.gelu(self.first(x)) * self.scale
        self.total.add_(x.sum(0))
        out = torch.softmax(self.second(hidden.reshape(-1, 3, 32)), -1)
        # divided over threads; of whole numbers, so that every division gives the same sum
        summed = (numbers * 2.0).sum()
        return {"out": out, "where": torch.nonzero(out.sum((1, 2)) > 0), "total": self.total.clone(), "sum": summed}


def export() -> Model:
    torch.manual_seed(3)
    module = Scaled(float(Path(__file__).with_name("scale.txt").read_text())).eval()
    batch = torch.export.Dim("batch", max=64)
    numbers = torch.arange(200_000.0).remainder(7)
    shapes = {"x": {0: batch}, "numbers": None}
    return Model(module, methods={"forward": Method(args=(torch.randn(4, 48), numbers), dynamic_shapes=shapes)})
