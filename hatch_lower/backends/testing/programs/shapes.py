"""Programs about shapes and values: layouts, symbolic sizes, NaN, several and nested outputs, shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.export import Dim

from hatch_lower.backends.testing.case import Case, Data, module, once, sizes


def broadcasting(self: Any, x: Tensor, row: Tensor, column: Tensor, point: Tensor) -> object:
    return x + row, x * column, row * column, x - point, torch.where(row > 0, x, column), point * 2


def views(self: Any, x: Tensor) -> object:
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


def parts(self: Any, x: Tensor) -> object:
    first, second, third = torch.split(x, [1, 2, 3], 1)
    left, right = x.chunk(2, 1)
    return first + 1, second * third.sum(), left - right, x[..., ::2] + 1, x[1:, -2:] * 2, x.narrow(1, 2, 3).relu()


def strided(self: Any, x: Tensor, y: Tensor) -> object:
    return x + 1, x @ y, x * y.t(), torch.relu(y).sum(0)


def channels_last(self: Any, image: Tensor) -> object:
    return image * 2 + 1, torch.relu(image).mean((2, 3)), image.permute(0, 2, 3, 1) - 1


def empty(self: Any, x: Tensor, y: Tensor) -> object:
    return x + 1, x * 2, torch.relu(x), x.sum(), x.sum(0), torch.cat([x, y]), y[:0] * 2, x @ y.t(), torch.sin(x)


def scalars(self: Any, x: Tensor) -> object:
    return x + 1, x * x, torch.exp(x), x.view(1) + 1, x.expand(3) * 2, x > 0


def dynamic_batch(self: Any, x: Tensor) -> object:
    return torch.relu(x * self.scale + 1), x.sum(0), x.view(x.shape[0], 1, 3) * 2


def two_sizes(self: Any, x: Tensor, y: Tensor) -> object:
    return x @ y, torch.softmax(x @ y, 1) + 1, x.sum(1) + y.sum(0).mean()


def equal_sizes(self: Any, x: Tensor, y: Tensor) -> object:
    return x + y, torch.cat([x, y], 0) * 2, x * 3


def derived_size(self: Any, x: Tensor) -> object:
    return x[1:] - x[:-1], x.repeat(2, 1) + 1


def size_as_number(self: Any, x: Tensor) -> object:
    return x * x.shape[0], x.shape[0] + 1, x.sum() / x.shape[0], torch.full((x.shape[0],), 2.0) + 1


def ranks(self: Any, x: Tensor) -> object:
    return x + 1, x.sum((1, 3)), x.flatten(2) * 2, torch.relu(x.squeeze(1))


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


ODD = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3e38, 1e-40)


def odd_arithmetic(self: Any, x: Tensor, y: Tensor) -> object:
    return x + y, x * y, x / y, x - x, torch.neg(x), x * 0


def odd_comparison(self: Any, x: Tensor, y: Tensor) -> object:
    return x == y, x < y, x != x, torch.maximum(x, y), torch.minimum(x, y), torch.where(x > y, x, y), torch.isnan(x)


def odd_functions(self: Any, x: Tensor) -> object:
    return F.relu(x), torch.sigmoid(x), torch.tanh(x), torch.exp(x), torch.sqrt(x), torch.clamp(x, -1, 1), x.abs()


def odd_reductions(self: Any, x: Tensor) -> object:
    return x.sum(), x.amax(), x.amin(1), x.mean(0), torch.softmax(x, 1), torch.cumsum(x, 0)


def odd_integers(self: Any, x: Tensor) -> object:
    return x + 1, x * 2, -x, x - 5


def several(self: Any, x: Tensor) -> object:
    values, places = torch.max(x, 1)
    return x + 1, values, places, x.sum()


def nested(self: Any, x: Tensor, pair: tuple[Tensor, Tensor]) -> object:
    return {"sum": x + pair[0], "rest": [pair[1] * 2, (x - 1,)]}


def with_others(self: Any, x: Tensor) -> object:
    return x + 1, None, 7, [x * 2, None]


def input_returned(self: Any, x: Tensor, y: Tensor) -> object:
    return x, x + y, y


def twice_the_same(self: Any, x: Tensor) -> object:
    found = torch.sin(x)
    return found, found, found + 1


def given_twice(self: Any, x: Tensor, y: Tensor) -> object:
    return torch.sin(x) + y, x * y, y - 1


def views_of_inputs(self: Any, x: Tensor) -> object:
    return x.view(-1), x.t(), x[0], torch.sin(x)


def views_of_results(self: Any, x: Tensor) -> object:
    found = x * 2
    return found, found.view(-1), found[0], found.t()


def constants_returned(self: Any, x: Tensor) -> object:
    return self.scale, x * self.scale, self.scale.view(-1)


def chain(self: Any, x: Tensor) -> object:
    """Much that is needed long after it was made."""
    first = torch.sin(x)
    second = first + 1
    third = second * first
    fourth = torch.relu(third - second)
    return first * fourth, second + third, fourth


def unused_input(self: Any, x: Tensor, y: Tensor) -> object:
    return torch.sin(x) + 1


def value_cases() -> Iterator[Case]:
    """Yield the programs about values and outputs."""

    def pairs(data: Data) -> tuple[Any, ...]:
        odd = torch.tensor(ODD)
        return odd[:, None].expand(8, 8).contiguous(), odd[None].expand(8, 8).contiguous()

    def block(data: Data) -> tuple[Any, ...]:
        found = data.draw(5, 4)
        found[0, 1], found[1, 2], found[2, 3], found[3] = math.nan, math.inf, -math.inf, math.inf
        return (found,)

    def limits(data: Data) -> tuple[Any, ...]:
        return (torch.tensor([-(2**31), 2**31 - 1, 0, -1], dtype=torch.int32),)

    def two(data: Data) -> tuple[Any, ...]:
        return data.draw(2, 3), data.draw(2, 3)

    def one(data: Data) -> tuple[Any, ...]:
        return (data.draw(2, 3),)

    yield Case("values/odd numbers in arithmetic", lambda data: module(odd_arithmetic), once(pairs))
    yield Case("values/odd numbers in comparisons", lambda data: module(odd_comparison), once(pairs))
    yield Case("values/odd numbers in functions", lambda data: module(odd_functions), once(block))
    yield Case("values/odd numbers in reductions", lambda data: module(odd_reductions), once(block))
    yield Case("values/integers that overflow", lambda data: module(odd_integers), once(limits))
    yield Case("outputs/several", lambda data: module(several), once(one))
    yield Case(
        "outputs/nested",
        lambda data: module(nested),
        once(lambda data: (data.draw(2, 3), (data.draw(2, 3), data.draw(4)))),
    )
    yield Case("outputs/other than tensors", lambda data: module(with_others), once(one))
    yield Case("outputs/many that live long", lambda data: module(chain), once(one))
    yield Case("outputs/an input that nothing uses", lambda data: module(unused_input), once(two))
    yield Case("aliases/input returned", lambda data: module(input_returned), once(two))
    yield Case("aliases/one tensor twice", lambda data: module(twice_the_same), once(one))
    yield Case(
        "aliases/one tensor as two inputs", lambda data: module(given_twice), lambda data: (two(data), one(data) * 2)
    )
    yield Case("aliases/views of inputs", lambda data: module(views_of_inputs), once(one))
    yield Case("aliases/views of results", lambda data: module(views_of_results), once(one))
    yield Case(
        "aliases/constants returned",
        lambda data: module(constants_returned, scale=torch.nn.Parameter(data.draw(2, 3))),
        once(one),
    )
