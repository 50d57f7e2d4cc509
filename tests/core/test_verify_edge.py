from __future__ import annotations

from typing import Any

import pytest
import torch
from support.older import CHECKED_NUMBERS
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram
from torch.library import Library

from hatch_lower.errors import EdgeError
from hatch_lower.exir.dialects._ops import edge_overload, ops
from hatch_lower.exir.dialects.edge.verify import (
    DIALECT_RULES,
    STRUCTURE_RULES,
    EdgeVerifier,
    EdgeViolationError,
    find_violations,
    has_contiguous_attribute,
    is_core_aten,
    is_functional,
    verify_edge,
)
from hatch_lower.exir.graph.surgery import rebuild_program
from hatch_lower.exir.lowering.convert import to_aten, to_edge

pytestmark = pytest.mark.torch

aten = torch.ops.aten


class Small(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.nn.functional.gelu, torch.neg, (x + 1,))


def exported(module: torch.nn.Module, *args: Any) -> ExportedProgram:
    return torch.export.export(module, args, strict=False)


def first_call(program: ExportedProgram) -> torch.fx.Node:
    return next(node for node in program.graph.nodes if node.op == "call_function")


def messages(program: ExportedProgram, **given: Any) -> list[str]:
    return [message for _, _, message in find_violations(program.graph_module, **given)]


def test_an_edge_program_breaks_no_rule() -> None:
    program = to_edge(exported(Small(), torch.randn(3)))
    assert messages(program) == []
    verify_edge(program)


def test_bare_operators_are_refused() -> None:
    program = to_edge(exported(Small(), torch.randn(3)))
    first_call(program).target = aten.relu.default
    assert messages(program) == ["aten.relu.default is not an edge operator"]
    aten_program = to_aten(to_edge(exported(Small(), torch.randn(3))))
    found = messages(aten_program, rules=STRUCTURE_RULES)
    assert "aten.neg.default is not an edge operator" in found, "in a branch too"
    with pytest.raises(SpecViolationError, match="is not an edge operator"):
        rebuild_program(aten_program, aten_program.graph_module, aten_program.graph, verifier=EdgeVerifier)


def test_operators_that_change_their_arguments_are_refused() -> None:
    program = to_edge(exported(Small(), torch.randn(3)))
    first_call(program).target = edge_overload(aten.add_.Tensor)
    assert messages(program, rules=[is_functional]) == ["edge operator aten.add_.Tensor changes its arguments"]
    with pytest.raises(EdgeViolationError) as caught:
        rebuild_program(program, program.graph_module, program.graph)
    assert str(caught.value) == (
        "edge operator aten.add_.Tensor changes its arguments\n"
        f"  where: node `{first_call(program).name}`\n"
        "  to do: make edge programs with `to_edge`, and passes that keep to the dialect"
    )


def test_an_operation_without_a_debug_handle_is_refused() -> None:
    program = to_edge(exported(Small(), torch.randn(3)))
    first_call(program).meta.pop("debug_handle")
    assert messages(program) == [f"node {first_call(program).name} has no debug handle"]


class Bessel(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(torch.nn.functional.linear(x, torch.ones(2, 3)))


def test_operators_outside_the_core_set_are_refused() -> None:
    program = to_edge(exported(Bessel(), torch.randn(4, 3)), keep=[aten.linear.default])
    with pytest.raises(SpecViolationError) as caught:
        verify_edge(program)
    assert isinstance(caught.value, EdgeError)
    assert str(caught.value) == (
        "operator aten.linear.default is not core ATen\n"
        "  where: node `aten_linear_default`\n"
        "  found: operator aten.linear.default is not core ATen (node `aten_linear_default`)\n"
        "    operator aten.special_bessel_j0.default is not core ATen (node `aten_special_bessel_j0_default`)\n"
        "  to do: keep it whole with `EdgeCompileConfig(preserve_ops=[...])`, exempt it with "
        "`_core_aten_ops_exception_list`, or let a backend take it"
    )
    verify_edge(program, exempt=[aten.linear.default, aten.special_bessel_j0.default])
    verify_edge(program, rules=STRUCTURE_RULES)


@CHECKED_NUMBERS
def test_operators_of_one_s_own_and_asserts_may_stay() -> None:
    library = Library("verify_edge_test", "DEF")
    library.define("own(Tensor x) -> Tensor")
    library.impl("own", torch.clone, "CompositeExplicitAutograd")

    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check(x.sum().item() > -1e9)
            return torch.ops.verify_edge_test.own(x)

    program = to_edge(exported(Own(), torch.randn(3)))
    names = {str(node.target) for node in program.graph.nodes}
    assert {"verify_edge_test.own.default", "aten._assert_scalar.default"} <= names
    assert messages(program, rules=[is_core_aten]) == []
    library._destroy()


def test_attribute_tensors_are_dense() -> None:
    program = to_edge(exported(Small(), torch.randn(3)))
    module = program.graph_module
    with module.graph.inserting_before(first_call(program)):
        node = module.graph.get_attr("table", type_expr=None) if hasattr(module, "table") else None
        for name, table, expected in [
            ("plain", torch.ones(2, 3), []),
            ("channels_last", torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last), []),
            ("sparse", torch.ones(2, 2).to_sparse(), []),
            ("turned", torch.ones(2, 3).t(), ["turned"]),
        ]:
            module.register_buffer(name, table)
            node = module.graph.get_attr(name)
            node.meta["val"] = table
            found = messages(program, rules=[has_contiguous_attribute])
            assert found == [
                f"the attribute tensor {each} is neither contiguous nor channels-last" for each in expected
            ]


def test_many_violations_are_listed_and_counted() -> None:
    class Many(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for size in range(2, 13):
                x = x + torch.nn.functional.linear(x, torch.ones(3, 3)) * size
            return x

    program = to_edge(exported(Many(), torch.randn(2, 3)))
    for node in program.graph.nodes:
        node.meta.pop("debug_handle", None)
    with pytest.raises(EdgeViolationError) as caught:
        verify_edge(program)
    rows = caught.value.found.split("\n")
    assert len(rows) == 9
    assert rows[-1].startswith("and ")
    assert rows[-1].endswith(" more")


def test_the_rules_are_a_list() -> None:
    assert DIALECT_RULES[: len(STRUCTURE_RULES)] == STRUCTURE_RULES
    assert all(rule.__doc__ for rule in DIALECT_RULES)
    assert EdgeVerifier.dialect == "HATCH_LOWER_EDGE"
    assert ops.edge.aten.add.Tensor._op is aten.add.Tensor
