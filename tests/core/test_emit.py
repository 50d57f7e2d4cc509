"""Lowered programs to plans, run by the executor and compared with the eager module."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from hatch_lower.errors import BackendError, EdgeError, InputError
from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult, Target
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.format.arguments import Symbol, TensorInput
from hatch_lower.format.debug_map import read_debug, write_debug
from hatch_lower.format.graph import Cond, Map, OpCall, PythonCall, Scan, While, nested_graphs
from hatch_lower.format.plan import Plan, read_plan, write_plan
from hatch_lower.format.tree import Container, Leaf
from hatch_lower.pipeline.emit.constants import SpanDigests
from hatch_lower.pipeline.emit.emit import EmittedProgram, MethodToEmit, emit_program
from hatch_lower.runtime.executor import Executor, execute_plan

pytestmark = pytest.mark.torch

BATCH = Dim("batch", max=16)
Pair = namedtuple("Pair", "left right")
sys.modules[__name__].Pair = Pair


@dataclass
class Scores:
    values: torch.Tensor
    indices: torch.Tensor | None = None


pytree.register_dataclass(Scores)


@torch.library.custom_op("hatch_lower_tests::add_to", mutates_args=("total",))
def add_to(total: torch.Tensor, amount: float) -> torch.Tensor:
    total.add_(amount)
    return total.sum() * 2


@add_to.register_fake
def _(total: torch.Tensor, amount: float) -> torch.Tensor:
    return total.new_empty(())


class Opaque:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


pytree.register_pytree_node(Opaque, lambda each: ([each.value], None), lambda values, _: Opaque(*values))


def module(forward: Callable[..., Any], **state: Any) -> torch.nn.Module:
    """Return a module with parameters, buffers (`b_…`) and other attributes, and `forward(self, …)`."""

    made: torch.nn.Module = type("Module", (torch.nn.Module,), {"forward": forward})()
    for name, value in state.items():
        if name.startswith("b_"):
            made.register_buffer(name, value, persistent=not name.endswith("_temporary"))
        else:
            setattr(made, name, value)
    return made.eval()


def export(made: torch.nn.Module, args: tuple[Any, ...], dynamic: Any = None, **kwargs: Any) -> ExportedProgram:
    with torch.no_grad():
        return torch.export.export(made, args, kwargs, dynamic_shapes=dynamic, strict=False)


def method(program: ExportedProgram, name: str = "forward", **fields: Any) -> MethodToEmit:
    count = program.call_spec.in_spec.child(0).num_children
    return MethodToEmit(name, program, tuple(f"a{index}" for index in range(count)), **fields)


def emit(*programs: MethodToEmit) -> EmittedProgram:
    """Emit, and see that what was written is what is read."""
    emitted = emit_program("model", {each.name: each for each in programs}, roots=[Path(__file__).parent])
    assert read_plan(write_plan(emitted.plan), "plan") == emitted.plan
    assert read_debug(write_debug(emitted.debug), "debug") == emitted.debug
    return emitted


def execute(emitted: EmittedProgram) -> Executor:
    spans = [emitted.storages[storage.key].view(getattr(torch, storage.dtype)) for storage in emitted.plan.storages]
    return execute_plan(emitted.plan, spans, {}, Path())


def check(made: torch.nn.Module, *calls: tuple[Any, ...], dynamic: Any = None, **kwargs: Any) -> EmittedProgram:
    """Export for the first call, emit, and compare all calls with eager, in order, state and inputs included."""
    program = export(copy.deepcopy(made), copy.deepcopy(calls[0]), dynamic, **copy.deepcopy(kwargs))
    emitted = emit(method(program.run_decompositions()))
    edge = emit(method(to_edge(program)))
    for executor in (execute(emitted), execute(edge)):
        eager = copy.deepcopy(made)
        for call in calls:
            expected_args, given_args = copy.deepcopy(call), copy.deepcopy(call)
            with torch.no_grad():
                torch.manual_seed(0)
                expected = eager(*expected_args, **kwargs)
                torch.manual_seed(0)
                given = executor.methods["forward"](*given_args, **kwargs)
            same(given, expected)
            same(given_args, expected_args)
    return emitted


def same(given: Any, expected: Any) -> None:
    given_leaves, given_spec = pytree.tree_flatten(given)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert given_spec == expected_spec
    for left, right in zip(given_leaves, expected_leaves, strict=True):
        assert isinstance(left, torch.Tensor) == isinstance(right, torch.Tensor)
        if isinstance(right, torch.Tensor):
            torch.testing.assert_close(left, right.detach())
        else:
            assert type(left) is type(right)
            assert left == right


class Network(torch.nn.Module):
    """Torch records source lines of functions called `forward` only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        return hidden.relu()


