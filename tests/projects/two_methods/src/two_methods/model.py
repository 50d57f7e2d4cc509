"""Two methods that share their weights; one of them keeps a state."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import torch

from hatch_lower import Method, Model

SCALE = Path(__file__).with_name("scale.txt")


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 64)
        self.layer = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 32, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(self.embedding(tokens)))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        return self.head(self.prefill(tokens)), self.calls.clone()


def make() -> Network:
    """Return the network with the same weights each time."""
    torch.manual_seed(7)
    network = Network().eval()
    with torch.no_grad():
        network.layer.weight.mul_(float(SCALE.read_text()))
    return network


def export() -> Model:
    assert version("two_methods") == "1.0"
    tokens = torch.tensor([[1, 2, 3, 4]])
    return Model(make(), methods={"forward": Method(args=(tokens,)), "prefill": Method(args=(tokens,))})
