"""Ranges of dynamic sizes that torch.export refuses: exported for a size of 1 all the same, or narrowed."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch.export import Dim

from hatch_lower.errors import CaptureError
from hatch_lower.events import Event
from hatch_lower.exir.lowering.convert import decompose
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedMethod, capture_model
from hatch_lower.pipeline.ranges import is_refuted
from hatch_lower.runtime.torch_private.any_size import for_any_size
from hatch_lower.runtime.torch_private.symbols import PythonMod, ValueRanges, int_oo

pytestmark = pytest.mark.torch

ROWS, COLUMNS = Dim("rows", min=1, max=9), Dim("columns", min=1, max=20)


class Events:
    def __init__(self) -> None:
        self.found: list[Event] = []

    def report(self, event: Event) -> None:
        self.found.append(event)

    def notes(self) -> list[str]:
        return [event.detail for event in self.found if event.state == "note"]


class Later(torch.nn.Module):
    """The next column of each column: torch asks whether the other columns are a single one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x[:, 1:], (0, 1)) * 2


class Average(Later):
    """A share of the next column, with a case of its own for a single column."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found if x.shape[1] == 1 else found / (x.shape[1] - 1)


class Turned(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = x.shape[1] // 2
        return self.linear(x[:, :frames].transpose(0, 1)).transpose(0, 1).contiguous()


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: x.shape[0] // 2 + 1] * 2


class Branching(torch.nn.Module):
    """Other operations for a multiple of seven rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if x.shape[0] % 7 == 0 else x * 2


def capture(module: torch.nn.Module, events: Events, example: torch.Tensor, **options: Any) -> CapturedMethod:
    method = Method((example,), dynamic_shapes={"x": {0: ROWS, 1: COLUMNS}}, **options)
    (found,) = capture_model("net", Model(module.eval(), {"forward": method}), events).methods
    return found


def test_a_size_of_1_is_exported_where_only_the_order_in_memory_depends_on_it() -> None:
    module, events = Later(), Events()
    with pytest.raises(CaptureError, match="the dynamic shapes of method `forward` do not hold"):
        capture(module, events, torch.zeros(2, 5))
    found = capture(module, events, torch.zeros(2, 5), any_size=True)
    for rows, columns in ((1, 1), (1, 2), (2, 1), (3, 7)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(found.program.module()(x), module(x), rtol=0, atol=0)
    assert events.notes() == []


def test_a_range_that_is_still_refused_begins_at_2_and_is_reported() -> None:
    module, events = Average(), Events()
    found = capture(module, events, torch.zeros(2, 5), narrow=("columns",))
    ranges = {found.dimensions[str(symbol)]: each for symbol, each in found.program.range_constraints.items()}
    assert {name: (each.lower, each.upper) for name, each in ranges.items()} == {"rows": (1, 9), "columns": (2, 20)}
    assert events.notes() == ["`columns` has the range 2 to 20: torch.export refuses a range from 1 on"]
    for rows, columns in ((1, 2), (3, 7)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(found.program.module()(x), module(x))


@pytest.mark.parametrize("narrow", [(), ("rows",)])
def test_the_range_of_another_size_is_never_narrowed(narrow: tuple[str, ...]) -> None:
    with pytest.raises(CaptureError, match="the dynamic shapes of method `forward` do not hold") as caught:
        capture(Average(), Events(), torch.zeros(2, 5), any_size=True, narrow=narrow)
    assert caught.value.found.startswith("Constraints violated (columns)!")


def test_a_deferred_condition_is_no_check_of_a_size_other_than_1() -> None:
    torch.manual_seed(0)
    module, example = Turned(), torch.zeros(2, 6, 4)
    program = capture(module, Events(), example, defer_guards=True).program
    for each in (program, decompose(program, ())):
        for rows, columns in ((1, 2), (1, 5), (3, 20)):
            x = torch.randn(rows, columns, 4)
            with torch.no_grad():
                torch.testing.assert_close(each.module()(x), module(x))


@pytest.mark.parametrize("rows", [Dim.AUTO, Dim.DYNAMIC], ids=["auto", "dynamic"])
def test_a_call_checks_what_torch_assumes_of_a_size_without_a_range(rows: Any) -> None:
    module = Branching()
    method = Method((torch.ones(5, 3),), dynamic_shapes={"x": {0: rows}})
    (found,) = capture_model("net", Model(module, {"forward": method}), Events()).methods
    for program in (found.program, decompose(found.program, ())):
        torch.testing.assert_close(program.module()(torch.ones(4, 3)), module(torch.ones(4, 3)))
        with pytest.raises(RuntimeError, match="Runtime assertion failed for expression Ne"):
            program.module()(torch.ones(14, 3))


def test_a_condition_that_every_size_meets_is_no_check() -> None:
    method = Method((torch.ones(5, 3),), dynamic_shapes={"x": {0: Dim.AUTO}})
    (found,) = capture_model("net", Model(Halves(), {"forward": method}), Events()).methods
    assert [node for node in found.program.graph.nodes if "assert" in str(node.target)] == []


class Numbered(torch.nn.Module):
    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return x * 3 if number % x.shape[0] == 3 else x * number


@pytest.mark.parametrize(("number", "same", "other"), [(5, 6, 7), (-5, 7, 6)])
def test_a_call_checks_what_torch_assumes_of_a_number(number: int, same: int, other: int) -> None:
    module = Numbered()
    rows = {0: Dim("rows", min=2, max=9)}
    method = Method((torch.ones(4, 3), number), dynamic_shapes={"x": rows, "number": Dim.AUTO})
    (found,) = capture_model("net", Model(module, {"forward": method}), Events()).methods
    torch.testing.assert_close(found.program.module()(torch.ones(4, 3), same), module(torch.ones(4, 3), same))
    with pytest.raises(RuntimeError, match="Runtime assertion failed for expression"):
        found.program.module()(torch.ones(4, 3), other)


def test_a_condition_is_tried_without_a_division_by_zero_and_below_zero() -> None:
    a, b = sympy.symbols("a b", integer=True)
    ranges = {a: ValueRanges(-int_oo, int_oo), b: ValueRanges(0, int_oo)}
    assert is_refuted(sympy.Ne(PythonMod(a, b), 1), ranges)
    assert not is_refuted(sympy.Ge(PythonMod(a, b), 0), ranges)


def test_torch_is_as_before_after_the_export() -> None:
    before = [dict(vars(owner)) for owner in (torch.Tensor, torch.nn.functional)]
    with for_any_size():
        assert [
            dict(vars(owner)) == each for owner, each in zip((torch.Tensor, torch.nn.functional), before, strict=True)
        ] == [False, False]
    assert [dict(vars(owner)) for owner in (torch.Tensor, torch.nn.functional)] == before
