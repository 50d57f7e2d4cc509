"""A second model, without native code: compiling costs most of a build."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model


class Sums(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2.0).sum(), torch.relu(x).amax(1)


def export() -> Model:
    return Model(Sums().eval(), methods={"forward": Method(args=(torch.ones(5, 4),))})
