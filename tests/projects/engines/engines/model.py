"""Something for each of several engines."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from hatch_lower import Method, Model


class Engines(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 24)
        self.last = torch.nn.Linear(8, 3)
        self.register_buffer("wide", torch.linspace(0.5, 1.5, 8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return attention, scaled in float64: float32 [rows, 5, 8] to float32 [rows, 3]."""
        query, key, value = self.first(x).unsqueeze(1).chunk(3, -1)
        seen = scaled_dot_product_attention(query, key, value)[:, 0, 0]
        scaled = (seen.double() * self.wide).float()
        return self.last(torch.tanh(scaled))


def make() -> Engines:
    """Return the module with the same weights each time."""
    torch.manual_seed(5)
    return Engines().eval()


def export() -> Model:
    rows = torch.export.Dim("rows", max=64)
    return Model(make(), methods={"forward": Method(args=(torch.ones(4, 5, 8),), dynamic_shapes={"x": {0: rows}})})
