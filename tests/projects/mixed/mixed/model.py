"""Delegated and undelegated ops, control flow, state."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: torch.Tensor, *, flip: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.nn.functional.gelu(self.first(x))
        hidden = torch.cond(flip, lambda h: torch.flip(h, [1]), lambda h: h * 2.0, (hidden,))
        out = self.second(hidden)
        self.total.add_(out.sum(0))
        return {"out": out, "total": self.total.clone()}


def make() -> Mixed:
    """Return the module with the same weights each time."""
    torch.manual_seed(3)
    return Mixed().eval()


def export() -> Model:
    batch = torch.export.Dim("batch", max=64)
    method = Method(
        args=(torch.zeros(4, 8),),
        kwargs={"flip": torch.tensor(True)},
        dynamic_shapes={"x": {0: batch}, "flip": {}},
    )
    return Model(make(), methods={"forward": method})
