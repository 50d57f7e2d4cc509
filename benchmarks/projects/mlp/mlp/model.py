"""Three layers: so little work that what a call costs by itself shows."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(*each) for each in [(256, 512), (512, 512), (512, 10)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def make() -> Network:
    """Return the network with the same weights each time."""
    torch.manual_seed(0)
    return Network().eval()


def example() -> torch.Tensor:
    """Return float32 [1, 256]."""
    torch.manual_seed(1)
    return torch.randn(1, 256)


def export() -> Model:
    return Model(make(), methods={"forward": Method(args=(example(),))})
