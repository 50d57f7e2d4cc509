"""Reductions that are divided over threads; of whole numbers, so that every division gives the same sums."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model


class Sums(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2.0).sum(), torch.relu(x).amax(1)


def export() -> Model:
    return Model(
        Sums().eval(), methods={"forward": Method(args=(torch.arange(200_000.0).remainder(7).view(500, 400),))}
    )
