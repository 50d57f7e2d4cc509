"""Programs about values: NaN and infinities, several and nested outputs, and outputs that share memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hatch_lower.testing.case import Case, Data, module
from hatch_lower.testing.shapes import once

__all__ = ["value_cases"]

ODD = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3e38, 1e-40)


def odd_arithmetic(self: Any, x: Tensor, y: Tensor) -> Any:
    return x + y, x * y, x / y, x - x, torch.neg(x), x * 0


def odd_comparison(self: Any, x: Tensor, y: Tensor) -> Any:
    return x == y, x < y, x != x, torch.maximum(x, y), torch.minimum(x, y), torch.where(x > y, x, y), torch.isnan(x)


def odd_functions(self: Any, x: Tensor) -> Any:
    return F.relu(x), torch.sigmoid(x), torch.tanh(x), torch.exp(x), torch.sqrt(x), torch.clamp(x, -1, 1), x.abs()


def odd_reductions(self: Any, x: Tensor) -> Any:
    return x.sum(), x.amax(), x.amin(1), x.mean(0), torch.softmax(x, 1), torch.cumsum(x, 0)


def odd_integers(self: Any, x: Tensor) -> Any:
    return x + 1, x * 2, -x, x - 5


def several(self: Any, x: Tensor) -> Any:
    values, places = torch.max(x, 1)
    return x + 1, values, places, x.sum()


def nested(self: Any, x: Tensor, pair: tuple[Tensor, Tensor]) -> Any:
    return {"sum": x + pair[0], "rest": [pair[1] * 2, (x - 1,)]}


def with_others(self: Any, x: Tensor) -> Any:
    return x + 1, None, 7, [x * 2, None]


def input_returned(self: Any, x: Tensor, y: Tensor) -> Any:
    return x, x + y, y


def twice_the_same(self: Any, x: Tensor) -> Any:
    found = torch.sin(x)
    return found, found, found + 1


def views_of_inputs(self: Any, x: Tensor) -> Any:
    return x.view(-1), x.t(), x[0], torch.sin(x)


def views_of_results(self: Any, x: Tensor) -> Any:
    found = x * 2
    return found, found.view(-1), found[0], found.t()


def constants_returned(self: Any, x: Tensor) -> Any:
    return self.scale, x * self.scale, self.scale.view(-1)


def chain(self: Any, x: Tensor) -> Any:
    """Much that is needed long after it was made."""
    first = torch.sin(x)
    second = first + 1
    third = second * first
    fourth = torch.relu(third - second)
    return first * fourth, second + third, fourth


def unused_input(self: Any, x: Tensor, y: Tensor) -> Any:
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
    yield Case("aliases/views of inputs", lambda data: module(views_of_inputs), once(one))
    yield Case("aliases/views of results", lambda data: module(views_of_results), once(one))
    yield Case(
        "aliases/constants returned",
        lambda data: module(constants_returned, scale=torch.nn.Parameter(data.draw(2, 3))),
        once(one),
    )
