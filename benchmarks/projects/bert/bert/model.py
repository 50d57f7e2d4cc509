"""An encoder of BERT-base's size with random weights, from a transformers configuration."""

from __future__ import annotations

import os

import torch
from transformers import BertConfig, BertModel

from hatch_lower import Method, Model

SHAPE = (1, 128)


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel(BertConfig(num_hidden_layers=int(os.environ.get("BERT_LAYERS", "12"))))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the last hidden state: int64 [1, 128] to float32 [1, 128, 768]."""
        return self.bert(input_ids=tokens).last_hidden_state

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the pooled output: int64 [1, 128] to float32 [1, 768]."""
        return self.bert(input_ids=tokens).pooler_output


def make() -> Encoder:
    """Return the encoder with the same weights each time."""
    torch.manual_seed(0)
    return Encoder().eval()


def example() -> torch.Tensor:
    """Return token ids, int64 [1, 128]."""
    return torch.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) + 1000


def export() -> Model:
    methods = os.environ.get("BERT_METHODS", "forward,embed").split(",")
    return Model(make(), methods={name: Method(args=(example(),)) for name in methods})
