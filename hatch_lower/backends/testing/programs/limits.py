"""Programs of integers at the limits of their dtypes: sums and products wrap around, and so do conversions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.export import Dim

from hatch_lower.backends.testing.case import DTYPES, Case, Data, KitModule, plain_maker, sizes, twice

INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def wrapping(self: KitModule, x: Tensor, y: Tensor) -> object:
    total, difference, multiple = x + y, x - y, x * y
    # results that stay in a register are of their dtype, too
    kept = total.to(torch.int64), total > x, difference < 0, multiple.to(torch.float64), (x * 3) >> 1, (-x).abs()
    return total, difference, multiple, torch.add(x, y, alpha=3), -x, x.abs(), x * x * x, x << 1, ~x & y, *kept


def dividing(self: KitModule, x: Tensor, y: Tensor) -> object:
    y = torch.where((y == 0) | (y == -1), 3, y)
    quotients = torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"), (x + y) // 7
    return *quotients, torch.remainder(x, y), torch.fmod(x, y), (x + y) % 7


def summing(self: KitModule, x: Tensor, y: Tensor) -> object:
    sums = x.sum(), (x + y).sum(), x.cumsum(0), (x * y).prod(), y[:9].cumprod(0)
    return *sums, x.amax(), x.amin(), torch.argmax(x), torch.maximum(x, y), torch.where(x < y, x, y)


def multiplying(self: KitModule, x: Tensor, y: Tensor) -> object:
    left, right = x[:6].view(2, 3), y[:6].view(3, 2)
    return (
        left @ right,
        torch.bmm(left[None], right[None]),
        torch.matmul(left, y[:3]),
        left.to(torch.int64) @ right.long(),
    )


def converting(self: KitModule, *numbers: Tensor) -> object:
    integers = [x.to(DTYPES[name]) for x in numbers for name in (*INTEGERS, "bool")]
    floats = [x.to(dtype) for x in numbers for dtype in (torch.float32, torch.float64)]
    return *integers, *floats, *((x + 1).to(torch.int8).to(torch.int64) for x in numbers)


def counting(self: KitModule, x: Tensor) -> object:
    places = torch.arange(x.shape[0])
    narrow, large = places.to(torch.int8) * 50, places * 2**61
    steps = places * 600_000_000, torch.arange(0, x.shape[0] * 600_000_000, 600_000_000), places + 2**53
    kept = narrow.to(torch.int64), large // 7, (places * 600_000_000).to(torch.int32).to(torch.int64), large > places
    filled = torch.full((x.shape[0],), x.shape[0] * 2**40), torch.full_like(places, 2**31 - 1).to(torch.int32) + 1
    return *steps, *kept, *filled, torch.fmod(places - 5, 3), (places - 5) % 3


def draw_pairs(dtype: str, data: Data) -> tuple[Tensor, ...]:
    # numbers near the limits of a dtype, and near the limits of narrower dtypes
    limits = torch.iinfo(DTYPES[dtype])
    lower = (limits.min, limits.min + 1, limits.min // 2 - 1, -1, 0, 2) if limits.min else (0, 1, 2, 3)
    numbers = {*lower, 7, limits.max // 3, limits.max // 2 + 1, limits.max - 1, limits.max}
    if dtype == "int64":
        numbers |= {2**31, -(2**31) - 1, 2**53 + 1, 3_037_000_500}
    pairs = torch.tensor(list(product(sorted(numbers), repeat=2)), dtype=DTYPES[dtype])
    return tuple(pairs[data.indices(len(pairs), len(pairs))].t().contiguous())


def draw_all(data: Data) -> tuple[Tensor, ...]:
    return tuple(draw_pairs(name, data)[0] for name in INTEGERS)


def limit_cases() -> Iterator[Case]:
    for dtype in INTEGERS:
        for function in (wrapping, dividing, summing):
            pairs = twice(partial(draw_pairs, dtype))
            yield Case(f"limits/{function.__name__} {dtype}", plain_maker(function), pairs)
    for dtype in ("int32", "int64"):
        yield Case(f"limits/multiplying {dtype}", plain_maker(multiplying), twice(partial(draw_pairs, dtype)))
    yield Case("limits/converting", plain_maker(converting), twice(draw_all))
    counts = sizes(((3,),), ((11,),), ((64,),), ((300,),))
    yield Case("limits/counting", plain_maker(counting), counts, {"x": {0: Dim("n", min=2, max=512)}})
