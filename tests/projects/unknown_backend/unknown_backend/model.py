"""One method, one op."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model


class Tiny(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def export() -> Model:
    return Model(Tiny().eval(), methods={"forward": Method(args=(torch.zeros(2, 3),))})
