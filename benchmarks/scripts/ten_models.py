"""Ten models with random weights, each with an example call: from configurations of transformers, or written here.

`make(NAME)` returns a module in evaluation mode and its arguments, with the same numbers each time. Modules return a
tensor or a tuple of tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MODELS", "export", "make"]

Made = tuple[nn.Module, tuple[Any, ...]]
TOKENS = 128


class Encoder(nn.Module):
    """The last hidden state of a model of transformers."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> Tensor:
        return self.model(**{self.name: x}).last_hidden_state


class Sentence(nn.Module):
    """The normalized mean of the tokens that a mask names, as a model for sentences computes an embedding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return functional.normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9))


def tokens() -> Tensor:
    return torch.arange(TOKENS).reshape(1, -1) + 1000


def bert() -> Made:
    from transformers import BertConfig, BertModel

    return Encoder(BertModel(BertConfig(), add_pooling_layer=False), "input_ids"), (tokens(),)


def minilm() -> Made:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
    mask = (torch.arange(TOKENS) < 100).long().reshape(1, -1)
    return Sentence(BertModel(config, add_pooling_layer=False)), (tokens(), mask)


def vit() -> Made:
    from transformers import ViTConfig, ViTModel

    return Encoder(ViTModel(ViTConfig(), add_pooling_layer=False), "pixel_values"), (torch.randn(1, 3, 224, 224),)


class Classifier(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(pixel_values=x).logits


def resnet() -> Made:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=1000)  # ResNet-50
    return randomize(Classifier(ResNetForImageClassification(config))), (torch.randn(1, 3, 224, 224),)


def whisper() -> Made:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=1, encoder_attention_heads=6)
    config.encoder_ffn_dim = 1536
    return Encoder(WhisperModel(config).encoder, "input_features"), (torch.randn(1, 80, 3000),)


def convolution(inputs: int, outputs: int, kernel: int, stride: int, act: nn.Module | None, groups: int = 1) -> Any:
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm2d(outputs), act or nn.Identity())


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        small = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.up(small))


class Inverted(nn.Module):
    """A block of MobileNetV3."""

    def __init__(self, inputs: int, row: tuple[int, int, int, bool, type[nn.Module], int]) -> None:
        super().__init__()
        kernel, wide, outputs, squeezed, act, stride = row
        self.adds = stride == 1 and inputs == outputs
        layers = [convolution(inputs, wide, 1, 1, act())] if wide != inputs else []
        layers.append(convolution(wide, wide, kernel, stride, act(), groups=wide))
        layers += [Squeeze(wide)] if squeezed else []
        self.layers = nn.Sequential(*layers, convolution(wide, outputs, 1, 1, None))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.adds else y


def mobilenet() -> Made:
    r, h = nn.ReLU, nn.Hardswish  # MobileNetV3-large
    rows = [(3, 16, 16, False, r, 1), (3, 64, 24, False, r, 2), (3, 72, 24, False, r, 1), (5, 72, 40, True, r, 2)]
    rows += [(5, 120, 40, True, r, 1)] * 2
    rows += [(3, 240, 80, False, h, 2), (3, 200, 80, False, h, 1), (3, 184, 80, False, h, 1), (3, 184, 80, False, h, 1)]
    rows += [(3, 480, 112, True, h, 1), (3, 672, 112, True, h, 1), (5, 672, 160, True, h, 2)]
    rows += [(5, 960, 160, True, h, 1)] * 2
    layers, channels = [convolution(3, 16, 3, 2, h())], 16
    for row in rows:
        layers.append(Inverted(channels, row))
        channels = row[2]
    layers += [convolution(channels, 960, 1, 1, h()), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    head = [nn.Linear(960, 1280), h(), nn.Dropout(0.2), nn.Linear(1280, 1000)]
    return randomize(nn.Sequential(*layers, *head)), (torch.randn(1, 3, 224, 224),)


class Residual(nn.Module):
    """A block of a diffusion model's U-Net."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, widths[0], 3, padding=1), nn.Conv2d(widths[0], 3, 3, padding=1)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(Residual(small, large) for small, large in pairs)
        self.middle = Residual(widths[-1], widths[-1])
        self.up = nn.ModuleList(Residual(large + large, small) for small, large in reversed(pairs))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1))
        return self.last(x)


def unet() -> Made:
    return UNet(), (torch.randn(1, 3, 128, 128),)


