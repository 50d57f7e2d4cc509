"""An image classifier of ResNet-18's layers and size with random weights."""

from __future__ import annotations

import torch
from torch import nn

from hatch_lower import Method, Model

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))


class Block(nn.Module):
    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, made, 3, stride, 1, bias=False),
            nn.BatchNorm2d(made),
            nn.ReLU(),
            nn.Conv2d(made, made, 3, 1, 1, bias=False),
            nn.BatchNorm2d(made),
        )
        self.beside: nn.Module = nn.Identity()
        if given != made:
            self.beside = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.beside(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
        given = 64
        for made, stride in STAGES:
            layers += [Block(given, made, stride), Block(made, made, 1)]
            given = made
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Linear(given, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores: float32 [1, 3, 224, 224] to float32 [1, 1000]."""
        return self.last(self.body(x))


def make() -> Network:
    """Return the network with the same weights each time."""
    torch.manual_seed(0)
    return Network().eval()


def example() -> torch.Tensor:
    """Return float32 [1, 3, 224, 224]."""
    torch.manual_seed(1)
    return torch.randn(1, 3, 224, 224)


def export() -> Model:
    return Model(make(), methods={"forward": Method(args=(example(),))})
