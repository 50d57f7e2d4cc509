"""Programs with control flow, and with sizes that depend on data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

from hatch_lower.testing.case import Case, Data, module
from hatch_lower.testing.shapes import sizes

__all__ = ["control_cases"]


def branches(self: Any, x: Tensor) -> Any:
    y = torch.sin(x * self.scale)
    z = torch.cond(y.sum() > 0, lambda y: y * 2 + 1, lambda y: y - 1, (y,))
    return torch.relu(z + y)


def nested_branches(self: Any, x: Tensor) -> Any:
    def positive(x: Tensor) -> Any:
        return torch.cond(x.sum() > 5, lambda x: x * 2, lambda x: x * 3, (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,)) + 1


def loop(self: Any, x: Tensor) -> Any:
    def step(index: Tensor, value: Tensor) -> Any:
        return index + 1, torch.sin(value) * self.scale

    repeat: Any = while_loop
    return repeat(lambda index, value: index < 3, step, (torch.zeros((), dtype=torch.int64), x))[1] + 1


def mapped(self: Any, x: Tensor) -> Any:
    each_row: Any = torch_map
    return each_row(lambda row: torch.sin(row) * self.scale, x) + 1


def scanned(self: Any, x: Tensor) -> Any:
    def step(carry: Tensor, row: Tensor) -> Any:
        return carry + row * self.scale, carry * row

    return scan(step, torch.zeros(3), x)


def data_dependent(self: Any, x: Tensor) -> Any:
    return torch.nonzero(torch.relu(x)) * 2, x + 1


def control_cases() -> Iterator[Case]:
    """Yield the programs with control flow."""
    dynamic = {"x": {0: Dim("rows", max=32)}}

    def scale(forward: Any) -> Any:
        return lambda data: module(forward, scale=torch.nn.Parameter(data.draw(3, low=0.5, high=1.5)))

    def both_ways(data: Data) -> tuple[tuple[Any, ...], ...]:
        rows = data.draw(4, 3).abs()
        return (rows,), (-rows,), (rows * 9,)

    yield Case("control flow/cond", scale(branches), both_ways, dynamic)
    yield Case("control flow/cond in cond", lambda data: module(nested_branches), both_ways)
    yield Case("control flow/while_loop", scale(loop), sizes(((4, 3),), ((2, 3),)), dynamic)
    yield Case("control flow/map", scale(mapped), sizes(((4, 3),), ((2, 3),)), dynamic)
    yield Case("control flow/scan", scale(scanned), sizes(((4, 3),), ((2, 3),)), dynamic)
    yield Case("control flow/sizes from data", lambda data: module(data_dependent), sizes(((4, 3),), ((4, 3),)))
