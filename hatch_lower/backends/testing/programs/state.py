"""Programs with state and control flow: constants, buffers and inputs that change, branches, loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

from hatch_lower.backends.testing.case import Case, Data, module, once, sizes

EVERY_CONSTANT = "constants/every kind"
"""The program in which the kit changes one constant after the other."""
SIDE = 2048


def every_kind(self: Any, x: Tensor) -> object:
    found = x * self.parameter + self.buffer
    found = found + self.table * torch.tensor([0.5, 1.5, 2.5])
    return found * self.point - self.turned.sum(0), x + self.one, self.other * 2, x * self.unsaved


def every_constant(data: Data) -> torch.nn.Module:
    """Return a module with a constant of each kind; one of them is unused, and two are one tensor."""
    tied = torch.nn.Parameter(data.draw(3))
    made = module(
        every_kind,
        parameter=torch.nn.Parameter(data.draw(3)),
        buffer=data.draw(3),
        table=data.draw(3),
        point=torch.nn.Parameter(data.draw()),
        turned=torch.nn.Parameter(data.draw(3, 2).t()),
        one=tied,
        other=tied,
        unused=torch.nn.Parameter(data.draw(5)),
    )
    made.register_buffer("unsaved", data.draw(3), persistent=False)
    return made


def scaled(self: Any, x: Tensor) -> object:
    return x * self.scale + 1


def plus_buffer(self: Any, x: Tensor) -> object:
    return x * 2 + self.buffer


def tied(self: Any, x: Tensor) -> object:
    return x @ self.one + 1, x @ self.other.t() - 1


def literal(self: Any, x: Tensor) -> object:
    return x + torch.tensor([1.0, -2.0, 3.0]), x * self.table


def point(self: Any, x: Tensor) -> object:
    return x * self.point, x + self.buffer


def unused(self: Any, x: Tensor) -> object:
    return torch.sin(x) * 2


def turned(self: Any, x: Tensor) -> object:
    return x * self.turned, x + self.step, x * self.wide


def overlapping(self: Any, x: Tensor) -> object:
    return x + self.whole, x * self.row, (x @ self.whole)[:, 1:] - self.corner


def of_other_dtypes(self: Any, x: Tensor) -> object:
    return x * self.short, x + self.whole, torch.where(self.flags, x, -x), self.whole * 2


def empty_constant(self: Any, x: Tensor) -> object:
    return torch.cat([x, self.nothing]) * 2, x + 1


def large(self: Any, x: Tensor) -> object:
    return x @ self.weight


def counting(self: Any, x: Tensor) -> object:
    before = self.buffer * 1
    self.buffer.add_(x.sum(0))
    return before + x, self.buffer * 2


def replacing(self: Any, x: Tensor) -> object:
    self.buffer.copy_(x * 2)
    return torch.sin(x) + 1


def reading_after_writing(self: Any, x: Tensor) -> object:
    self.buffer_steps.add_(1)
    self.buffer_rows[0] = x[0]
    return self.buffer_rows * self.buffer_steps, x + self.buffer_steps


def averaging(self: Any, x: Tensor) -> object:
    self.buffer.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return (x - self.buffer) * self.scale


def writing_to_input(self: Any, x: Tensor, y: Tensor) -> object:
    x.add_(y)
    return x * 2


def writing_to_part_of_input(self: Any, x: Tensor) -> object:
    x[:, 0] = 7
    return torch.sin(x)


def rows(data: Data) -> tuple[Any, ...]:
    return (data.draw(2, 3),)


def calls(count: int) -> Callable[[Data], tuple[tuple[Any, ...], ...]]:
    """Return a function that draws the arguments of several calls."""
    return lambda data: tuple(rows(data) for _ in range(count))


def large_weight() -> Case:
    """Return the program by which the kit sees whether weights are copied; it is no case of its own."""
    return Case(
        "constants/large",
        lambda data: module(large, weight=torch.nn.Parameter(data.draw(SIDE, SIDE))),
        once(lambda data: (data.draw(1, SIDE),)),
    )


def large_values() -> Case:
    """Return the program by which the kit sees whether memory is given back; it is no case of its own."""
    return Case(
        "state/large values",
        lambda data: module(scaled, scale=torch.nn.Parameter(data.draw(SIDE // 4, SIDE // 4))),
        once(lambda data: (data.draw(SIDE // 4, SIDE // 4),)),
    )


def parameter(tensor: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)


def state_cases() -> Iterator[Case]:
    """Yield the programs with constants and state."""
    yield Case(EVERY_CONSTANT, every_constant, calls(2))
    yield Case("constants/parameter", lambda data: module(scaled, scale=torch.nn.Parameter(data.draw(3))), calls(2))
    yield Case("constants/buffer", lambda data: module(plus_buffer, buffer=data.draw(3)), calls(2))

    def make_tied(data: Data) -> torch.nn.Module:
        weight = torch.nn.Parameter(data.draw(3, 3))
        return module(tied, one=weight, other=weight)

    yield Case("constants/tied", make_tied, calls(2))
    yield Case("constants/constant tensors", lambda data: module(literal, table=data.draw(3)), calls(2))
    yield Case(
        "constants/0-d",
        lambda data: module(point, point=torch.nn.Parameter(data.draw()), buffer=data.draw()),
        calls(2),
    )
    yield Case("constants/unused", lambda data: module(unused, weight=torch.nn.Parameter(data.draw(4))), calls(2))
    yield Case(
        "constants/not contiguous",
        lambda data: module(
            turned,
            turned=parameter(data.draw(3, 2).t()),
            step=parameter(data.draw(2, 6)[:, ::2]),
            wide=parameter(data.draw(1, 3).expand(2, 3)),
        ),
        calls(2),
    )

    def make_overlapping(data: Data) -> torch.nn.Module:
        whole = data.draw(3, 3)
        return module(overlapping, whole=parameter(whole), row=whole[1], corner=whole[1, 1:])

    yield Case("constants/of one storage", make_overlapping, sizes(((3, 3),), ((3, 3),)))
    yield Case(
        "constants/other dtypes",
        lambda data: module(
            of_other_dtypes,
            short=parameter(data.draw(3, dtype=torch.float16)),
            whole=parameter(data.draw(3, dtype=torch.int64)),
            flags=data.draw(3, dtype=torch.bool),
        ),
        calls(2),
    )
    yield Case("constants/empty", lambda data: module(empty_constant, nothing=parameter(torch.ones(0, 3))), calls(2))
    yield Case("state/counted", lambda data: module(counting, buffer=torch.zeros(3)), calls(3))
    yield Case("state/replaced", lambda data: module(replacing, buffer=torch.zeros(2, 3)), calls(2))
    yield Case(
        "state/read after it was written",
        lambda data: module(reading_after_writing, buffer_steps=torch.zeros(()), buffer_rows=data.draw(2, 3)),
        calls(3),
    )
    yield Case(
        "state/running mean",
        lambda data: module(averaging, buffer=torch.zeros(3), scale=torch.nn.Parameter(data.draw(3))),
        calls(3),
    )
    yield Case(
        "state/input written",
        lambda data: module(writing_to_input),
        once(lambda data: (data.draw(2, 3), data.draw(2, 3))),
    )
    yield Case("state/part of an input written", lambda data: module(writing_to_part_of_input), calls(2))


def branches(self: Any, x: Tensor) -> object:
    y = torch.sin(x * self.scale)
    z = torch.cond(y.sum() > 0, lambda y: y * 2 + 1, lambda y: y - 1, (y,))
    return torch.relu(z + y)


def nested_branches(self: Any, x: Tensor) -> object:
    def positive(x: Tensor) -> Any:
        return torch.cond(x.sum() > 5, lambda x: x * 2, lambda x: x * 3, (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,)) + 1


def loop(self: Any, x: Tensor) -> object:
    def step(index: Tensor, value: Tensor) -> Any:
        return index + 1, torch.sin(value) * self.scale

    repeat: Any = while_loop
    return repeat(lambda index, value: index < 3, step, (torch.zeros((), dtype=torch.int64), x))[1] + 1


def mapped(self: Any, x: Tensor) -> object:
    each_row: Any = torch_map
    return each_row(lambda row: torch.sin(row) * self.scale, x) + 1


def scanned(self: Any, x: Tensor) -> object:
    def step(carry: Tensor, row: Tensor) -> Any:
        return carry + row * self.scale, carry * row

    return scan(step, torch.zeros(3), x)


def data_dependent(self: Any, x: Tensor) -> object:
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
