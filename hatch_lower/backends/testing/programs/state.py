"""Programs with state and control flow: constants, buffers and inputs that change, branches, loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from hatch_lower.backends.testing.case import Case, Data, KitModule, drawn, module, plain_maker, sizes, weighted
from hatch_lower.runtime.torch_private.programs import map_rows, scan, while_loop

EVERY_CONSTANT = "constants/every kind"  # in this program the kit changes one constant after the other
SIDE = 2048


def every_kind(self: KitModule, x: Tensor) -> object:
    total = x * self.parameter + self.buffer
    total = total + self.table * torch.tensor([0.5, 1.5, 2.5])
    return total * self.point - self.turned.sum(0), x + self.one, self.other * 2, x * self.unsaved


def every_constant(data: Data) -> KitModule:
    # a constant is unused, and two are the same tensor
    tied = torch.nn.Parameter(data.draw(3))
    program = module(
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
    program.register_buffer("unsaved", data.draw(3), persistent=False)
    return program


def scaled(self: KitModule, x: Tensor) -> object:
    return x * self.scale + 1


def literal(self: KitModule, x: Tensor) -> object:
    return x + torch.tensor([1.0, -2.0, 3.0]), x * self.table


def point(self: KitModule, x: Tensor) -> object:
    return x * self.point, x + self.buffer


def overlapping(self: KitModule, x: Tensor) -> object:
    return x + self.whole, x * self.row, (x @ self.whole)[:, 1:] - self.corner


def of_other_dtypes(self: KitModule, x: Tensor) -> object:
    return x * self.short, x + self.whole, torch.where(self.flags, x, -x), self.whole * 2


def empty_constant(self: KitModule, x: Tensor) -> object:
    return torch.cat([x, self.nothing]) * 2, x + 1


def counting_calls(self: KitModule, x: Tensor) -> object:
    before = self.buffer * 1
    self.buffer.add_(x.sum(0))
    return before + x, self.buffer * 2


def replacing_buffer(self: KitModule, x: Tensor) -> object:
    self.buffer.copy_(x * 2)
    return torch.sin(x) + 1


def reading_after_writing(self: KitModule, x: Tensor) -> object:
    self.buffer_steps.add_(1)
    self.buffer_rows[0] = x[0]
    return self.buffer_rows * self.buffer_steps, x + self.buffer_steps


def averaging(self: KitModule, x: Tensor) -> object:
    self.buffer.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return (x - self.buffer) * self.scale


def writing_to_input(self: KitModule, x: Tensor, y: Tensor) -> object:
    x.add_(y)
    return x * 2


def writing_to_part_of_input(self: KitModule, x: Tensor) -> object:
    x[:, 0] = 7
    return torch.sin(x)


def large_weight() -> Case:
    # shows whether weights are copied; not a case of its own
    return Case("constants/large", weighted(lambda self, x: x @ self.weight, weight=(SIDE, SIDE)), drawn((1, SIDE)))


def large_values() -> Case:
    # shows whether memory is given back; not a case of its own
    square = (SIDE // 4, SIDE // 4)
    return Case("state/large values", weighted(scaled, scale=square), drawn(square))


def parameter(tensor: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)


def make_tied(data: Data) -> KitModule:
    weight = torch.nn.Parameter(data.draw(3, 3))
    return module(lambda self, x: (x @ self.one + 1, x @ self.other.t() - 1), one=weight, other=weight)


def make_turned(data: Data) -> KitModule:
    return module(
        lambda self, x: (x * self.turned, x + self.step, x * self.wide),
        turned=parameter(data.draw(3, 2).t()),
        step=parameter(data.draw(2, 6)[:, ::2]),
        wide=parameter(data.draw(1, 3).expand(2, 3)),
    )


def make_overlapping(data: Data) -> KitModule:
    whole = data.draw(3, 3)
    return module(overlapping, whole=parameter(whole), row=whole[1], corner=whole[1, 1:])


def make_of_other_dtypes(data: Data) -> KitModule:
    return module(
        of_other_dtypes,
        short=parameter(data.draw(3, dtype=torch.float16)),
        whole=parameter(data.draw(3, dtype=torch.int64)),
        flags=data.draw(3, dtype=torch.bool),
    )


def make_averaging(data: Data) -> KitModule:
    return module(averaging, buffer=torch.zeros(3), scale=torch.nn.Parameter(data.draw(3)))


def make_steps(data: Data) -> KitModule:
    return module(reading_after_writing, buffer_steps=torch.zeros(()), buffer_rows=data.draw(2, 3))


def state_cases() -> Iterator[Case]:
    two, three = drawn((2, 3)), drawn((2, 3), calls=3)
    yield Case(EVERY_CONSTANT, every_constant, two)
    yield Case("constants/parameter", weighted(scaled, scale=(3,)), two)
    yield Case("constants/buffer", lambda data: module(lambda self, x: x * 2 + self.buffer, buffer=data.draw(3)), two)
    yield Case("constants/tied", make_tied, two)
    yield Case("constants/constant tensors", lambda data: module(literal, table=data.draw(3)), two)
    yield Case(
        "constants/0-d", lambda data: module(point, point=torch.nn.Parameter(data.draw()), buffer=data.draw()), two
    )
    yield Case("constants/unused", weighted(lambda self, x: torch.sin(x) * 2, weight=(4,)), two)
    yield Case("constants/not contiguous", make_turned, two)
    yield Case("constants/of one storage", make_overlapping, drawn((3, 3)))
    yield Case("constants/other dtypes", make_of_other_dtypes, two)
    yield Case("constants/empty", lambda data: module(empty_constant, nothing=parameter(torch.ones(0, 3))), two)
    yield Case("state/counted", lambda data: module(counting_calls, buffer=torch.zeros(3)), three)
    yield Case("state/replaced", lambda data: module(replacing_buffer, buffer=torch.zeros(2, 3)), two)
    yield Case("state/read after it was written", make_steps, three)
    yield Case("state/running mean", make_averaging, three)
    yield Case("state/input written", plain_maker(writing_to_input), drawn((2, 3), (2, 3)))
    yield Case("state/part of an input written", plain_maker(writing_to_part_of_input), two)


def branches(self: KitModule, x: Tensor) -> object:
    y = torch.sin(x * self.scale)
    z = torch.cond(y.sum() > 0, lambda y: y * 2 + 1, lambda y: y - 1, (y,))
    return torch.relu(z + y)


def nested_branches(self: KitModule, x: Tensor) -> object:
    def positive(x: Tensor) -> object:
        return torch.cond(x.sum() > 5, lambda x: x * 2, lambda x: x * 3, (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,)) + 1


def loop(self: KitModule, x: Tensor) -> object:
    def step(index: Tensor, value: Tensor) -> object:
        return index + 1, torch.sin(value) * self.scale

    repeat: Any = while_loop
    return repeat(lambda index, value: index < 3, step, (torch.zeros((), dtype=torch.int64), x))[1] + 1


def mapped(self: KitModule, x: Tensor) -> object:
    each_row: Any = map_rows
    return each_row(lambda row: torch.sin(row) * self.scale, x) + 1


def scanned(self: KitModule, x: Tensor) -> object:
    def step(carry: Tensor, row: Tensor) -> Any:
        return carry + row * self.scale, carry * row

    return scan(step, torch.zeros(3), x)


def data_dependent(self: KitModule, x: Tensor) -> object:
    return torch.nonzero(torch.relu(x)) * 2, x + 1


def control_cases() -> Iterator[Case]:
    dynamic = {"x": {0: Dim("rows", max=32)}}

    def both_ways(data: Data) -> tuple[tuple[object, ...], ...]:
        rows = data.draw(4, 3).abs()
        return (rows,), (-rows,), (rows * 9,)

    shorter = sizes(((4, 3),), ((2, 3),))
    yield Case("control flow/cond", weighted(branches, scale=(3,), low=0.5, high=1.5), both_ways, dynamic)
    yield Case("control flow/cond in cond", plain_maker(nested_branches), both_ways)
    yield Case("control flow/while_loop", weighted(loop, scale=(3,), low=0.5, high=1.5), shorter, dynamic)
    yield Case("control flow/map", weighted(mapped, scale=(3,), low=0.5, high=1.5), shorter, dynamic)
    yield Case("control flow/scan", weighted(scanned, scale=(3,), low=0.5, high=1.5), shorter, dynamic)
    yield Case("control flow/sizes from data", plain_maker(data_dependent), drawn((4, 3)))
