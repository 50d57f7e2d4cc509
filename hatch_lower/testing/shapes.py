"""Programs about shapes: broadcasting, views, layouts, empty tensors, and symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from hatch_lower.testing.case import Case, Data, module

__all__ = ["shape_cases"]


def broadcasting(self: Any, x: Tensor, row: Tensor, column: Tensor, point: Tensor) -> Any:
    return x + row, x * column, row * column, x - point, torch.where(row > 0, x, column), point * 2


def views(self: Any, x: Tensor) -> Any:
    return (
        x.view(2, 12) + 1,
        x.transpose(0, 2) * 2,
        x.permute(2, 0, 1).contiguous() + 1,
        x.reshape(-1) * 3,
        x[:, None] + 1,
        x.unfold(2, 2, 1) + 1,
        x.expand(3, 2, 3, 4).sum(0),
        x.flatten(1).t() @ x.flatten(1),
    )


def parts(self: Any, x: Tensor) -> Any:
    first, second, third = torch.split(x, [1, 2, 3], 1)
    left, right = x.chunk(2, 1)
    return first + 1, second * third.sum(), left - right, x[..., ::2] + 1, x[1:, -2:] * 2, x.narrow(1, 2, 3).relu()


def strided(self: Any, x: Tensor, y: Tensor) -> Any:
    return x + 1, x @ y, x * y.t(), torch.relu(y).sum(0)


def channels_last(self: Any, image: Tensor) -> Any:
    return image * 2 + 1, torch.relu(image).mean((2, 3)), image.permute(0, 2, 3, 1) - 1


def empty(self: Any, x: Tensor, y: Tensor) -> Any:
    return x + 1, x * 2, torch.relu(x), x.sum(), x.sum(0), torch.cat([x, y]), y[:0] * 2, x @ y.t(), torch.sin(x)


def scalars(self: Any, x: Tensor) -> Any:
    return x + 1, x * x, torch.exp(x), x.view(1) + 1, x.expand(3) * 2, x > 0


def dynamic_batch(self: Any, x: Tensor) -> Any:
    return torch.relu(x * self.scale + 1), x.sum(0), x.view(x.shape[0], 1, 3) * 2


def two_sizes(self: Any, x: Tensor, y: Tensor) -> Any:
    return x @ y, torch.softmax(x @ y, 1) + 1, x.sum(1) + y.sum(0).mean()


def equal_sizes(self: Any, x: Tensor, y: Tensor) -> Any:
    return x + y, torch.cat([x, y], 0) * 2, x * 3


def derived_size(self: Any, x: Tensor) -> Any:
    return x[1:] - x[:-1], x.repeat(2, 1) + 1


def size_as_number(self: Any, x: Tensor) -> Any:
    return x * x.shape[0], x.shape[0] + 1, x.sum() / x.shape[0], torch.full((x.shape[0],), 2.0) + 1


def ranks(self: Any, x: Tensor) -> Any:
    return x + 1, x.sum((1, 3)), x.flatten(2) * 2, torch.relu(x.squeeze(1))


def once(make: Callable[[Data], tuple[Any, ...]]) -> Callable[[Data], tuple[tuple[Any, ...], ...]]:
    """Return a function that draws the arguments of two calls."""
    return lambda data: (make(data), make(data))


def sizes(*shapes: tuple[tuple[int, ...], ...]) -> Callable[[Data], tuple[tuple[Any, ...], ...]]:
    """Return a function that draws the arguments of one call for each tuple of shapes."""
    return lambda data: tuple(tuple(data.draw(*shape) for shape in call) for call in shapes)


def shape_cases() -> Iterator[Case]:
    """Yield the programs about shapes."""
    yield Case(
        "shapes/broadcasting",
        lambda data: module(broadcasting),
        once(lambda data: (data.draw(3, 4), data.draw(4), data.draw(3, 1), data.draw())),
    )
    yield Case("shapes/views", lambda data: module(views), once(lambda data: (data.draw(2, 3, 4),)))
    yield Case("shapes/parts", lambda data: module(parts), once(lambda data: (data.draw(2, 6),)))
    yield Case(
        "shapes/strided inputs",
        lambda data: module(strided),
        once(lambda data: (data.draw(4, 3).t(), data.draw(4, 6)[:, ::2])),
    )
    yield Case(
        "shapes/channels last",
        lambda data: module(channels_last),
        once(lambda data: (data.draw(2, 3, 4, 4).to(memory_format=torch.channels_last),)),
    )
    yield Case(
        "shapes/empty tensors", lambda data: module(empty), once(lambda data: (torch.ones(0, 3), data.draw(2, 3)))
    )
    yield Case("shapes/0-d tensors", lambda data: module(scalars), once(lambda data: (data.draw(),)))
    yield Case("shapes/five dimensions", lambda data: module(ranks), once(lambda data: (data.draw(2, 1, 2, 3, 2),)))
    batch, other = Dim("batch", max=64), Dim("other", max=64)
    yield Case(
        "symbolic sizes/batch",
        lambda data: module(dynamic_batch, scale=torch.nn.Parameter(data.draw(3))),
        sizes(((4, 3),), ((1, 3),), ((7, 3),), ((64, 3),)),
        {"x": {0: batch}},
    )
    yield Case(
        "symbolic sizes/empty batch",
        lambda data: module(dynamic_batch, scale=torch.nn.Parameter(data.draw(3))),
        lambda data: ((data.draw(4, 3),), (torch.ones(0, 3),)),
        {"x": {0: Dim("batch", min=0, max=64)}},
    )
    yield Case(
        "symbolic sizes/two",
        lambda data: module(two_sizes),
        sizes(((4, 3), (3, 5)), ((2, 3), (3, 7)), ((9, 3), (3, 9))),
        {"x": {0: batch}, "y": {1: other}},
    )
    yield Case(
        "symbolic sizes/equal",
        lambda data: module(equal_sizes),
        sizes(((4, 3), (4, 3)), ((6, 3), (6, 3))),
        {"x": {0: batch}, "y": {0: batch}},
    )
    yield Case(
        "symbolic sizes/derived",
        lambda data: module(derived_size),
        sizes(((4, 3),), ((9, 3),)),
        {"x": {0: Dim("rows", min=3, max=64)}},
    )
    yield Case(
        "symbolic sizes/as numbers",
        lambda data: module(size_as_number),
        sizes(((4, 3),), ((9, 3),)),
        {"x": {0: batch}},
    )
