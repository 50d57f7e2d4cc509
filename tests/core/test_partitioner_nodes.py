from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.fx import Graph

from hatch_lower.exir.dialects._ops import edge_overload
from hatch_lower.exir.graph.nodes import VIEWS, is_view, may_be_zero, result_tensors

pytestmark = pytest.mark.torch

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (aten.permute.default, True),
        (aten.slice.Tensor, True),
        (aten.squeeze.dims, True),
        (operator.getitem, True),
        (aten.clone.default, False),
        (aten.relu.default, False),
        (operator.add, False),
    ],
)
def test_what_computes_nothing_is_a_view_in_either_dialect(target: Any, expected: bool) -> None:
    graph = Graph()
    assert is_view(graph.call_function(target, ())) is expected
    if target not in (operator.getitem, operator.add):
        assert is_view(graph.call_function(edge_overload(target), ())) is expected


def test_an_operator_of_another_library_is_none() -> None:
    with torch.library._scoped_library("hatch_lower_nodes_test", "FRAGMENT") as library:
        library.define("view(Tensor x) -> Tensor")
        assert not is_view(Graph().call_function(torch.ops.hatch_lower_nodes_test.view.default, ()))


def test_all_views_are_operators_of_torch() -> None:
    assert all(hasattr(aten, name) for name in VIEWS)


@pytest.mark.parametrize(("dim", "expected"), [(Dim("n", max=16), True), (Dim("n", min=1), False)])
def test_a_dynamic_size_may_be_zero_unless_its_dim_begins_later(dim: Dim, expected: bool) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x])

    program = torch.export.export(Twice(), (torch.zeros(4, 3),), dynamic_shapes={"x": {0: dim}})
    values = [node.meta["val"] for node in program.graph.nodes if node.op != "output"]
    assert [may_be_zero(each.shape[0], program.range_constraints) for each in values] == [expected, expected]
    assert may_be_zero(values[0].shape[0], {})
    assert (may_be_zero(0, {}), may_be_zero(3, {})) == (True, False)


def test_the_tensors_of_a_node() -> None:
    node = Graph().placeholder("x")
    assert list(result_tensors(node)) == []
    one, two = torch.zeros(1), torch.zeros(2)
    for value, expected in ((one, [one]), ((one, None, two), [one, two]), ([two], [two]), (3, [])):
        node.meta["val"] = value
        found = list(result_tensors(node))
        assert len(found) == len(expected)
        assert all(a is b for a, b in zip(found, expected, strict=True))
