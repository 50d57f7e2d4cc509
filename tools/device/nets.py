"""Networks of the device checks. Numbers of weights come from a seed, so weights of a large network need not travel."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

SEED = 46


def fill(module: nn.Module) -> nn.Module:
    """Fill all parameters and statistics with numbers that are equal on every machine, and return the module.

    torch's own random numbers depend on the vector registers of the processor.
    """
    generator = np.random.Generator(np.random.PCG64(SEED))
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if not tensor.is_floating_point() or name.startswith("cache"):
                continue
            numbers = torch.from_numpy(generator.random(tensor.shape, dtype=np.float32)) * 2 - 1
            if tensor.dim() > 1:
                numbers *= (3 / tensor[0].numel()) ** 0.5
            elif name.endswith(("weight", "running_var")):
                numbers = numbers * 0.1 + 1
            else:
                numbers *= 0.1
            tensor.copy_(numbers)
    return module.eval()


def floats(*shape: int, dtype: torch.dtype = torch.float32, seed: int = SEED) -> Tensor:
    generator = np.random.Generator(np.random.PCG64(seed))
    return torch.from_numpy(generator.random(shape, dtype=np.float32) * 4 - 2).to(dtype)


def integers(limit: int, *shape: int, seed: int = SEED) -> Tensor:
    return torch.from_numpy(np.random.Generator(np.random.PCG64(seed)).integers(0, limit, shape))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.second(functional.gelu(self.first(x))), -1)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.conv(image))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.inner(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self.causal)
        return self.outer(found.transpose(1, 2).reshape(batch, length, width))


class Masked(nn.Module):
    """Attention with a mask of booleans, after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(64), Attention(64, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.attention(self.norm(x), mask)


class Unmasked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(64), Attention(64, 4, causal=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Bert(nn.Module):
    """An encoder with two methods: `embed` for the vectors of all words, `forward` for two scores as well."""

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 12, words: int = 30522) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(512, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.scores = nn.Linear(width, 2)

    def embed(self, words: Tensor) -> Tensor:
        x = self.norm(self.words(words) + self.places[: words.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(words)
        return self.scores(torch.tanh(x[:, 0])), x


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 384, heads: int = 6, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.scores(self.norm(x)[:, 0])


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.short(x))


def resnet() -> nn.Module:
    """Return a network of the sizes of ResNet-18."""
    head = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    body, before = [], 64
    for after in (64, 128, 256, 512):
        body += [Residual(before, after, 1 if before == after else 2), Residual(after, after, 1)]
        before = after
    return nn.Sequential(*head, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Decoder(nn.Module):
    """A step of a decoder; the caches for keys and values are buffers that the step changes."""

    LENGTH = 256

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 3, words: int = 1000) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.words, self.scores = nn.Embedding(words, width), nn.Linear(width, words)
        self.inner = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        for layer in range(layers):
            for kind in ("keys", "values"):
                self.register_buffer(f"cache_{kind}{layer}", torch.zeros(1, heads, self.LENGTH, width // heads))

    def forward(self, word: Tensor, position: Tensor) -> Tensor:
        x = self.words(word)
        seen = torch.arange(self.LENGTH, device=word.device) <= position
        for layer, (inner, outer, norm) in enumerate(zip(self.inner, self.outer, self.norms, strict=True)):
            query, key, value = inner(norm(x)).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            keys, values = getattr(self, f"cache_keys{layer}"), getattr(self, f"cache_values{layer}")
            keys.index_copy_(2, position, key)
            values.index_copy_(2, position, value)
            found = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen.view(1, 1, 1, -1))
            x = x + outer(found.transpose(1, 2).reshape(1, 1, self.width))
        return self.scores(x)


class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = twice(3, width), twice(width, 2 * width), twice(2 * width, 4 * width)
        self.attention = Attention(4 * width, 4)
        self.up2, self.up1, self.last = twice(6 * width, 2 * width), twice(3 * width, width), nn.Conv2d(width, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = self.down1(image)
        second = self.down2(functional.max_pool2d(first, 2))
        x = self.middle(functional.max_pool2d(second, 2))
        x = x + self.attention(x.flatten(2).transpose(1, 2)).transpose(1, 2).view(x.shape)
        x = self.up2(torch.cat([functional.interpolate(x, scale_factor=2), second], 1))
        return self.last(self.up1(torch.cat([functional.interpolate(x, scale_factor=2, mode="bilinear"), first], 1)))


def twice(before: int, after: int) -> nn.Module:
    def once(inner: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU()]

    return nn.Sequential(*once(before), *once(after))


class Mixed(nn.Module):
    """Calls of libtorch, reductions, integers, float64, and constants of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(100, 32))
        self.scale, self.shift = nn.Parameter(torch.zeros(32)), nn.Parameter(torch.zeros(32))

    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        rows = self.table[places] * self.scale + self.shift
        largest, where = torch.topk(rows, 5)
        added = torch.zeros_like(x).scatter_add(1, places[:, :16] % 16, x)
        line = functional.conv1d(x[:, None], self.shift.view(1, 1, 32)[..., :3])
        kept = (torch.cumsum(x, 1), torch.sort(x, 1)[0], added, x.argmax(1), torch.var(x, 1))
        return largest, where, *kept, x.double().sum(0), places * 600_000_000, line


class Products(nn.Module):
    """Products of matrices of integers."""

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left @ right, torch.bmm(left.expand(3, -1, -1), right.expand(3, -1, -1))
