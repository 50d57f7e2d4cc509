from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from torch.export import ExportedProgram
from torch.library import Library

from hatch_lower.errors import EdgeError
from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.dialects._ops import EdgeOpOverload, bind_pattern_to_op, edge_overload, ops
from hatch_lower.exir.dialects.backend._ops import BackendOpOverload, BackendOpOverloadPacket, KernelError
from hatch_lower.exir.graph.surgery import graph_modules
from hatch_lower.exir.lowering.convert import to_aten, to_edge
from hatch_lower.exir.lowering.patterns import ReplacePattern, trace_pattern
from hatch_lower.exir.pass_base import transform_program

pytestmark = pytest.mark.torch

aten = torch.ops.aten
numbers = count()


@pytest.fixture
def library() -> Iterator[Library]:
    made = Library(f"backend_test_{next(numbers)}", "DEF")
    yield made
    made._destroy()


def backend_op(library: Library, name: str, overload: str = "default") -> Any:
    return getattr(getattr(getattr(ops.backend, library.ns), name), overload)


def add_sub(x: Any, y: Any, z: Any) -> Any:
    return aten.sub.Tensor(aten.add.Tensor(x, y), z)


def bound(library: Library, pattern: Callable[..., Any], schema: str) -> Any:
    assert bind_pattern_to_op(library, schema)(pattern) is pattern
    return backend_op(library, schema.partition("(")[0])


def test_a_pattern_becomes_a_backend_operator(library: Library) -> None:
    op = bound(library, add_sub, "add_sub(Tensor x, Tensor y, Tensor z) -> Tensor")
    assert isinstance(op, BackendOpOverload)
    assert isinstance(op, EdgeOpOverload)
    assert isinstance(getattr(ops.backend, library.ns).add_sub, BackendOpOverloadPacket)
    assert op is backend_op(library, "add_sub")
    assert op is not edge_overload(op._op), "the two dialects' operators are not the same"
    assert (str(op), repr(op)) == (
        f"{library.ns}.add_sub.default",
        f"<BackendOpOverload: {library.ns}.add_sub.default>",
    )
    assert op.__module__ == "hatch_lower.exir.dialects.backend._ops"
    assert op._equivalent_callable is add_sub
    assert [argument.name for argument in op._schema.arguments] == ["x", "y", "z"]
    x, y, z = torch.randn(3, 4)
    torch.testing.assert_close(op(x, y, z), x + y - z)
    assert list(ops.backend._libraries).count(library.ns) == 1


