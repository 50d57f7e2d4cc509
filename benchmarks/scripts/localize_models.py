"""The models of `localize.py`: small ones with the operations of large ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from hatch_lower import Method, Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "projects" / "resnet"))


def bert() -> Model:
    from transformers import BertConfig, BertModel

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(
                num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=500
            )
            self.bert = BertModel(config)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.bert(input_ids=tokens).last_hidden_state

    torch.manual_seed(0)
    return Model(Encoder().eval(), methods={"forward": Method(args=(torch.arange(24).reshape(1, 24) + 7,))})


def resnet() -> Model:
    from resnet.model import make

    torch.manual_seed(1)
    return Model(make(), methods={"forward": Method(args=(torch.randn(1, 3, 64, 64),))})


class Double(nn.Module):
    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, made, 3, padding=1)
        self.norm = nn.GroupNorm(4, made)
        self.second = nn.Conv2d(made, made, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(nn.functional.silu(self.norm(self.first(x)))))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Double(3, 8), Double(8, 16)])
        self.pool = nn.MaxPool2d(2)
        self.middle = Double(16, 32)
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.joined = nn.ModuleList([Double(32, 16), Double(16, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for up, block in zip(self.up, self.joined, strict=True):
            x = block(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def unet() -> Model:
    torch.manual_seed(2)
    return Model(UNet().eval(), methods={"forward": Method(args=(torch.randn(1, 3, 16, 16),))})


class Attention(nn.Module):
    def __init__(self, size: int, heads: int, most: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.register_buffer("keys", torch.zeros(1, heads, most, size // heads))
        self.register_buffer("values", torch.zeros(1, heads, most, size // heads))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(1, -1, self.heads, x.shape[-1] // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor, place: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(2, place, self.split(self.key(x)))
        self.values.index_copy_(2, place, self.split(self.value(x)))
        scores = self.split(self.query(x)) @ self.keys.transpose(2, 3) / 4.0
        shares = torch.softmax(scores + mask, -1)
        mixed = (shares @ self.values).transpose(1, 2).reshape(x.shape)
        return self.out(mixed)


class Layer(nn.Module):
    def __init__(self, size: int, heads: int, most: int) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, heads, most)
        self.wide, self.narrow = nn.Linear(size, 3 * size), nn.Linear(3 * size, size)

    def forward(self, x: torch.Tensor, place: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), place, mask)
        return x + self.narrow(nn.functional.gelu(self.wide(self.behind(x))))


class Decoder(nn.Module):
    def __init__(self, size: int = 64, heads: int = 4, most: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(size, heads, most) for _ in range(2))
        self.scores = nn.Linear(size, 100)
        self.most = most

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(self.most) <= place.max()
        # inductor's fusion of attention fails for a mask of one dimension
        mask = torch.where(seen, 0.0, -1e4)[None, None, None]
        for layer in self.layers:
            x = layer(x, place, mask)
        return self.scores(x)


def decoder() -> Model:
    torch.manual_seed(3)
    return Model(Decoder().eval(), methods={"forward": Method(args=(torch.randn(1, 3, 64), torch.tensor([2, 3, 4])))})


MODELS: Mapping[str, Callable[[], Model]] = {"bert": bert, "resnet": resnet, "unet": unet, "decoder": decoder}
