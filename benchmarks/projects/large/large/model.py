"""Tables and matrices of 64 to 256 MiB each; how many and how wide, their file says."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hatch_lower import Method, Model

WEIGHTS = Path(__file__).with_name("weights.safetensors")


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(4 * width, width)
        self.places = torch.nn.Embedding(2 * width, width)
        self.up = torch.nn.Linear(width, width, bias=False)
        self.down = torch.nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        x = x + self.words(rows) + self.places(rows)
        return torch.tanh(self.down(torch.tanh(self.up(x))))


class Large(torch.nn.Module):
    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = torch.zeros(rows.shape[0], self.width)
        for block in self.blocks:
            x = block(x, rows)
        return x


def export() -> Model:
    with safe_open(WEIGHTS, "pt") as file:
        names = list(file.keys())
        width = file.get_slice("blocks.0.up.weight").get_shape()[0]
    with torch.device("meta"):
        large = Large(len(names) // 4, width)
    large.load_state_dict(load_file(WEIGHTS), assign=True)
    return Model(large.eval(), methods={"forward": Method(args=(torch.tensor([1, 2]),))})
