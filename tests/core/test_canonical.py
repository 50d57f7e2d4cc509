from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.backends import TagBy
from torch.export import ExportedProgram

from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.graph.canonical import canonical_form, structure_digest
from hatch_lower.exir.lowering.convert import to_aten, to_edge

pytestmark = pytest.mark.torch


class Variant(torch.nn.Module):
    def __init__(self, function: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
        self.register_buffer("count", torch.zeros(()))
        self.function = function

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.function(self, first, second)


def digest(
    function: Callable[..., torch.Tensor],
    *,
    shape: tuple[int, ...] = (3, 4),
    dtype: torch.dtype = torch.float32,
    prepare: Callable[[Variant], None] = lambda module: None,
    dynamic: object = None,
) -> str:
    module = Variant(function)
    prepare(module)
    args = (torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype))
    program = torch.export.export(module, args, dynamic_shapes=dynamic, strict=False)
    return structure_digest(to_edge(program))


def base(self: Variant, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.clamp(a - b * 2, 0, 6) + self.weight


BATCH = torch.export.Dim("batch", min=2, max=64)

DIFFERENT: dict[str, Callable[[], str]] = {
    "edge order": lambda: digest(lambda self, a, b: torch.clamp(b - a * 2, 0, 6) + self.weight),
    "literal": lambda: digest(lambda self, a, b: torch.clamp(a - b * 3, 0, 6) + self.weight),
    "keyword literal": lambda: digest(lambda self, a, b: torch.clamp(a - b * 2, 0, 1) + self.weight),
    "type of a literal": lambda: digest(lambda self, a, b: torch.clamp(a - b * 2.0, 0, 6) + self.weight),
    "operator": lambda: digest(lambda self, a, b: torch.clamp(a + b * 2, 0, 6) + self.weight),
    "which input": lambda: digest(lambda self, a, b: torch.clamp(a - a * 2, 0, 6) + self.weight),
    "output": lambda: digest(lambda self, a, b: (base(self, a, b), a)[0] * 1),
    "shape": lambda: digest(lambda self, a, b: torch.clamp(a - b * 2, 0, 6) + self.weight[0], shape=(5, 4)),
    "dtype": lambda: digest(base, dtype=torch.float64),
    "range": lambda: digest(lambda self, a, b: a - b, dynamic=({0: BATCH}, {0: BATCH})),
    "mutation": lambda: digest(lambda self, a, b: base(self, a, b) + self.count.add_(1) * 0),
    "constant layout": lambda: digest(base, prepare=transpose_weight),
    "constant dtype": lambda: digest(base, prepare=lambda module: module.double() and None),
}


def transpose_weight(module: Variant) -> None:
    module.weight = torch.nn.Parameter(torch.zeros(4, 3).t())


@pytest.mark.parametrize("change", sorted(DIFFERENT))
def test_every_change_of_meaning_changes_the_digest(change: str) -> None:
    assert DIFFERENT[change]() != digest(base)


def test_names_and_source_lines_and_weights_do_not_matter() -> None:
    def renamed(self: Variant, other: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
        doubled = names * 2
        difference = other - doubled
        return torch.clamp(difference, 0, 6) + self.weight

    def fill(module: Variant) -> None:
        torch.nn.init.constant_(module.weight, 7.0)

    assert digest(renamed) == digest(base)
    assert digest(base, prepare=fill) == digest(base)


def test_symbol_names_do_not_matter_and_ranges_do() -> None:
    def program(dim: object, warm_up: int) -> str:
        other = torch.export.Dim("other", min=2, max=99)
        for _ in range(warm_up):
            torch.export.export(Variant(base), (torch.ones(3, 4),) * 2, dynamic_shapes=({}, {}), strict=False)
        return digest(lambda self, a, b: a - b, dynamic=({0: dim}, {0: dim})) if dim else str(other)

    assert program(torch.export.Dim("rows", min=2, max=64), 0) == program(BATCH, 1)
    assert program(torch.export.Dim("rows", min=2, max=63), 0) != program(BATCH, 0)


def test_ties_between_constants_are_structure() -> None:
    class Two(torch.nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.first = torch.nn.Buffer(torch.ones(4))
            self.second = self.first.view(4) if tied else torch.nn.Buffer(torch.ones(4))
            self.register_buffer("second_view", self.first[:4] if tied else torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.first + self.second_view

    def of(tied: bool) -> str:
        return structure_digest(to_edge(torch.export.export(Two(tied), (torch.ones(4),), strict=False)))

    assert of(tied=True) != of(tied=False)


def test_a_nested_graph_is_part_of_the_form() -> None:
    def branch(value: int) -> Callable[..., torch.Tensor]:
        def function(self: Variant, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.cond(a.sum() > 0, lambda t: t * value, lambda t: t - 1, (a,))

        return function

    assert digest(branch(2)) == digest(branch(2))
    assert digest(branch(2)) != digest(branch(3))


def test_the_contents_of_a_tensor_among_arguments_are_part_of_the_form() -> None:
    def of(number: float) -> str:
        program = to_edge(torch.export.export(Variant(base), (torch.ones(3, 4), torch.ones(3, 4)), strict=False))
        node = next(node for node in program.graph.nodes if node.op == "call_function")
        node.args = (node.args[0], torch.full((40, 40), number))
        return structure_digest(program)

    assert of(1.0) == of(1.0)
    assert of(1.0) != of(2.0)


def test_the_edge_and_the_aten_form_differ_only_in_dialect() -> None:
    program = to_edge(torch.export.export(Variant(base), (torch.ones(3, 4), torch.ones(3, 4)), strict=False))
    edge, aten = canonical_form(program), canonical_form(to_aten(program))
    assert edge != aten
    assert edge["inputs"] == aten["inputs"]
    assert edge["outputs"] == aten["outputs"]


def test_the_order_of_symbols_does_not_follow_their_names() -> None:
    class Products(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.sin((x.unsqueeze(1) * y).reshape(-1)), torch.sin(x)

    class Swapped(Products):
        def forward(self, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return super().forward(y, x)

    def sines(module: torch.nn.Module, names: str) -> ExportedProgram:
        shapes = {name: {0: torch.export.Dim(f"size_{name}", min=2, max=9)} for name in names}
        exported = torch.export.export(module, (torch.ones(3), torch.ones(4)), dynamic_shapes=shapes, strict=False)
        lowered = to_backend(to_edge(exported), TagBy(lambda node: "a" if "sin" in str(node.target) else None))
        return lowered.graph_module.lowered_module_0.original_module

    first, second = sines(Products(), "xy"), sines(Swapped(), "yx")
    inputs = [each.graph.find_nodes(op="placeholder") for each in (first, second)]
    sizes = [[str(node.meta["val"].shape) for node in each] for each in inputs]
    assert sizes[0][0] == sizes[1][0], "the first input is of both sizes"
    assert sizes[0][1] != sizes[1][1], "torch names the sizes by the parameters"
    assert structure_digest(first) == structure_digest(second)
