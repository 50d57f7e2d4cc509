"""The network, and the entry point that says what of it to export."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hatch_lower import Method, Model

WEIGHTS = Path(__file__).with_name("weights.safetensors")


class Block(nn.Module):
    """Two 3x3 convolutions that keep the size, then a pool that halves it."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.pool = nn.MaxPool2d(2)

    def forward(self, image: Tensor) -> Tensor:
        hidden = torch.relu(self.norm1(self.conv1(image)))
        hidden = torch.relu(self.norm2(self.conv2(hidden)))
        return self.pool(hidden)


class DigitNet(nn.Module):
    """A small convolutional classifier of 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(1, 32), Block(32, 64))
        self.project = nn.Linear(64 * 2 * 2, 64)
        self.dropout = nn.Dropout(0.3)
        self.classify = nn.Linear(64, 10)

    def embed(self, image: Tensor) -> Tensor:
        """Return a vector for each image: float32 [batch, 1, 8, 8] in 0..1 to float32 [batch, 64]."""
        return torch.relu(self.project(self.blocks(image).flatten(1)))

    def forward(self, image: Tensor) -> Tensor:
        """Return a score for each digit: float32 [batch, 1, 8, 8] in 0..1 to float32 [batch, 10]."""
        return self.classify(self.dropout(self.embed(image)))


def export() -> Model:
    """Return the trained network with its two methods, for any batch of 1 to 1024 images."""
    net = DigitNet()
    net.load_state_dict(load_file(WEIGHTS))
    net.eval()
    example = torch.zeros(2, 1, 8, 8)
    shapes = {"image": {0: torch.export.Dim("batch", max=1024)}}
    return Model(
        net,
        methods={
            "forward": Method(args=(example,), dynamic_shapes=shapes),
            "embed": Method(args=(example,), dynamic_shapes=shapes),
        },
    )
