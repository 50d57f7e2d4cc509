"""What is computed of literals alone is a constant of the lowered program; everything else is computed in each call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exports import SOURCE, Workshop, files_of
from torch import Tensor
from torch.export import Dim, ExportedProgram

import hatch_lower
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.passes.fold_literals import FoldLiterals
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.format.plan import read_plan
from hatch_lower.pipeline.save import save_program

pytestmark = pytest.mark.torch

SIZES = {0: Dim("rows", min=1, max=9)}


class Apply(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.table)


def edge(function: Callable[..., Any], x: Tensor) -> ExportedProgram:
    return to_edge(torch.export.export(Apply(function), (x,), dynamic_shapes=(SIZES,), strict=False))


def folded(function: Callable[..., Any], x: Tensor) -> tuple[ExportedProgram, list[str]]:
    """Return the program after the pass, which computes what eager computes, and its operators."""
    program = FoldLiterals()(edge(function, x)).exported_program
    for given in (x, torch.cat([x, x + 1])):
        torch.testing.assert_close(program.module()(given), Apply(function)(given))
    return program, [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def window(x: Tensor, table: Tensor) -> Tensor:
    places = (torch.arange(6) + 2) % 6
    return x[:, places] * torch.exp(torch.arange(6.0) / -3)[None] + table


def test_places_and_factors_that_no_input_shapes_are_constants() -> None:
    program, operators = folded(window, torch.randn(3, 6))
    assert operators == ["aten.index.Tensor", "aten.unsqueeze.default", "aten.mul.Tensor", "aten.add.Tensor"]
    assert program.constants["folded_0"].tolist() == [2, 3, 4, 5, 0, 1]
    specs = program.graph_signature.input_specs
    assert [spec.target for spec in specs] == ["table", "folded_0", "folded_1", None]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, table: x + torch.arange(6.0),  # an engine knows it
        lambda x, table: x + torch.arange(6.0).unsqueeze(0),
        lambda x, table: x + table.exp(),  # another checkpoint has other numbers
        lambda x, table: x + torch.arange(x.shape[0])[:, None] * 2,
        lambda x, table: x + x.t().contiguous()[:, 0] * 2,  # of a fixed size, with strides that are not
        lambda x, table: (x, torch.arange(6) * 2),  # the caller may change it
        lambda x, table: (x, (torch.arange(6) * 2).view(2, 3)[1]),
        lambda x, table: (x, (torch.arange(6) * 2).split(2)[1]),
        lambda x, table: x + torch.rand(6) * 2,
    ],
)
def test_other_results_are_computed_in_each_call(function: Callable[..., Any]) -> None:
    program = edge(function, torch.randn(3, 6))
    result = FoldLiterals()(program)
    assert (result.exported_program, result.modified) == (program, False)


def test_a_large_result_is_computed_of_small_constants() -> None:
    def products(x: Tensor, table: Tensor) -> Tensor:
        return torch.outer(torch.arange(200) * 2.0, torch.arange(300) * 3.0) + x[:, :1, None]

    program, operators = folded(products, torch.randn(3, 6))
    sizes = {name: tuple(value.shape) for name, value in program.constants.items()}
    assert sizes == {"folded_0": (200,), "folded_1": (300,)}
    assert "aten.mul.Tensor" in operators, "240 kB"


def test_what_raises_does_so_in_each_call() -> None:
    program = edge(lambda x, table: x + torch.arange(6)[torch.arange(6) + 1], torch.randn(3, 6))
    with pytest.raises(IndexError):
        FoldLiterals()(program).exported_program.module()(torch.randn(3, 6))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_constant_of_the_model_keeps_its_name(persistent: bool) -> None:
    class Named(Apply):
        def __init__(self) -> None:
            super().__init__(window)
            self.register_buffer("folded_0", torch.ones(6), persistent=persistent)

        def forward(self, x: Tensor) -> Any:
            return super().forward(x) * self.folded_0

    x = torch.randn(3, 6)
    program = FoldLiterals()(to_edge(torch.export.export(Named(), (x,)))).exported_program
    assert sorted({*program.constants, *program.state_dict} - {"table"}) == ["folded_0", "folded_1", "folded_2"]
    torch.testing.assert_close(program.module()(x), Named()(x))


def test_a_program_that_is_saved_has_the_constants(tmp_path: Path) -> None:
    x = torch.randn(3, 6)
    program = torch.export.export(Apply(window), (x,), dynamic_shapes=(SIZES,))
    lowered = to_edge_transform_and_lower(program, transform_passes=[FoldLiterals()]).to_executorch()
    model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    for given in (x, torch.randn(7, 6)):
        torch.testing.assert_close(model(given), Apply(window)(given))


def test_a_build_folds_literals_for_each_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    shop = Workshop(tmp_path)
    source = SOURCE.replace("return self.block(image).sum(1)", "return self.block(image) * (torch.arange(4) % 3)")
    report, _ = shop.build(shop.capture(source))
    files = files_of(report)
    assert "embed:folded_0" in read_plan(files["net/portable.json"], "net").constants
    for recipe in ("default", "portable"):
        assert b"aten.mul" in files[f"net/{recipe}.debug.json"], recipe
        assert b"aten.remainder" not in files[f"net/{recipe}.debug.json"], recipe