def linear(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(self.layer(x)) * self.scale + self.b_shift


def test_parameters_buffers_and_plain_tensors() -> None:
    torch.manual_seed(0)
    made = module(
        linear,
        layer=torch.nn.Linear(4, 3),
        scale=torch.full((3,), 2.0),
        b_shift=torch.ones(3),
    )
    emitted = check(made, (torch.randn(2, 4),))
    assert set(emitted.plan.constants) == {"layer.weight", "layer.bias", "forward:scale", "b_shift"}
    assert not any(constant.mutable for constant in emitted.plan.constants.values())


def test_tied_transposed_and_temporary_constants() -> None:
    weight = torch.randn(4, 4)
    made = module(
        lambda self, x: x @ self.first + x @ self.second + x @ self.turned + self.b_mask_temporary,
        first=torch.nn.Parameter(weight),
        turned=torch.nn.Parameter(torch.randn(4, 4).t()),
        b_mask_temporary=torch.ones(4),
    )
    made.second = made.first
    constants = check(made, (torch.randn(2, 4),)).plan.constants
    assert constants["turned"].stride == (1, 4)
    assert constants["b_mask_temporary"].shape == (4,)


def test_unused_parameters_are_left_out() -> None:
    made = module(lambda self, x: x + self.used, used=torch.nn.Parameter(torch.ones(2)), unused=torch.nn.Linear(9, 9))
    emitted = check(made, (torch.ones(2),))
    assert list(emitted.plan.constants) == ["used"]
    assert len(emitted.storages) == 1


def test_literal_tensors_are_constants_of_the_method() -> None:
    emitted = check(module(lambda self, x: x * torch.tensor([1.0, 2.0])), (torch.ones(2),))
    assert list(emitted.plan.constants) == ["forward:lifted_tensor_0"]


def count(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = self.b_count.clone()
    self.b_count.add_(x.sum())
    return before + x, self.b_count


def test_a_buffer_keeps_its_state_over_calls() -> None:
    emitted = check(module(count, b_count=torch.zeros(())), *[(torch.ones(3) * index,) for index in range(4)])
    assert emitted.plan.constants["b_count"].mutable
    assert [name for name, _ in emitted.plan.methods["forward"].mutations] == ["b_count"]


def swap(self: Any, x: torch.Tensor) -> torch.Tensor:
    old = self.b_one.clone()
    self.b_one.copy_(self.b_two)
    self.b_two.copy_(old)
    return self.b_one - self.b_two + x


def test_buffers_that_change_places() -> None:
    check(module(swap, b_one=torch.ones(2), b_two=torch.zeros(2)), *[(torch.ones(2),)] * 3)


def write_row(self: Any, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    self.b_cache[:, position] = x
    return self.b_cache.sum(0)


def test_a_cache_that_is_written_by_index() -> None:
    made = module(write_row, b_cache=torch.zeros(2, 5))
    check(made, *[(torch.randn(2, 1), torch.tensor([index])) for index in range(5)])


def change_input(self: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.mul_(2)
    return y, x + y


def test_inputs_that_are_changed_and_inputs_that_are_returned() -> None:
    check(module(change_input), (torch.ones(3), torch.ones(3)), (torch.zeros(3), torch.ones(3)))


def odd_outputs(self: Any, x: torch.Tensor) -> Any:
    return x, None, 3, 2.5, "text", True, self.weight, [x.view(-1), {"one": x, "shape": x.shape[1]}], ()


def test_literals_none_inputs_and_constants_as_outputs() -> None:
    check(module(odd_outputs, weight=torch.nn.Parameter(torch.ones(2))), (torch.ones(2, 3),))


def test_nested_inputs_and_keyword_arguments() -> None:
    made = module(lambda self, x, rest, *, scale, flag: rest["b"][0] * scale + x if flag else rest["a"])
    rest = {"b": [torch.ones(2), torch.zeros(3)], "a": torch.zeros(2)}
    method_plan = check(made, (torch.ones(2), rest), scale=torch.tensor(3.0), flag=True).plan.methods["forward"]
    assert [(each.name, each.kind) for each in method_plan.parameters] == [
        ("a0", "positional"),
        ("a1", "positional"),
        ("scale", "keyword"),
        ("flag", "keyword"),
    ]


def test_a_matrix_that_eager_refuses_is_refused() -> None:
    """torch takes such operators apart, and orders the check of their results, which gives nothing, by a token."""
    made = module(lambda self, x: (torch.linalg.inv(x), torch.linalg.cholesky(x), torch.linalg.solve(x, x[0])))
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    run = execute(emit(method(to_edge(export(made, (matrix,)))))).methods["forward"]
    same(run(matrix), made(matrix))
    for refused, error in ((torch.zeros(2, 2), "singular"), (-matrix, "not positive-definite")):
        with pytest.raises(torch.linalg.LinAlgError, match=error):
            made(refused)
        with pytest.raises(torch.linalg.LinAlgError, match=error):
            run(refused)


def test_named_tuples_dataclasses_and_ordered_dictionaries() -> None:
    def forward(self: Any, pair: Pair) -> Any:
        total = pair.left + pair.right
        return Pair(total, total * 2), Scores(total), Scores(total, total > 1), OrderedDict(z=total, a=total)

    made = module(forward)
    given = Pair(torch.ones(2), torch.ones(2))
    emitted = emit(method(export(made, (given,)).run_decompositions()))
    here, both = f"{__name__}:", (Leaf(), Leaf())
    assert emitted.plan.methods["forward"].outputs == Container(
        "tuple",
        (
            Container("namedtuple", both, ("left", "right"), f"{here}Pair"),
            Container("object", (Leaf(), None), ("values", "indices"), f"{here}Scores"),
            Container("object", both, ("values", "indices"), f"{here}Scores"),
            Container("object", both, ("z", "a"), "collections:OrderedDict"),
        ),
    )
    pair, one, two, ordered = execute(emitted).methods["forward"](given)
    assert (pair.right.tolist(), one.values.tolist(), one.indices) == ([4, 4], [2, 2], None)
    assert (two["indices"].tolist(), list(ordered)) == ([True, True], ["z", "a"])


def test_model_outputs_of_transformers() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    made = module(lambda self, x: outputs.BaseModelOutput(last_hidden_state=x * 2))
    check(made, (torch.ones(2),))


def test_results_of_torch_with_several_values() -> None:
    made = module(lambda self, x: (*torch.max(x, dim=1), *torch.split(x, 1), torch.topk(x, 2).values))
    check(made, (torch.randn(3, 4),))


def test_dynamic_sizes() -> None:
    made = module(lambda self, x: (x.reshape(-1), x + x.shape[0], x.shape[0] * 2 + 1, torch.zeros(x.shape[0] + 2)))
    emitted = check(made, (torch.ones(4, 3),), (torch.ones(7, 3),), (torch.ones(2, 3),), dynamic={"x": {0: BATCH}})
    plan = emitted.plan.methods["forward"]
    assert plan.symbols == {"s0": Symbol(0, 16, "s0")}
    assert plan.inputs == (TensorInput("float32", ("s0", 3), (3, 1)),)


def test_a_dimension_has_the_name_of_its_dim() -> None:
    program = export(module(lambda self, x: x + 1), (torch.ones(4, 3),), {"x": {0: BATCH}})
    (symbol,) = {str(size) for size in program.graph_signature and program.range_constraints}
    emitted = emit(method(program.run_decompositions(), dimensions={symbol: "batch"}))
    assert emitted.plan.methods["forward"].symbols == {"s0": Symbol(0, 16, "batch")}


def test_derived_dimensions() -> None:
    half = Dim("half", max=8)
    made = module(lambda self, x, y: (x.view(x.shape[0] // 2, 2, -1).sum(1) + y, (x.shape[0] + 7) // 3, x.shape[0] / 3))
    emitted = check(
        made,
        (torch.ones(6, 2), torch.ones(3, 2)),
        (torch.ones(2, 2), torch.ones(1, 2)),
        (torch.ones(16, 2), torch.ones(8, 2)),
        dynamic={"x": {0: 2 * half}, "y": {0: half}},
    )
    shapes = [each.shape for each in emitted.plan.methods["forward"].inputs if isinstance(each, TensorInput)]
    assert shapes[1] == ("s0", 2)


def data_dependent(self: Any, x: torch.Tensor, n: torch.Tensor) -> Any:
    size = n.item()
    torch._check(size >= 0)
    torch._check(size <= x.shape[0])
    return x.narrow(0, 0, size), torch.nonzero(x), torch.zeros(size) + 1, size * 2


def test_sizes_that_depend_on_data() -> None:
    made = module(data_dependent)
    calls = [(torch.tensor([1.0, 0.0, 2.0, 3.0]), torch.tensor(index)) for index in (2, 3, 4)]
    emitted = check(made, *calls, dynamic={"x": {0: BATCH}, "n": None})
    with pytest.raises(RuntimeError, match="Runtime assertion failed for expression u0 <= "):
        execute(emitted).methods["forward"](torch.ones(4), torch.tensor(5))


def test_assertions_that_always_hold_are_dropped() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] <= 20)
        return x + 1

    emitted = check(module(forward), (torch.ones(4),), dynamic={"x": {0: BATCH}})
    (call,) = emitted.plan.methods["forward"].graph.instructions
    assert isinstance(call, OpCall)
    assert call.op == "aten.add.Tensor"


def branch(self: Any, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 10, lambda x: x * self.scale, lambda x: x - torch.ones(3), (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.cos(), (x,)) + 1


def test_nested_branches() -> None:
    made = module(branch, scale=torch.nn.Parameter(torch.full((3,), 3.0)))
    emitted = check(made, (torch.ones(2, 3),), (torch.ones(2, 3) * -1,), (torch.ones(2, 3) * 9,))
    graph = emitted.plan.methods["forward"].graph
    (outer,) = [each for each in graph.instructions if isinstance(each, Cond)]
    assert any(isinstance(each, Cond) for each in outer.true.instructions)


def test_a_branch_on_a_size() -> None:
    made = module(lambda self, x: torch.cond(x.shape[0] > 4, lambda x: x * 2, lambda x: x + 5, (x,)))
    check(made, (torch.ones(3, 2),), (torch.ones(7, 2),), dynamic={"x": {0: BATCH}})


def loop(self: Any, x: torch.Tensor) -> Any:
    def step(index: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return index + 1, value * 2 + self.scale

    return while_loop(lambda index, value: index.sum() < 4, step, (torch.zeros((), dtype=torch.int64), x.sin()))


def test_loops() -> None:
    check(module(loop, scale=torch.nn.Parameter(torch.ones(3))), (torch.ones(2, 3),), (torch.zeros(2, 3),))


def map_trees(self: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    def row(row: dict[str, torch.Tensor], y: torch.Tensor) -> Any:
        return {"a": row["x"] * y + self.scale, "b": (row["twice"].sum(),)}

    return torch_map(row, {"x": x, "twice": x * 2}, y)


def test_map_over_trees_with_values_for_all_rows() -> None:
    made = module(map_trees, scale=torch.nn.Parameter(torch.full((3,), 3.0)))
    emitted = check(made, (torch.randn(2, 3), torch.ones(3)), (torch.randn(2, 3), torch.zeros(3)))
    (call,) = [each for each in emitted.plan.methods["forward"].graph.instructions if isinstance(each, Map)]
    assert (len(call.args), len(call.extra), len(call.body.outputs)) == (2, 2, 2)


def test_map_over_a_number_of_rows_that_varies() -> None:
    made = module(lambda self, x: torch_map(lambda row: row * row.shape[0] + row.sum(), x))
    dynamic = {"x": {0: BATCH, 1: Dim("width", max=9)}}
    emitted = check(made, (torch.randn(2, 3),), (torch.randn(1, 7),), (torch.randn(16, 2),), dynamic=dynamic)
    with pytest.raises(InputError) as caught:
        execute(emitted).methods["forward"](torch.zeros(0, 3))
    assert str(caught.value) == (
        "the method loops over the rows of tensors, which need at least one row and equal numbers of rows\n"
        "  where: method `forward`\n"
        "  found: tensor of shape [0, 3]\n"
        "  to do: pass larger tensors; the eager module refuses these tensors, too"
    )
    with pytest.raises(RuntimeError, match="cannot be 0"):
        made(torch.zeros(0, 3))


def test_rows_are_laid_out_as_the_body_was_traced() -> None:
    """Torch traces the body for contiguous rows: where they are not, its views would fail."""
    made = module(lambda self, x: torch_map(lambda row: row.reshape(-1) * 2, x.transpose(1, 2)))
    check(made, (torch.randn(3, 4, 5),))


def scan_trees(self: Any, x: torch.Tensor) -> Any:
    def step(carry: dict[str, torch.Tensor], row: dict[str, torch.Tensor]) -> Any:
        return {"sum": carry["sum"] + row["x"] * self.scale}, (row["x"] * carry["sum"], carry["sum"].clone())

    return scan(step, {"sum": torch.zeros(3)}, {"x": x})


def test_scan_over_trees() -> None:
    made = module(scan_trees, scale=torch.nn.Parameter(torch.full((3,), 3.0)))
    emitted = check(made, (torch.randn(4, 3),), (torch.randn(4, 3),))
    (call,) = [each for each in emitted.plan.methods["forward"].graph.instructions if isinstance(each, Scan)]
    assert (len(call.args), len(call.rows), len(call.extra), len(call.body.outputs)) == (1, 1, 1, 3)


def scan_backwards(self: Any, x: torch.Tensor) -> Any:
    return scan(lambda carry, row: (carry * 2 + row, carry * row), torch.ones(3), x, dim=1, reverse=True)


def test_scan_over_another_dimension_backwards() -> None:
    check(module(scan_backwards), (torch.randn(3, 4),), (torch.randn(3, 4),))


def test_scan_without_outputs_and_with_a_size() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        return scan(lambda carry, row: (carry + row * x.shape[0], ()), torch.ones(3), x)[0]

    check(module(forward), (torch.randn(2, 3),), (torch.randn(5, 3),), dynamic={"x": {0: BATCH}})


def cond_in_scan(self: Any, x: torch.Tensor) -> Any:
    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        chosen = torch.cond(row.sum() > 0, lambda c, r: c + r * self.scale, lambda c, r: c - r, (carry, row))
        return chosen, carry * row

    return scan(step, torch.zeros(3), x)


def map_in_while(self: Any, x: torch.Tensor) -> Any:
    def step(index: torch.Tensor, value: torch.Tensor) -> Any:
        return index + 1, torch_map(lambda row: torch.sin(row) * self.scale, value)

    return while_loop(lambda index, value: index < 3, step, (torch.zeros((), dtype=torch.int64), x))


def counted_down(self: Any, x: torch.Tensor) -> Any:
    return while_loop(lambda value, steps: value.sum() > 0, lambda *now: (now[0] - 1, now[1] + 1), (x, torch.zeros(3)))


def test_a_loop_without_a_step_returns_copies() -> None:
    forward, x = module(counted_down), torch.zeros(3)
    check(forward, (torch.ones(3),), (x,))
    made = execute(emit(method(to_edge(export(forward, (torch.ones(3),))))))
    value, _ = made.methods["forward"](x)
    value.add_(1)
    assert x.sum() == 0


def scan_in_cond_in_map(self: Any, x: torch.Tensor) -> Any:
    def row(row: torch.Tensor) -> torch.Tensor:
        def yes(row: torch.Tensor) -> torch.Tensor:
            return scan(lambda carry, each: (carry + each, carry * 2), torch.zeros(()), row)[1]

        return torch.cond(row.sum() > 0, yes, lambda row: row - self.scale, (row,))

    return torch_map(row, x)


NESTED = {
    "cond in scan": (cond_in_scan, [Scan, Cond]),
    "map in while_loop": (map_in_while, [While, Map]),
    "scan in cond in map": (scan_in_cond_in_map, [Map, Cond, Scan]),
}


@pytest.mark.parametrize("name", NESTED)
def test_control_flow_nests(name: str) -> None:
    forward, kinds = NESTED[name]
    x = torch.randn(4, 3)
    emitted = check(module(forward, scale=torch.nn.Parameter(torch.full((3,), 3.0))), (x,), (-x,), (x.abs(),))
    graphs = [emitted.plan.methods["forward"].graph]
    for kind in kinds:
        (found,) = [each for graph in graphs for each in graph.instructions if isinstance(each, kind)]
        graphs = list(nested_graphs(found))


def test_the_debug_map_reaches_into_rows() -> None:
    program = to_edge(export(module(scan_in_cond_in_map, scale=torch.ones(3)), (torch.ones(4, 3),)))
    debug = emit(method(program)).debug.methods["forward"]
    origins = {path: origin.op for path in debug.instructions for origin in debug.origins(path)}
    assert (origins["0"], origins["0.body.2"], origins["0.body.2.true.1.body.0"]) == (
        "map",
        "cond",
        "aten.add.Tensor",
    )
    assert {each.op for each in debug.undelegated} >= {"map", "cond", "scan"}


def test_dtypes_devices_and_infinities_as_arguments() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        mask = torch.full((2, 2), float("-inf"), dtype=torch.float64, device="cpu").triu(1)
        filled = x.masked_fill(x > 0, float("nan")).to(memory_format=torch.contiguous_format)
        return torch.nan_to_num(filled, nan=1e30) + torch.softmax(mask, -1).to(x.dtype), torch.empty_like(x).fill_(
            1j.imag
        )

    check(module(forward), (torch.randn(2, 2),))


def test_complex_numbers() -> None:
    check(module(lambda self, x: torch.view_as_real(x * (1 + 2j)) + 1), (torch.randn(3, dtype=torch.complex64),))


def test_random_numbers() -> None:
    check(module(lambda self, x: x + torch.rand(3)), (torch.ones(3),), (torch.ones(3),))


def in_place(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = x.clone()
    twice = add_to(total, 2.0)
    thrice = add_to(self.b_total, 1.0)
    return total, twice, thrice


def test_custom_operators_that_change_their_arguments() -> None:
    emitted = check(module(in_place, b_total=torch.zeros(2)), *[(torch.ones(3),)] * 3)
    names = [each.op for each in emitted.plan.methods["forward"].graph.instructions if isinstance(each, OpCall)]
    assert names.count("hatch_lower_tests.add_to.default") == 2


def test_a_custom_operator_that_changes_a_view_is_refused() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        add_to(total[1:], 2.0)
        return total

    with pytest.raises(EdgeError) as caught:
        emit(method(export(module(forward), (torch.ones(3),)).run_decompositions()))
    assert caught.value.what == "a custom operator changes a view or a list of tensors, which a plan cannot express"
    assert caught.value.found == "`hatch_lower_tests.add_to.default`"


def test_half_precision_and_integers() -> None:
    made = module(
        lambda self, x, index: (self.table[index] + x.to(torch.bfloat16), index // 2, x.bool()),
        table=torch.nn.Parameter(torch.randn(5, 3).bfloat16()),
    )
    check(made, (torch.randn(2, 3), torch.tensor([1, 4])))


def test_a_small_network() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    made = module(lambda self, image: torch.log_softmax(self.layers(image), -1), layers=layers)
    check(made, (torch.randn(2, 1, 8, 8),), (torch.randn(5, 1, 8, 8),), dynamic={"image": {0: BATCH}})


def test_attention_and_layer_norm() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    made = module(lambda self, x: self.layer(x), layer=layer)
    check(made, (torch.randn(2, 5, 8),), (torch.randn(3, 5, 8),), dynamic={"x": {0: BATCH}})


def test_methods_share_constants_and_state() -> None:
    made = module(count, b_count=torch.zeros(()))
    forward = export(made, (torch.ones(3),))
    reader = module(lambda self, x: self.b_count + x, b_count=torch.zeros(()))
    reader.b_count = made.b_count
    emitted = emit(
        method(forward.run_decompositions()),
        method(export(reader, (torch.ones(3),)).run_decompositions(), "peek"),
    )
    assert len(emitted.plan.storages) == 1
    methods = execute(emitted).methods
    methods["forward"](torch.ones(3))
    assert torch.equal(methods["peek"](torch.zeros(3)), torch.full((3,), 3.0))


def test_torch_names_of_symbols_and_nodes_do_not_matter() -> None:
    def plan_of(name: str) -> Plan:
        made = type("Module", (torch.nn.Module,), {})()
        code = f"def forward(self, {name}, other):\n    {name}_2 = {name} + other\n    return {name}_2.view(-1)"
        space: dict[str, Any] = {}
        exec(code, space)
        type(made).forward = space["forward"]
        dynamic = {name: {0: BATCH, 1: Dim("width", max=9)}, "other": {0: BATCH, 1: Dim("width", max=9)}}
        program = export(made, (torch.ones(3, 4), torch.ones(3, 4)), dynamic)
        return emit(method(program.run_decompositions())).plan

    assert plan_of("first") == plan_of("zebra")


def test_the_debug_map_names_modules_and_lines() -> None:
    program = to_edge(export(Network(), (torch.ones(1, 2),)))
    debug = emit(method(program)).debug.methods["forward"]
    origins = [origin for path in debug.instructions for origin in debug.origins(path)]
    linear = next(origin for origin in origins if origin.op == "aten.linear.default")
    relu = next(origin for origin in origins if origin.op == "aten.relu.default")
    assert linear.module == "layer"
    assert relu.module == ""
    assert relu.source.startswith("test_emit.py:")
    assert linear.source.startswith("test_emit.py:")
    assert {each.reason for each in debug.undelegated} == {"not taken by any backend"}


def test_reasons_are_in_the_debug_map() -> None:
    program = to_edge(export(module(lambda self, x: x.relu()), (torch.ones(2),)))
    debug = emit(method(program, reasons={"aten_relu_default": "it is not liked"})).debug.methods["forward"]
    assert [(each.name, each.op, each.reason) for each in debug.undelegated] == [
        ("aten_relu_default", "aten.relu.default", "it is not liked")
    ]


class Described(BackendDetails):
    """Weight-free; its blob is the same for all partitions with the same operations."""

    weight_free = True

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Any) -> PreprocessResult:
        names = [str(node.target) for node in edge_program.graph.nodes if node.op == "call_function"]
        return PreprocessResult(
            ",".join(names).encode(),
            {0: (1,)},
            suffix="txt",
            requirements=("library==1.*",),
            target=Target("Linux", "x86_64", "v3"),
            info={"operations": len(names)},
        )


def test_delegates_their_constants_and_blobs() -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    made = module(lambda self, x: self.layers[1](self.layers[0](x).sin()).sin(), layers=layers)
    program = to_edge(export(made, (torch.ones(2, 4),), {"x": {0: BATCH}}))
    number = iter(range(2))
    numbers: dict[str, str] = {}

    def by_layer(node: torch.fx.Node) -> str | None:
        if str(node.target).startswith("aten.sin"):
            return None
        path = next(reversed(list(node.meta["nn_module_stack"].values())))[0]
        if path not in numbers:
            numbers[path] = f"tag_{next(number)}"
        return numbers[path]

    lowered = to_backend(program, TagBy(by_layer, "Described"))
    emitted = emit(method(lowered))
    plan = emitted.plan
    (digest,) = emitted.blobs
    blob = emitted.blobs[digest]
    assert (blob.suffix, blob.requirements, blob.target) == ("txt", ("library==1.*",), Target("Linux", "x86_64", "v3"))
    assert emitted.requirements() == ("library==1.*",)
    assert [entry.file for entry in plan.delegates] == [f"model/delegates/sha256_{digest}.txt"] * 2
    assert [entry.constants for entry in plan.delegates] == [
        ("layers.0.weight", "layers.0.bias"),
        ("layers.1.weight", "layers.1.bias"),
    ]
    assert plan.delegates[0].info == {"operations": 2}
    debug = emitted.debug.methods["forward"]
    assert [each.backend for each in debug.delegates.values()] == ["Described", "Described"]
    path = next(iter(debug.delegates))
    assert [origin.module for origin in debug.origins(path)] == ["layers.0"]
    assert debug.origins(path, 0)[0].module == "layers.0"
    assert [each.name for each in debug.undelegated] == ["aten_sin_default", "aten_sin_default_1"]


def test_equal_delegates_with_equal_constants_are_one() -> None:
    layer = torch.nn.Linear(4, 4)
    made = module(lambda self, x: self.layer(self.layer(x).sin()).sin(), layer=layer)
    program = to_edge(export(made, (torch.ones(2, 4),)))
    seen: list[str] = []

    def by_call(node: torch.fx.Node) -> str | None:
        if str(node.target).startswith("aten.sin"):
            seen.append(node.name)
            return None
        return f"tag_{len(seen)}"

    emitted = emit(method(to_backend(program, TagBy(by_call, "Described"))))
    assert len(emitted.plan.delegates) == 1


def test_state_inside_a_weight_free_delegate_is_a_mutable_constant() -> None:
    program = to_edge(export(module(count, b_count=torch.zeros(())), (torch.ones(3),)))
    emitted = emit(method(to_backend(program, TagBy(everything, "Described"))))
    assert emitted.plan.constants["b_count"].mutable
    assert emitted.plan.methods["forward"].mutations == ()
    assert emitted.plan.delegates[0].constants == ("b_count",)


def test_sizes_that_a_delegate_returns_become_numbers() -> None:
    program = to_edge(export(module(lambda self, x: (x.sin(), x.shape[0] * 2)), (torch.ones(3),), {"x": {0: BATCH}}))
    emitted = emit(method(to_backend(program, TagBy(everything, "Described"))))
    calls = [each.op for each in emitted.plan.methods["forward"].graph.instructions if isinstance(each, PythonCall)]
    assert calls == ["getitem", "getitem", "item_int"]


class BadFacts(BackendDetails):
    """Returns facts that are no JSON."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Any) -> PreprocessResult:
        return PreprocessResult(b"", info={"scale": float("nan")})


def test_facts_that_cannot_be_packaged() -> None:
    program = to_edge(export(module(lambda self, x: x.sin()), (torch.ones(3),)))
    with pytest.raises(BackendError) as caught:
        emit(method(to_backend(program, TagBy(everything, "BadFacts"))))
    assert str(caught.value).replace(": nan", "") == (
        "a backend returned facts for its run half that are not JSON\n"
        "  where: backend `BadFacts`, `PreprocessResult.info`\n"
        "  found: Out of range float values are not JSON compliant\n"
        "  to do: use strings, finite numbers, booleans, None, lists and dictionaries with string keys"
    )


CONTAINERS = (
    "use tuples, lists, dictionaries with string or integer keys, named tuples, dataclasses (registered with "
    "torch.export.register_dataclass) or transformers' ModelOutput, defined at the top level of a module"
)


def test_an_unknown_container_is_refused() -> None:
    program = export(module(lambda self, x: Opaque(x + 1)), (torch.ones(3),)).run_decompositions()
    with pytest.raises(EdgeError) as caught:
        emit(method(program))
    assert str(caught.value) == (
        "a method takes or returns a container that a plan cannot describe\n  where: model.forward, result\n"
        f"  found: `{__name__}:Opaque`\n  to do: {CONTAINERS}"
    )


def test_a_dictionary_key_of_another_type_is_refused() -> None:
    program = export(module(lambda self, x: {(1, 2): x + 1}), (torch.ones(3),)).run_decompositions()
    with pytest.raises(EdgeError) as caught:
        emit(method(program))
    assert str(caught.value) == (
        "a dictionary has a key that is neither a string nor an integer\n  where: model.forward, result\n"
        "  found: (1, 2)\n  to do: use strings as keys"
    )


def test_names_that_do_not_fit_the_arguments_are_refused() -> None:
    program = export(module(lambda self, x: x + 1), (torch.ones(3),)).run_decompositions()
    with pytest.raises(EdgeError) as caught:
        emit(replace(method(program), parameters=("x", "y")))
    assert str(caught.value) == (
        "the names of a method's positional arguments do not fit its example arguments\n  where: model.forward\n"
        "  found: 2 names, 1 arguments"
    )


def test_an_unknown_operation_is_refused() -> None:
    program = export(Network(), (torch.ones(1, 2),)).run_decompositions()
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    node.target = torch.nn.functional.relu
    with pytest.raises(EdgeError) as caught:
        emit(method(program))
    text = str(caught.value)
    assert text.startswith(
        "a method uses an operation that a plan cannot express\n  where: model.forward, node `relu` (test_emit.py:"
    )
    assert text.endswith(
        "\n  found: `torch.nn.functional.relu`\n"
        "  to do: plans hold ATen and custom operators, arithmetic on sizes, and `cond`, `while_loop`, `map` and "
        "`scan` of torch"
    )


def test_a_literal_that_a_plan_cannot_hold_is_refused() -> None:
    program = export(module(lambda self, x: x + 1), (torch.ones(3),)).run_decompositions()
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    node.args = (node.args[0], torch.device("meta"))
    with pytest.raises(EdgeError, match="a literal in the graph cannot be packaged") as caught:
        emit(method(program))
    assert caught.value.found == "device meta"
    assert caught.value.hint == (
        "set the value in the module before the export, or pass a number, a string, a dtype, a layout, a memory format"
        " or the device `cpu`"
    )


def test_weights_are_hashed_once_for_several_recipes() -> None:
    made = module(lambda self, x: x + self.weight, weight=torch.nn.Parameter(torch.ones(3)))
    program = method(export(made, (torch.ones(3),)).run_decompositions())
    digests = SpanDigests()
    first = emit_program("model", {"forward": program}, digests=digests)
    second = emit_program("model", {"forward": program}, digests=digests)
    assert write_plan(first.plan) == write_plan(second.plan)
    assert list(first.storages) == list(second.storages)


def test_nothing_is_left_of_absolute_paths() -> None:
    made = module(linear, layer=torch.nn.Linear(4, 3), scale=torch.ones(3), b_shift=torch.ones(3))
    emitted = emit(method(to_edge(export(made, (torch.ones(2, 4),)))))
    for data in (write_plan(emitted.plan), write_debug(emitted.debug)):
        assert b'"/' not in data
        assert str(Path(__file__).parent).encode() not in data
