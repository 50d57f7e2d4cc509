"""Three layers: so little work that what a call costs by itself shows."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model


def make() -> torch.nn.Module:
    """Return the network with the same weights each time."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(512, 10)).eval()


def example() -> torch.Tensor:
    """Return float32 [1, 256]."""
    torch.manual_seed(1)
    return torch.randn(1, 256)


def export() -> Model:
    return Model(make(), methods={"forward": Method(args=(example(),))})
