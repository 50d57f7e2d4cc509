"""Operations on several dtypes compute with tensors of their common dtype, which are converted before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.pass_base import transform_program
from hatch_lower.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators

pytestmark = pytest.mark.torch

ROWS = {0: Dim("rows", min=1, max=9)}
FLOATS = torch.tensor([[1.5, -2.25, 0.0], [float("nan"), float("inf"), -0.0], [1e30, -1e-30, 3.0]])
WIDE = torch.tensor([[2**40 + 1, -(2**62) - 3, 0], [2**24 + 1, 7, -1], [2**31, -(2**31) - 1, 3]])


class Apply(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


def after_pass(function: Callable[..., Any], x: Tensor, y: Tensor) -> ExportedProgram:
    exported = torch.export.export(Apply(function), (x, y), dynamic_shapes=(ROWS, ROWS))
    return transform_program(to_edge(exported), [RemoveMixedTypeOperators()])


def operators(program: ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def input_dtypes(program: ExportedProgram, name: str) -> set[torch.dtype]:
    """Return the dtypes of the tensors that an operator is given."""
    return {
        source.meta["val"].dtype
        for node in program.graph.nodes
        if str(node.target) == name
        for source in node.all_input_nodes
    }


@pytest.mark.parametrize(
    ("function", "operator", "dtype"),
    [
        (lambda x, y: x * y, "aten.mul.Tensor", torch.float32),
        (lambda x, y: torch.add(y, x, alpha=2), "aten.add.Tensor", torch.float32),
        (lambda x, y: x - y.int(), "aten.sub.Tensor", torch.float32),
        (lambda x, y: x + (y > 0), "aten.add.Tensor", torch.float32),
        (lambda x, y: y / 4, "aten.div.Tensor", torch.float32),
        (lambda x, y: y * 0.5, "aten.mul.Tensor", torch.float32),
        (lambda x, y: y.int() / y, "aten.div.Tensor", torch.float32),
        (lambda x, y: y.int() + y, "aten.add.Tensor", torch.int64),
        (lambda x, y: y.int() + y[0, 0], "aten.add.Tensor", torch.int32),
        (lambda x, y: x < y, "aten.lt.Tensor", torch.float32),
        (lambda x, y: y.int() == y, "aten.eq.Tensor", torch.int64),
        (lambda x, y: torch.maximum(x, y), "aten.maximum.default", torch.float32),
        (lambda x, y: x.double() * y.float(), "aten.mul.Tensor", torch.float64),
    ],
)
def test_tensors_are_converted_to_the_dtype_that_eager_computes_with(
    function: Callable[..., Tensor], operator: str, dtype: torch.dtype
) -> None:
    program = after_pass(function, FLOATS, WIDE)
    assert input_dtypes(program, operator) == {dtype}
    for rows in (3, 1):
        given = FLOATS[:rows], WIDE[:rows]
        found, expected = program.module()(*given), function(*given)
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_a_choice_converts_its_values_and_not_its_condition() -> None:
    program = after_pass(lambda x, y: torch.where(y > 0, x, y), FLOATS, WIDE)
    assert input_dtypes(program, "aten.where.self") == {torch.bool, torch.float32}
    torch.testing.assert_close(
        program.module()(FLOATS, WIDE), torch.where(WIDE > 0, FLOATS, WIDE), equal_nan=True, rtol=0, atol=0
    )
    both = after_pass(lambda x, y: torch.where(y > 0, y > 0, x), FLOATS, WIDE)
    assert torch.equal(both.module()(FLOATS, WIDE).isnan(), torch.where(WIDE > 0, WIDE > 0, FLOATS).isnan())


def test_a_tensor_is_converted_once_for_all_operations() -> None:
    program = after_pass(lambda x, y: x * y + (x - y), FLOATS, WIDE)
    assert operators(program).count("aten._to_copy.default") == 1
    handles = [node.meta["debug_handle"] for node in program.graph.nodes if node.op == "call_function"]
    assert len(set(handles)) == len(handles)
    assert all("stack_trace" in node.meta for node in program.graph.nodes if "_to_copy" in str(node.target))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x * x.sum(), y + 2, x / 3, (x > 0) & (y > 0)),
        lambda x, y: x * y.to(torch.int8),  # in patterns of quantized models
    ],
)
def test_tensors_of_one_dtype_and_8_bit_integers_stay(function: Callable[..., Any]) -> None:
    before = to_edge(torch.export.export(Apply(function), (FLOATS, WIDE)))
    after = transform_program(before, [RemoveMixedTypeOperators()])
    assert operators(after) == operators(before)


def test_operations_in_control_flow_are_converted() -> None:
    def net(x: Tensor, y: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a + b.sin(), (x, y))
        return chosen

    x, y = torch.ones(3, 2), torch.full((3, 2), 4)
    program = after_pass(net, x, y)
    for given in (x, -x):
        torch.testing.assert_close(program.module()(given, y), net(given, y))
    branch = next(node.meta["val"] for node in program.graph.nodes if "cond" in str(node.target))
    assert branch[0].dtype is torch.float32
