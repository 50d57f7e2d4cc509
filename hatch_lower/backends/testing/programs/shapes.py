"""Programs about shapes and values: layouts, symbolic sizes, NaN, several and nested outputs, shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.export import Dim

from hatch_lower.backends.testing.case import Case, Data, KitModule, drawn, plain_maker, sizes, twice, weighted


def broadcasting(self: KitModule, x: Tensor, row: Tensor, column: Tensor, point: Tensor) -> object:
    return x + row, x * column, row * column, x - point, torch.where(row > 0, x, column), point * 2


def views(self: KitModule, x: Tensor) -> object:
    turned = x.view(2, 12) + 1, x.transpose(0, 2) * 2, x.permute(2, 0, 1).contiguous() + 1
    longer = x.reshape(-1) * 3, x[:, None] + 1, x.unfold(2, 2, 1) + 1, x.expand(3, 2, 3, 4).sum(0)
    return *turned, *longer, x.flatten(1).t() @ x.flatten(1)


def parts(self: KitModule, x: Tensor) -> object:
    first, second, third = torch.split(x, [1, 2, 3], 1)
    left, right = x.chunk(2, 1)
    return first + 1, second * third.sum(), left - right, x[..., ::2] + 1, x[1:, -2:] * 2, x.narrow(1, 2, 3).relu()


def strided(self: KitModule, x: Tensor, y: Tensor) -> object:
    return x + 1, x @ y, x * y.t(), torch.relu(y).sum(0)


def channels_last(self: KitModule, image: Tensor) -> object:
    return image * 2 + 1, torch.relu(image).mean((2, 3)), image.permute(0, 2, 3, 1) - 1


def scalars(self: KitModule, x: Tensor) -> object:
    return x + 1, x * x, torch.exp(x), x.view(1) + 1, x.expand(3) * 2, x > 0


def empty(self: KitModule, x: Tensor, y: Tensor) -> object:
    return x + 1, x * 2, torch.relu(x), x.sum(), x.sum(0), torch.cat([x, y]), y[:0] * 2, x @ y.t(), torch.sin(x)


def dynamic_batch(self: KitModule, x: Tensor) -> object:
    return torch.relu(x * self.scale + 1), x.sum(0), x.view(x.shape[0], 1, 3) * 2


def two_sizes(self: KitModule, x: Tensor, y: Tensor) -> object:
    return x @ y, torch.softmax(x @ y, 1) + 1, x.sum(1) + y.sum(0).mean()


def equal_sizes(self: KitModule, x: Tensor, y: Tensor) -> object:
    return x + y, torch.cat([x, y], 0) * 2, x * 3


def derived_size(self: KitModule, x: Tensor) -> object:
    return x[1:] - x[:-1], x.repeat(2, 1) + 1


def size_as_number(self: KitModule, x: Tensor) -> object:
    return x * x.shape[0], x.shape[0] + 1, x.sum() / x.shape[0], torch.full((x.shape[0],), 2.0) + 1


def ranks(self: KitModule, x: Tensor) -> object:
    return x + 1, x.sum((1, 3)), x.flatten(2) * 2, torch.relu(x.squeeze(1))


def shape_cases() -> Iterator[Case]:
    yield Case("shapes/broadcasting", plain_maker(broadcasting), drawn((3, 4), (4,), (3, 1), ()))
    yield Case("shapes/views", plain_maker(views), drawn((2, 3, 4)))
    yield Case("shapes/parts", plain_maker(parts), drawn((2, 6)))
    views_of_more = twice(lambda data: (data.draw(4, 3).t(), data.draw(4, 6)[:, ::2]))
    yield Case("shapes/strided inputs", plain_maker(strided), views_of_more)
    images = twice(lambda data: (data.draw(2, 3, 4, 4).to(memory_format=torch.channels_last),))
    yield Case("shapes/channels last", plain_maker(channels_last), images)
    yield Case("shapes/empty tensors", plain_maker(empty), twice(lambda data: (torch.ones(0, 3), data.draw(2, 3))))
    yield Case("shapes/0-d tensors", plain_maker(scalars), drawn(()))
    yield Case("shapes/five dimensions", plain_maker(ranks), drawn((2, 1, 2, 3, 2)))
    batch, other = Dim("batch", max=64), Dim("other", max=64)
    rows = {"x": {0: batch}}
    scaled = weighted(dynamic_batch, scale=(3,))
    yield Case("symbolic sizes/batch", scaled, sizes(((4, 3),), ((1, 3),), ((7, 3),), ((64, 3),)), rows)
    yield Case(
        "symbolic sizes/empty batch",
        scaled,
        lambda data: ((data.draw(4, 3),), (torch.ones(0, 3),)),
        {"x": {0: Dim("batch", min=0, max=64)}},
    )
    products = sizes(((4, 3), (3, 5)), ((2, 3), (3, 7)), ((9, 3), (3, 9)))
    yield Case("symbolic sizes/two", plain_maker(two_sizes), products, {"x": {0: batch}, "y": {1: other}})
    pairs = sizes(((4, 3), (4, 3)), ((6, 3), (6, 3)))
    yield Case("symbolic sizes/equal", plain_maker(equal_sizes), pairs, {"x": {0: batch}, "y": {0: batch}})
    longer = sizes(((4, 3),), ((9, 3),))
    yield Case("symbolic sizes/derived", plain_maker(derived_size), longer, {"x": {0: Dim("rows", min=3, max=64)}})
    yield Case("symbolic sizes/as numbers", plain_maker(size_as_number), longer, rows)


ODD = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3e38, 1e-40)


def odd_arithmetic(self: KitModule, x: Tensor, y: Tensor) -> object:
    return x + y, x * y, x / y, x - x, torch.neg(x), x * 0


def odd_comparison(self: KitModule, x: Tensor, y: Tensor) -> object:
    return x == y, x < y, x != x, torch.maximum(x, y), torch.minimum(x, y), torch.where(x > y, x, y), torch.isnan(x)


def odd_functions(self: KitModule, x: Tensor) -> object:
    return F.relu(x), torch.sigmoid(x), torch.tanh(x), torch.exp(x), torch.sqrt(x), torch.clamp(x, -1, 1), x.abs()


def odd_reductions(self: KitModule, x: Tensor) -> object:
    return x.sum(), x.amax(), x.amin(1), x.mean(0), torch.softmax(x, 1), torch.cumsum(x, 0)


def several(self: KitModule, x: Tensor) -> object:
    values, places = torch.max(x, 1)
    return x + 1, values, places, x.sum()


def twice_the_same(self: KitModule, x: Tensor) -> object:
    result = torch.sin(x)
    return result, result, result + 1


def views_of_results(self: KitModule, x: Tensor) -> object:
    result = x * 2
    return result, result.view(-1), result[0], result.t()


def copies_of_results(self: KitModule, x: Tensor) -> object:
    result = x * 2
    return result, result.clone(), result.t().clone(memory_format=torch.contiguous_format)


def constants_returned(self: KitModule, x: Tensor) -> object:
    return self.scale, x * self.scale, self.scale.view(-1)


def chained(self: KitModule, x: Tensor) -> object:
    # many values that are needed long after they were made
    first = torch.sin(x)
    second = first + 1
    third = second * first
    fourth = torch.relu(third - second)
    return first * fourth, second + third, fourth


def value_cases() -> Iterator[Case]:
    def pairs(data: Data) -> tuple[Tensor, ...]:
        odd = torch.tensor(ODD)
        return odd[:, None].expand(8, 8).contiguous(), odd[None].expand(8, 8).contiguous()

    def block(data: Data) -> tuple[Tensor, ...]:
        numbers = data.draw(5, 4)
        numbers[0, 1], numbers[1, 2], numbers[2, 3], numbers[3] = math.nan, math.inf, -math.inf, math.inf
        return (numbers,)

    def limits(data: Data) -> tuple[Tensor, ...]:
        return (torch.tensor([-(2**31), 2**31 - 1, 0, -1], dtype=torch.int32),)

    yield Case("values/odd numbers in arithmetic", plain_maker(odd_arithmetic), twice(pairs))
    yield Case("values/odd numbers in comparisons", plain_maker(odd_comparison), twice(pairs))
    yield Case("values/odd numbers in functions", plain_maker(odd_functions), twice(block))
    yield Case("values/odd numbers in reductions", plain_maker(odd_reductions), twice(block))
    yield Case("values/integers that overflow", plain_maker(lambda self, x: (x + 1, x * 2, -x, x - 5)), twice(limits))
    one, two = drawn((2, 3)), drawn((2, 3), (2, 3))
    yield Case("outputs/several", plain_maker(several), one)
    nested = twice(lambda data: (data.draw(2, 3), (data.draw(2, 3), data.draw(4))))
    yield Case(
        "outputs/nested",
        plain_maker(lambda self, x, pair: {"sum": x + pair[0], "rest": [pair[1] * 2, (x - 1,)]}),
        nested,
    )
    yield Case("outputs/other than tensors", plain_maker(lambda self, x: (x + 1, None, 7, [x * 2, None])), one)
    yield Case("outputs/many that live long", plain_maker(chained), one)
    yield Case("outputs/an input that nothing uses", plain_maker(lambda self, x, y: torch.sin(x) + 1), two)
    yield Case("aliases/input returned", plain_maker(lambda self, x, y: (x, x + y, y)), two)
    yield Case("aliases/one tensor twice", plain_maker(twice_the_same), one)
    yield Case(
        "aliases/one tensor as two inputs",
        plain_maker(lambda self, x, y: (torch.sin(x) + y, x * y, y - 1)),
        lambda data: ((data.draw(2, 3), data.draw(2, 3)), (data.draw(2, 3),) * 2),
    )
    yield Case("aliases/views of inputs", plain_maker(lambda self, x: (x.view(-1), x.t(), x[0], torch.sin(x))), one)
    yield Case("aliases/views of results", plain_maker(views_of_results), one)
    yield Case("aliases/copies of results", plain_maker(copies_of_results), one)
    yield Case("aliases/constants returned", weighted(constants_returned, scale=(2, 3)), one)
