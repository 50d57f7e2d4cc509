"""Programs that give images other sizes, called with pairs of sizes for which engines' formulas part from eager's."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.export import Dim

from hatch_lower.backends.testing.case import Calls, Case, Data, Program, drawn, plain, sizes

# (height, width) before and after: rounding decides on some places, and some sizes are 1
PAIRS = (((25, 25), (50, 50)), ((26, 14), (64, 7)), ((28, 7), (64, 32)), ((5, 7), (1, 1)), ((1, 1), (3, 5)))


def nearest(self: Program, image: Tensor) -> object:
    return F.interpolate(image, (64, 11)), F.interpolate(image, (14, 33)), F.interpolate(image, scale_factor=1.5)


def bilinear(self: Program, image: Tensor) -> object:
    free = (F.interpolate(image, size, mode="bilinear") for size in ((1, 1), (1, 9), (40, 24)))
    return *free, F.interpolate(image, (1, 1), mode="bilinear", align_corners=True)


def nearest_to(self: Program, image: Tensor, lateral: Tensor) -> object:
    return lateral + F.interpolate(image, lateral.shape[2:])


def bilinear_to(self: Program, image: Tensor, lateral: Tensor) -> object:
    return lateral + F.interpolate(image, lateral.shape[2:], mode="bilinear")


def corners_to(self: Program, image: Tensor, lateral: Tensor) -> object:
    return lateral + F.interpolate(image, lateral.shape[2:], mode="bilinear", align_corners=True)


def windows(self: Program, image: Tensor) -> object:
    pooled = F.max_pool2d(image, 3, 2, 1), F.avg_pool2d(image, 3, 2, 1)
    return *pooled, F.pad(image, (1, 2, 3, 0), mode="reflect") * 2


def own_places(self: Program, image: Tensor, lateral: Tensor) -> object:
    places = torch.arange(lateral.shape[2]) * image.shape[2] // lateral.shape[2]
    return lateral + image[:, :, places].mean(3, keepdim=True), torch.roll(image, image.shape[3] // 2, 3) * 2


def pairs(*given: tuple[tuple[int, int], tuple[int, int]]) -> Calls:
    def make(data: Data) -> tuple[tuple[object, ...], ...]:
        return tuple((data.draw(1, 2, *before), data.draw(1, 2, *after)) for before, after in given)

    return make


def resizing_cases() -> Iterator[Case]:
    for name, forward in (("nearest", nearest), ("bilinear", bilinear)):
        yield Case(f"resizing/{name}", plain(forward), drawn((1, 2, 26, 16)))
    names = ({2: "height", 3: "width"}, {2: "rows", 3: "columns"})
    between = [{place: Dim(name, min=1, max=128) for place, name in each.items()} for each in names]
    for name, resize in (("nearest", nearest_to), ("bilinear", bilinear_to), ("corners", corners_to)):
        dynamic = {"image": between[0], "lateral": between[1]}
        yield Case(f"resizing/{name} to any size", plain(resize), pairs(*PAIRS), dynamic)
    yield Case("resizing/own places", plain(own_places), pairs(*PAIRS), dynamic)
    wide = {"image": {place: Dim(name, min=8, max=128) for place, name in names[0].items()}}
    calls = [((1, 2, *before),) for before in ((16, 24), (25, 9), (8, 8), (13, 64))]
    yield Case("resizing/windows of any size", plain(windows), sizes(*calls), wide)
