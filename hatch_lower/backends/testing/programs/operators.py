"""Programs of operators, by dtype: at the limits of integers, and at sizes for which engines' interpolations part
from eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.export import Dim

from hatch_lower.backends.testing.case import (
    DTYPES,
    Calls,
    Case,
    Data,
    KitModule,
    drawn,
    module,
    plain_maker,
    sizes,
    twice,
    weighted,
)

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def arithmetic(self: KitModule, x: Tensor, y: Tensor) -> object:
    return x + y, x - y, x * y, x + 2, 3 - x, torch.neg(y), torch.add(x, y, alpha=2), x * x


def division(self: KitModule, x: Tensor, y: Tensor) -> object:
    quotients = x / y, torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")
    return *quotients, torch.remainder(x, y), torch.fmod(x, y)


def comparison(self: KitModule, x: Tensor, y: Tensor) -> object:
    compared = x == y, x != y, x < y, x >= 1, torch.maximum(x, y), torch.minimum(x, y), torch.where(x > y, x, y)
    return *compared, torch.clamp(x, -1, 2), torch.clamp(x, min=0), torch.clamp_max(y, 1), x.sign(), x.abs()


def logic(self: KitModule, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x & y, x | y, x ^ y, ~x, torch.logical_and(x, y), torch.logical_not(x), x.any(), x.all(0)


def bits(self: KitModule, x: Tensor, y: Tensor) -> object:
    return *logic(self, x, y), x << 1, x >> 1, x & 3, x | 8


def activations(self: KitModule, x: Tensor) -> object:
    common = F.relu(x), torch.sigmoid(x), torch.tanh(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x)
    return *common, F.leaky_relu(x, 0.1), F.elu(x), F.hardtanh(x), F.softplus(x), F.hardswish(x)


def functions(self: KitModule, x: Tensor, y: Tensor) -> object:
    positive = x.abs() + 0.5
    roots = torch.exp(x), torch.log(positive), torch.sqrt(positive), torch.rsqrt(positive)
    waves = torch.sin(x), torch.cos(y), torch.erf(x), torch.reciprocal(positive)
    powers = torch.pow(positive, y), x**2, torch.log1p(positive), torch.atan2(x, positive)
    return *roots, *waves, *powers, torch.floor(x), torch.ceil(x), torch.round(x), torch.trunc(x)


def sums(self: KitModule, x: Tensor) -> object:
    return x.sum(), x.sum(-1), x.sum((0, 1), keepdim=True), x.prod(1), torch.cumsum(x, 1)


def extremes(self: KitModule, x: Tensor) -> object:
    return x.amax(-1), x.amin(0, keepdim=True), x.max(), torch.argmax(x, 1), torch.argmin(x, -1, keepdim=True)


def moments(self: KitModule, x: Tensor) -> object:
    return x.mean(), x.mean(-1, keepdim=True), x.var(1), x.std(0, correction=0), torch.linalg.vector_norm(x, dim=1)


def products(self: KitModule, x: Tensor, y: Tensor, z: Tensor) -> object:
    return x @ y, torch.addmm(z, x, y), torch.matmul(x, y[:, 0]), torch.bmm(x[None], y[None])


def factors(self: KitModule, x: Tensor, y: Tensor, z: Tensor) -> object:
    scaled = torch.addmm(z, x, y, beta=0.5, alpha=3), torch.addmm(z[0], x, y, beta=2), torch.addmm(z, x, y, alpha=-1)
    stacked = torch.baddbmm(z[None], x[None], y[None], beta=0.5, alpha=3), torch.addmv(z[:, 0], x, y[:, 1], alpha=3)
    weighed = torch.addmm(self.shift, x, self.weight, beta=0.5, alpha=3), torch.addmm(self.shift, x, self.weight)
    added = torch.addmm(self.rows, x, self.weight), torch.addmm(self.rows, x, self.weight, beta=-1, alpha=2)
    return *scaled, *stacked, *weighed, *added, torch.addcmul(z, z, z, value=0.5), torch.sub(x, x * x, alpha=2)


def quotients(self: KitModule, x: Tensor) -> object:
    # numbers divided by sums and products, and sums beside several numbers
    length = torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    total = x.abs().sum(-1, keepdim=True) + 1
    divided = x * length, 2 / total, self.column / total, 3 / (x @ self.weight + 50), 1 / x.abs().amax((1, 2))
    return *divided, total - self.column, total * self.column, x.abs().sum(1) / 1.5


def reshaped_products(self: KitModule, x: Tensor, y: Tensor) -> object:
    # products between reshapes whose operands could be multiplied, to the same shape, without the reshapes
    low = torch.mm(self.up.flatten(1), self.down.flatten(1)).reshape(4, 4, 3)
    turned = (x.reshape(1, 2, 1) @ y.reshape(2, 1, 1)).reshape(1, 2, 2), (x @ y.reshape(1, 1, 2)).reshape(1, 2, 2)
    return low + self.weight, *turned, (y.reshape(2, 1, 1) @ x.reshape(1, 1, 2)).reshape(2, 2, 1)


def selection(self: KitModule, x: Tensor, rows: Tensor, columns: Tensor) -> object:
    selected = torch.index_select(x, 0, rows), torch.gather(x, 1, columns), x[rows], x[:, 1:3], x[-1]
    joined = torch.cat([x, x + 1], 1), torch.stack([x, x])
    return *selected, *joined, x.masked_fill(x > 1, 0), torch.scatter(x, 1, columns, 1), F.pad(x, (1, 2), value=3)


def ordering(self: KitModule, x: Tensor) -> object:
    values, places = torch.topk(x, 2, 1)
    ordered, order = torch.sort(x, dim=1, descending=True, stable=True)
    return values, places, ordered, order


def embedding(self: KitModule, places: Tensor) -> object:
    return F.embedding(places, self.table)


def convolution(self: KitModule, image: Tensor) -> object:
    dense = F.relu(F.conv2d(image, self.weight, self.bias, padding=1)), F.conv2d(image, self.weight, stride=2)
    others = F.conv2d(image, self.deep, groups=2, dilation=2), F.conv1d(image[:, :, 0], self.line, padding=1)
    return *dense, *others, F.conv_transpose2d(image, self.up, stride=2)


def pooling(self: KitModule, image: Tensor) -> object:
    pooled = F.max_pool2d(image, 2), F.avg_pool2d(image, 3, stride=1, padding=1), F.adaptive_avg_pool2d(image, 1)
    return *pooled, F.interpolate(image, scale_factor=2.0, mode="nearest")


def normalization(self: KitModule, image: Tensor) -> object:
    batch = F.batch_norm(image, self.mean, self.deviation, self.scale, self.shift)
    return batch, F.layer_norm(image, (5,), self.last), F.group_norm(image, 2, self.scale, self.shift)


def softmax(self: KitModule, x: Tensor) -> object:
    return torch.softmax(x, -1), torch.log_softmax(x, 0), torch.logsumexp(x, 1)


def attention(self: KitModule, x: Tensor, mask: Tensor) -> object:
    return F.scaled_dot_product_attention(x, x * 2, x), F.scaled_dot_product_attention(x, x, x, mask)


def perceptron(self: KitModule, x: Tensor) -> object:
    return F.relu(x @ self.first + self.shift) @ self.second


def mixing(self: KitModule, x: Tensor, whole: Tensor, flags: Tensor) -> object:
    # mixed dtypes: eager's promotions, and numbers that do not change a tensor's dtype
    return x + whole, whole * 0.5, flags + whole, x * flags, whole / 2, flags.sum()


def creation(self: KitModule, x: Tensor) -> object:
    added = torch.zeros_like(x) + x, torch.full((2, 3), 7.0) * x, torch.arange(3, dtype=torch.float32) + x
    return *added, torch.ones(2, 3, dtype=torch.int64) + 1, torch.tril(x)


def fused(self: KitModule, image: Tensor) -> object:
    # the operations that `docs/demo_backend` fuses and splits
    activated = F.relu(F.conv2d(image, self.weight, self.bias, padding=1))
    return torch.tan(activated * 0.25) * self.scale


def conversion_to(names: Iterable[str]) -> Callable[..., object]:
    return lambda self, x: tuple(x.to(DTYPES[name]) for name in names)


def draw_selection(dtype: str, data: Data) -> tuple[Tensor, ...]:
    return data.draw(3, 4, dtype=DTYPES[dtype]), data.indices(3, 2), data.indices(4, 3, 1)


def of_dtype(
    name: str, dtypes: tuple[str, ...], forward: Callable[..., object], *shapes: tuple[int, ...], **drawing: Any
) -> Iterator[Case]:
    for dtype in dtypes:
        yield Case(f"operators/{name} {dtype}", plain_maker(forward), drawn(*shapes, dtype=DTYPES[dtype], **drawing))


def operator_cases() -> Iterator[Case]:
    pair = ((3, 4), (3, 4))
    yield from of_dtype("arithmetic", (*FLOATS, *INTEGERS, "complex64"), arithmetic, *pair)
    yield from of_dtype("division", ("float32", "float64", "int32", "int64"), division, *pair, low=1, high=9)
    yield from of_dtype("comparison", ("float32", "bfloat16", "int8", "int32", "int64"), comparison, *pair)
    yield from of_dtype("logic", ("bool",), logic, *pair)
    yield from of_dtype("bits", ("uint8", "int32", "int64"), bits, *pair, low=0, high=30)
    yield from of_dtype("activations", ("float32", "float64", "float16"), activations, (3, 7))
    yield from of_dtype("functions", ("float32", "float64", "bfloat16"), functions, *pair)
    yield from of_dtype("sums", ("float32", "int32", "int64", "bool"), sums, (3, 4))
    yield from of_dtype("extremes", ("float32", "float64", "int64"), extremes, (3, 4))
    yield from of_dtype("moments", ("float32", "float64"), moments, (3, 4))
    yield from of_dtype("products", (*FLOATS, "int64"), products, (3, 4), (4, 2), (3, 2))
    scale = weighted(factors, shift=(2,), rows=(3, 2), weight=(4, 2))
    yield Case("operators/factors", scale, drawn((3, 4), (4, 2), (3, 2)))
    divide = weighted(quotients, column=(1, 6, 1), weight=(8, 4))
    yield Case("operators/quotients", divide, drawn((2, 6, 8)))
    reshape = weighted(reshaped_products, up=(4, 4, 1), down=(4, 4, 3), weight=(4, 4, 3))
    yield Case("operators/reshaped products", reshape, drawn((1, 2, 1), (2, 1, 1)))
    for dtype in ("float32", "int64"):
        yield Case(f"operators/selection {dtype}", plain_maker(selection), twice(partial(draw_selection, dtype)))
    yield from of_dtype("ordering", ("float32", "int64"), ordering, (3, 5), low=-99, high=99)
    yield Case("operators/embedding", weighted(embedding, table=(7, 3)), twice(lambda data: (data.indices(7, 4),)))
    convolve = weighted(convolution, weight=(3, 4, 3, 3), bias=(3,), deep=(4, 2, 2, 2), line=(2, 4, 3), up=(4, 2, 2, 2))
    images = (1, 4, 7, 7)
    yield Case("operators/convolution", convolve, drawn(images))
    yield Case(
        "operators/convolution float64", lambda data: convolve(data).double(), drawn(images, dtype=torch.float64)
    )
    fuse = weighted(fused, weight=(3, 4, 3, 3), bias=(3,), scale=(6,), low=-0.2, high=0.2)
    yield Case("operators/fused", fuse, drawn((1, 4, 6, 6)))
    yield from of_dtype("pooling", ("float32",), pooling, (2, 4, 6, 6))
    yield Case("operators/normalization", make_normalization, drawn((2, 4, 3, 5)))
    yield from of_dtype("softmax", ("float32", "float16"), softmax, (3, 5))
    yield Case("operators/attention", plain_maker(attention), drawn((1, 2, 5, 4), (5, 5)))
    yield Case("operators/perceptron", weighted(perceptron, first=(6, 8), shift=(8,), second=(8, 2)), drawn((3, 6)))
    for source in ("float32", "int64", "bool"):
        convert = conversion_to([name for name in DTYPES if name not in (source, "complex64")])
        numbers = drawn((3, 4), dtype=DTYPES[source], low=0, high=9)
        yield Case(f"operators/conversion from {source}", plain_maker(convert), numbers)
    mixed = twice(lambda data: tuple(data.draw(3, 2, dtype=DTYPES[name]) for name in ("float32", "int64", "bool")))
    yield Case("operators/mixed dtypes", plain_maker(mixing), mixed)
    yield from of_dtype("creation", ("float32",), creation, (2, 3))


def make_normalization(data: Data) -> KitModule:
    names = ("mean", "scale", "shift")
    return module(
        normalization,
        deviation=data.draw(4, low=0.5, high=2),
        last=torch.nn.Parameter(data.draw(5)),
        **{name: torch.nn.Parameter(data.draw(4), requires_grad=False) for name in names},
    )


# (height, width) before and after: rounding decides on some places, and some sizes are 1
PAIRS = (((25, 25), (50, 50)), ((26, 14), (64, 7)), ((28, 7), (64, 32)), ((5, 7), (1, 1)), ((1, 1), (3, 5)))


def nearest_sizes(self: KitModule, image: Tensor) -> object:
    return F.interpolate(image, (64, 11)), F.interpolate(image, (14, 33)), F.interpolate(image, scale_factor=1.5)


def bilinear(self: KitModule, image: Tensor) -> object:
    free = (F.interpolate(image, size, mode="bilinear") for size in ((1, 1), (1, 9), (40, 24)))
    return *free, F.interpolate(image, (1, 1), mode="bilinear", align_corners=True)


def resize_to(**options: Any) -> Callable[..., object]:
    return lambda self, image, lateral: lateral + F.interpolate(image, lateral.shape[2:], **options)


def resized_windows(self: KitModule, image: Tensor) -> object:
    pooled = F.max_pool2d(image, 3, 2, 1), F.avg_pool2d(image, 3, 2, 1)
    return *pooled, F.pad(image, (1, 2, 3, 0), mode="reflect") * 2


def own_places(self: KitModule, image: Tensor, lateral: Tensor) -> object:
    places = torch.arange(lateral.shape[2]) * image.shape[2] // lateral.shape[2]
    return lateral + image[:, :, places].mean(3, keepdim=True), torch.roll(image, image.shape[3] // 2, 3) * 2


def pairs(*given: tuple[tuple[int, int], tuple[int, int]]) -> Calls:
    def make(data: Data) -> tuple[tuple[object, ...], ...]:
        return tuple((data.draw(1, 2, *before), data.draw(1, 2, *after)) for before, after in given)

    return make


def resizing_cases() -> Iterator[Case]:
    for name, forward in (("nearest", nearest_sizes), ("bilinear", bilinear)):
        yield Case(f"resizing/{name}", plain_maker(forward), drawn((1, 2, 26, 16)))
    names = ({2: "height", 3: "width"}, {2: "rows", 3: "columns"})
    between = [{place: Dim(name, min=1, max=128) for place, name in each.items()} for each in names]
    dynamic = {"image": between[0], "lateral": between[1]}
    corners = resize_to(mode="bilinear", align_corners=True)
    for name, resize in (("nearest", resize_to()), ("bilinear", resize_to(mode="bilinear")), ("corners", corners)):
        yield Case(f"resizing/{name} to any size", plain_maker(resize), pairs(*PAIRS), dynamic)
    yield Case("resizing/own places", plain_maker(own_places), pairs(*PAIRS), dynamic)
    wide = {"image": {place: Dim(name, min=8, max=128) for place, name in names[0].items()}}
    calls = [((1, 2, *before),) for before in ((16, 24), (25, 9), (8, 8), (13, 64))]
    yield Case("resizing/windows of any size", plain_maker(resized_windows), sizes(*calls), wide)