def test_a_pattern_for_an_operator_that_is_there(library: Library) -> None:
    library.define("twice(Tensor x) -> Tensor")
    library.define("twice.named(Tensor x, *, int n) -> Tensor")
    library.impl("twice.named", lambda x, n: x * 0, "CompositeExplicitAutograd")

    @bind_pattern_to_op(library, "twice")
    def pattern(x: torch.Tensor) -> torch.Tensor:
        return x + x

    @bind_pattern_to_op(library, "twice.named")
    def other(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    torch.testing.assert_close(backend_op(library, "twice")(torch.ones(2)), torch.full((2,), 2.0))
    named = backend_op(library, "twice", "named")
    assert named._equivalent_callable is other
    torch.testing.assert_close(named(torch.ones(2), n=3), torch.zeros(2))  # a kernel that is there stays


def test_a_pattern_for_an_operator_that_is_not_there(library: Library) -> None:
    with pytest.raises(AttributeError):
        bind_pattern_to_op(library, "missing")(add_sub)


def test_an_operator_that_cannot_be_traced_is_refused(library: Library) -> None:
    bound(library, add_sub, "add_sub(Tensor x, Tensor y, Tensor z) -> Tensor")
    library.define("opaque(Tensor x) -> Tensor")
    library.impl("opaque", lambda x: x + 1, "CPU")
    with pytest.raises(AssertionError) as caught:
        backend_op(library, "opaque")
    assert isinstance(caught.value, KernelError)
    assert str(caught.value) == (
        f"the backend operator {library.ns}.opaque.default has no kernel for tracing\n"
        "  found: none of Meta, CompositeExplicitAutograd, CompositeImplicitAutograd\n"
        "  to do: register a fake kernel with `torch.library.register_fake`, or bind its pattern with "
        "`bind_pattern_to_op`"
    )
    torch.library.register_fake(f"{library.ns}::opaque", torch.empty_like, lib=library)
    assert backend_op(library, "opaque")._equivalent_callable is None


def test_the_libraries_that_are_always_there() -> None:
    assert {"executorch_prim", "quantized_decomposed", "DO_NOT_USE_TEST_ONLY"} <= set(ops.backend._libraries)


def test_quantized_operators_are_there_without_another_import(modules_after: Callable[[str], set[str]]) -> None:
    code = (
        "from hatch_lower.exir.dialects._ops import ops; ops.edge.quantized_decomposed.dequantize_per_channel.default"
    )
    assert "torch.ao.quantization.fx._decomposed" in modules_after(code)


class Sums(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.ones(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = (x + y) - self.offset
        b = (a + a) - a
        c = torch.cond(b.sum() > 0, lambda t: (t + t) - t, lambda t: torch.relu(t * 4), (b,))
        return c, torch.relu(y * 3)


def edge(module: torch.nn.Module, *args: Any, strict: bool = False) -> ExportedProgram:
    return to_edge(torch.export.export(module, args, strict=strict))


def calls_of(program: ExportedProgram, op: Any) -> int:
    return sum(node.target is op for each in graph_modules(program.graph_module) for node in each.graph.nodes)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3), torch.randn(3)


def test_a_pattern_is_replaced_in_the_program_and_its_branches(library: Library) -> None:
    op = bound(library, add_sub, "add_sub(Tensor x, Tensor y, Tensor z) -> Tensor")
    program = edge(Sums(), *inputs())
    before = str(program.graph_module.code)
    handles = {node.name: node.meta["debug_handle"] for node in program.graph.nodes if node.op == "call_function"}
    replaced = transform_program(program, [ReplacePattern(op)])
    assert program.graph_module.code == before, "the given program is left alone"
    assert calls_of(replaced, op) == 3
    assert [node.name for node in replaced.graph.nodes if node.target is op] == [
        f"{library.ns}_add_sub_default",
        f"{library.ns}_add_sub_default_1",
    ]
    assert [node.meta["debug_handle"] for node in replaced.graph.nodes if node.target is op] == [
        handles["aten_sub_tensor"],
        handles["aten_sub_tensor_1"],
    ]
    torch.testing.assert_close(replaced.module()(*inputs()), Sums()(*inputs()))
    assert op._op in {node.target for node in to_aten(replaced).graph.nodes}


def test_numbers_are_arguments_of_a_pattern(library: Library) -> None:
    def scaled(x: Any, factor: Any) -> Any:
        return ops.edge.aten.relu.default(ops.edge.aten.mul.Tensor(x, factor))

    op = bound(library, scaled, "scaled(Tensor x, Scalar factor) -> Tensor")
    replaced = transform_program(edge(Sums(), *inputs()), [ReplacePattern(op)])
    found = [
        node.args[1] for each in graph_modules(replaced.graph_module) for node in each.graph.nodes if node.target is op
    ]
    assert sorted(found) == [3, 4]
    torch.testing.assert_close(replaced.module()(*inputs()), Sums()(*inputs()))


class Pairs(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = torch.sin(x)
        used = s + 1
        return used, torch.cos(s) * y


def test_a_pattern_with_two_results(library: Library) -> None:
    def pair(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = torch.sin(x)
        return s, torch.cos(s) * y

    op = bound(library, pair, "pair(Tensor x, Tensor y) -> (Tensor, Tensor)")
    with pytest.raises(EdgeError, match="calls a function that no edge program calls"):
        ReplacePattern(op)
    replaced = transform_program(edge(Pairs(), *inputs()), [ReplacePattern(op, example_inputs=inputs())])
    assert calls_of(replaced, op) == 1
    call = next(node for node in replaced.graph.nodes if node.target is op)
    assert [value.shape for value in call.meta["val"]] == [torch.Size([3])] * 2
    assert all("debug_handle" in node.meta for node in replaced.graph.nodes if node.op == "call_function")
    torch.testing.assert_close(replaced.module()(*inputs()), Pairs()(*inputs()))


def test_an_occurrence_whose_inner_value_is_used_stays(library: Library) -> None:
    op = bound(library, add_sub, "add_sub(Tensor x, Tensor y, Tensor z) -> Tensor")

    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a = x + y
            return a, a - x

    replaced = transform_program(edge(Inner(), *inputs()), [ReplacePattern(op)])
    assert calls_of(replaced, op) == 0


def test_patterns_that_cannot_be_looked_for(library: Library) -> None:
    op = bound(library, add_sub, "add_sub(Tensor x, Tensor y, Tensor z) -> Tensor")
    op._equivalent_callable = None
    with pytest.raises(EdgeError, match=f"^there is no pattern that the operator {op} could replace\n"):
        ReplacePattern(op)
    with pytest.raises(EdgeError) as caught:
        trace_pattern(lambda x, unused: aten.abs.default(x))
    assert str(caught.value) == (
        "a pattern must use all of its arguments, and no other tensors\n"
        "  where: pattern `<lambda>`\n"
        "  found: unused: unused\n"
        "  to do: make every tensor that the pattern uses an argument, and remove unused arguments"
    )
    constant = torch.ones(3)
    with pytest.raises(EdgeError, match="found: a tensor that is no argument"):
        trace_pattern(lambda x: x + constant, [torch.randn(3)])


class Around(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.inner(x * 2, y)


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_with_backend_operators_is_captured_again(library: Library, strict: bool) -> None:
    op = bound(library, add_sub, "add_sub(Tensor x, Tensor y, Tensor z) -> Tensor")
    replaced = transform_program(edge(Sums(), *inputs()), [ReplacePattern(op)])
    module = Around(replaced.module())
    captured = torch.export.export(module, inputs(), strict=strict)
    assert calls_of(captured, op._op) == 3
    torch.testing.assert_close(captured.module()(*inputs()), module(*inputs()))
    again = to_edge(captured, keep=[op._op])
    assert calls_of(again, edge_overload(op._op)) == 3
    torch.testing.assert_close(again.module()(*inputs()), module(*inputs()))


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_with_lowered_modules_and_backend_operators_is_captured_again(library: Library, strict: bool) -> None:
    op = bound(library, add_sub, "add_sub(Tensor x, Tensor y, Tensor z) -> Tensor")
    replaced = transform_program(edge(Sums(), *inputs()), [ReplacePattern(op)])
    lowered = to_backend(
        replaced, TagBy(lambda node: "t" if node.target is op and node.args[0] is node.args[1] else None)
    )
    delegate = torch.ops.higher_order.executorch_call_delegate
    assert (calls_of(lowered, delegate), calls_of(lowered, op)) in {(1, 2), (2, 1)}
    module = Around(lowered.module())
    captured = torch.export.export(module, inputs(), strict=strict)
    assert calls_of(captured, delegate) == calls_of(lowered, delegate)
    assert calls_of(captured, op._op) == calls_of(lowered, op)
    torch.testing.assert_close(captured.module()(*inputs()), module(*inputs()))
    torch.testing.assert_close(captured.module()(*inputs()), Around(Sums())(*inputs()))


@pytest.mark.parametrize("strict", [False, True])
def test_a_whole_lowered_program_is_a_part_of_another(strict: bool) -> None:
    lowered = to_backend(edge(Pairs(), *inputs()), TagBy(everything))
    module = Around(lowered.module())
    program = to_edge(torch.export.export(module, inputs(), strict=strict))
    torch.testing.assert_close(program.module()(*inputs()), Around(Pairs())(*inputs()))
    twice = to_backend(program, TagBy(lambda node: "t" if isinstance(node.target, EdgeOpOverload) else None))
    torch.testing.assert_close(twice.module()(*inputs()), Around(Pairs())(*inputs()))
