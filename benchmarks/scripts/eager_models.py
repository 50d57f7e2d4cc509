"""Models with random weights for comparisons with eager: each name gives a module and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]
IMAGE = (1, 3, 224, 224)


class First(nn.Module):
    """A model of transformers that returns the first of its outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Tensor) -> Tensor:
        """Return hidden states or logits, float32."""
        result: Tensor = self.model(given)[0]
        return result


def make_bert() -> Example:
    """Return BERT-base and token ids, int64 [1, 128]."""
    from transformers import BertConfig, BertModel

    return First(BertModel(BertConfig(), add_pooling_layer=False)), (torch.arange(1000, 1128).reshape(1, 128),)


def make_vit() -> Example:
    """Return ViT-base with patches of 16 pixels."""
    from transformers import ViTConfig, ViTModel

    return First(ViTModel(ViTConfig(), add_pooling_layer=False)), (torch.randn(IMAGE),)


def make_resnet() -> Example:
    """Return ResNet-50 with batch norms."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return First(ResNetForImageClassification(ResNetConfig())), (torch.randn(IMAGE),)


def make_whisper() -> Example:
    """Return Whisper-tiny's encoder and a spectrogram of thirty seconds."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"encoder_layers": 4, "encoder_attention_heads": 6, "d_model": 384, "encoder_ffn_dim": 1536}
    return First(WhisperEncoder(WhisperConfig(**sizes))), (torch.randn(1, 80, 3000),)


def convolution(inputs: int, outputs: int, size: int, act: nn.Module, stride: int = 1, groups: int = 1) -> nn.Module:
    """Return a convolution, a batch norm and an activation."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), act)


class Excitation(nn.Module):
    """Channels scaled by a function of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        middle = max(8, (channels // 4 + 4) // 8 * 8)
        layers = nn.Conv2d(channels, middle, 1), nn.ReLU(), nn.Conv2d(middle, channels, 1), nn.Hardsigmoid()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(1), *layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return scaled channels."""
        return x * self.layers(x)


class Inverted(nn.Module):
    """An inverted residual block of MobileNetV3."""

    def __init__(
        self, inputs: int, kernel: int, middle: int, outputs: int, excited: int, act: str, stride: int
    ) -> None:
        super().__init__()
        make = nn.Hardswish if act == "HS" else nn.ReLU
        layers = [convolution(inputs, middle, 1, make())] if middle != inputs else []
        layers.append(convolution(middle, middle, kernel, make(), stride, middle))
        layers += [Excitation(middle)] if excited else []
        layers.append(convolution(middle, outputs, 1, nn.Identity()))
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's channels, added to its input where the sizes are equal."""
        result: Tensor = self.layers(x)
        return x + result if self.adds else result


# kernel, channels inside, channels, excitation, activation, stride (Howard et al. 2019, table 1)
LARGE = (
    (3, 16, 16, 0, "RE", 1),
    (3, 64, 24, 0, "RE", 2),
    (3, 72, 24, 0, "RE", 1),
    (5, 72, 40, 1, "RE", 2),
    (5, 120, 40, 1, "RE", 1),
    (5, 120, 40, 1, "RE", 1),
    (3, 240, 80, 0, "HS", 2),
    (3, 200, 80, 0, "HS", 1),
    (3, 184, 80, 0, "HS", 1),
    (3, 184, 80, 0, "HS", 1),
    (3, 480, 112, 1, "HS", 1),
    (3, 672, 112, 1, "HS", 1),
    (5, 672, 160, 1, "HS", 2),
    (5, 960, 160, 1, "HS", 1),
    (5, 960, 160, 1, "HS", 1),
)


def make_mobilenet() -> Example:
    """Return MobileNetV3-Large."""
    layers, channels = [convolution(3, 16, 3, nn.Hardswish(), 2)], 16
    for kernel, middle, outputs, excited, act, stride in LARGE:
        layers.append(Inverted(channels, kernel, middle, outputs, excited, act, stride))
        channels = outputs
    layers += [convolution(160, 960, 1, nn.Hardswish()), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000)), (torch.randn(IMAGE),)


class UNet(nn.Module):
    """A U-Net of three levels, with two convolutions in each."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.pair(1, 32), self.pair(32, 64), self.pair(64, 128)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)])
        self.join = nn.ModuleList([self.pair(128, 64), self.pair(64, 32)])
        self.last = nn.Conv2d(32, 2, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Module:
        """Return two convolutions."""
        first = convolution(inputs, outputs, 3, nn.ReLU())
        return nn.Sequential(first, convolution(outputs, outputs, 3, nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of two classes for each pixel."""
        kept: list[Tensor] = []
        for level, layer in enumerate(self.down):
            x = layer(nn.functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for up, join, skipped in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([skipped, up(x)], 1))
        result: Tensor = self.last(x)
        return result


def make_unet() -> Example:
    """Return a small U-Net and a grey image."""
    return UNet(), (torch.randn(1, 1, 128, 128),)


TITLES: Mapping[str, str] = {
    "bert": "BERT-base 1x128",
    "vit": "ViT-base",
    "resnet": "ResNet-50",
    "mobilenet": "MobileNetV3-Large",
    "unet": "U-Net",
    "whisper": "Whisper-tiny encoder",
}
MAKERS: Mapping[str, Callable[[], Example]] = {
    "bert": make_bert,
    "vit": make_vit,
    "resnet": make_resnet,
    "mobilenet": make_mobilenet,
    "unet": make_unet,
    "whisper": make_whisper,
}


def make(name: str) -> Example:
    """Return a model and its inputs, the same each time."""
    torch.manual_seed(0)
    model, inputs = MAKERS[name]()
    return model.eval(), inputs