class Bottleneck(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = convolution(channels, channels // 2, 1, 1, nn.SiLU())
        self.two = convolution(channels // 2, channels, 3, 1, nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(self.one(x))


class Detector(nn.Module):
    """A detector of one stage: boxes and scores of classes at three scales, with the boxes decoded."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        widths = (16, 32, 64, 128, 256)
        act = nn.SiLU
        self.stem = convolution(3, widths[0], 3, 2, act())
        pairs = itertools.pairwise(widths)
        self.stages = nn.ModuleList(nn.Sequential(convolution(a, b, 3, 2, act()), Bottleneck(b)) for a, b in pairs)
        self.lateral = nn.ModuleList(convolution(width, 64, 1, 1, act()) for width in widths[2:])
        self.merge = nn.ModuleList(convolution(128, 64, 3, 1, act()) for _ in range(2))
        self.heads = nn.ModuleList(nn.Conv2d(64, 4 + classes, 1) for _ in range(3))
        for level, size in enumerate((40, 20, 10)):
            steps = torch.arange(size, dtype=torch.float32) + 0.5
            grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1).reshape(1, -1, 2)
            self.register_buffer(f"grid{level}", grid)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x, found = self.stem(image), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        levels = [layer(x) for layer, x in zip(self.lateral, found[1:], strict=True)]
        for level in (1, 0):
            above = functional.interpolate(levels[level + 1], scale_factor=2.0, mode="nearest")
            levels[level] = self.merge[level](torch.cat([levels[level], above], 1))
        boxes, scores = [], []
        for level, (head, x) in enumerate(zip(self.heads, levels, strict=True)):
            y = head(x).flatten(2).transpose(1, 2)
            corner, size = y[..., :2].sigmoid() * 2 - 0.5, (y[..., 2:4].sigmoid() * 2) ** 2
            middle = (corner + getattr(self, f"grid{level}")) * 2 ** (level + 3)
            boxes.append(torch.cat([middle - size / 2, middle + size / 2], -1))
            scores.append(y[..., 4:].sigmoid())
        return torch.cat(boxes, 1), torch.cat(scores, 1)


def detector() -> Made:
    return randomize(Detector()), (torch.randn(1, 3, 320, 320),)


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class DecoderLayer(nn.Module):
    """A layer of a decoder with rotary positions, which returns the keys and values that it was given and its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RootMeanSquare(width), RootMeanSquare(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.wide = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.narrow = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        y = self.norm1(x)
        query, key, value = (
            layer(y).reshape(1, 1, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        query, key = (a * turn[0] + torch.cat(a.chunk(2, -1)[::-1], -1) * turn[1] for a in (query, key))
        keys, values = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        seen = functional.scaled_dot_product_attention(query, keys, values)
        x = x + self.out(seen.transpose(1, 2).reshape(1, 1, -1))
        y = self.norm2(x)
        return x + self.narrow(functional.silu(self.gate(y)) * self.wide(y)), keys, values


class Decoder(nn.Module):
    """A step of generation: a token and the keys and values of earlier tokens to logits, new keys and values."""

    def __init__(self, width: int = 512, heads: int = 8, layers: int = 6, words: int = 16_000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm, self.head = RootMeanSquare(width), nn.Linear(width, words, bias=False)
        half = width // heads // 2
        self.register_buffer("speeds", torch.exp(-math.log(10_000.0) / half * torch.arange(half)))

    def forward(self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.words(token)
        angles = torch.cat([position * self.speeds] * 2, -1)
        sign = torch.cat([-torch.ones_like(self.speeds), torch.ones_like(self.speeds)])
        turn = angles.cos(), angles.sin() * sign
        found = []
        for layer, *past in zip(self.layers, keys, values, strict=True):
            x, *known = layer(x, turn, past)
            found.append(known)
        new_keys, new_values = (torch.stack([known[index] for known in found]) for index in (0, 1))
        return self.head(self.norm(x)), new_keys, new_values


def decoder() -> Made:
    past = torch.randn(2, 6, 1, 8, TOKENS, 64)
    return Decoder(), (torch.tensor([[7]]), torch.tensor([float(TOKENS)]), past[0].clone(), past[1].clone())


def mlp() -> Made:
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), (torch.randn(1, 256),)


def randomize(model: nn.Module) -> nn.Module:
    """Give batch norms statistics as after training; with statistics of 0 and 1, engines could omit the norms."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.8, 1.2)
    return model


MODELS: Mapping[str, Callable[[], Made]] = {
    "bert": bert,
    "minilm": minilm,
    "vit": vit,
    "resnet": resnet,
    "mobilenet": mobilenet,
    "unet": unet,
    "whisper": whisper,
    "detector": detector,
    "decoder": decoder,
    "mlp": mlp,
}


def make(name: str) -> Made:
    """Return a model in evaluation mode and its arguments."""
    torch.manual_seed(0)
    module, args = MODELS[name]()
    return module.eval(), args


def export(name: str) -> Any:
    """Return the value of a project's entry point."""
    from hatch_lower import Method, Model

    module, args = make(name)
    return Model(module, methods={"forward": Method(args=args)})
