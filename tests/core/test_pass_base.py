from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._export.verifier import Verifier
from torch._higher_order_ops import scan, while_loop
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.dialects._ops import ops
from hatch_lower.exir.lowering.convert import to_aten, to_edge
from hatch_lower.exir.pass_base import (
    ExportedProgramPassBase,
    ExportedProgramPassResult,
    ExportPass,
    NodeMetadata,
    map_args,
    transform_program,
)
from hatch_lower.exir.pass_manager import PassManager
from hatch_lower.exir.passes import dead_code_elimination_pass
from hatch_lower.exir.passes.debug_handle_generator_pass import DebugHandleGeneratorPass
from hatch_lower.exir.program._program import _transform, lift_constant_tensor_pass

pytestmark = pytest.mark.torch

X = torch.randn(3, 4)


class SubForAdd(ExportPass):
    """Subtracts where the program adds."""

    def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata) -> Any:
        if op is ops.edge.aten.add.Tensor:
            op = ops.edge.aten.sub.Tensor
        return super().call_operator(op, args, kwargs, meta)


def edge(function: Any, *args: torch.Tensor) -> ExportedProgram:
    class Model(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    return to_edge(torch.export.export(Model(), args, strict=False))


def calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def targets(program: ExportedProgram) -> list[str]:
    return [str(node.target) for node in calls(program.graph)]


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2 + 3, (x,))


def loops(x: torch.Tensor) -> torch.Tensor:
    _, y = while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t + t), (torch.tensor(0), x))
    return y


def scans(x: torch.Tensor) -> torch.Tensor:
    _, y = scan(lambda carry, t: (carry + t, carry * 1.0), x[0], x)
    return y


def subtracting(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x - 1, lambda x: x * 2 - 3, (x,))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x + 1, lambda x: x - 1),
        (lambda x: x.split(1)[1] + x, lambda x: x.split(1)[1] - x),
        (branches, subtracting),
        (scans, lambda x: torch.stack([x[0] - x[:count].sum(0) for count in range(3)])),
    ],
)
def test_an_export_pass_replaces_operators_also_in_control_flow(function: Any, expected: Any) -> None:
    program = edge(function, X)
    changed = transform_program(program, [SubForAdd()])
    torch.testing.assert_close(changed.module()(X), expected(X))
    torch.testing.assert_close(program.module()(X), function(X))  # the given program is left alone
    assert all(node.meta["debug_handle"] for node in changed.graph.nodes if node.op == "call_function")


def test_an_export_pass_goes_through_while_loops() -> None:
    class Nothing(ExportPass):
        pass

    program = edge(loops, X)
    changed = transform_program(program, [Nothing()])
    assert targets(changed) == targets(program)
    torch.testing.assert_close(changed.module()(X), loops(X))


def test_an_export_pass_keeps_calls_of_lowered_modules() -> None:
    lowered = to_backend("reference", edge(lambda x: x * 2, X), [])
    changed = transform_program(edge(lambda x: lowered(x) + x, X), [SubForAdd()])
    torch.testing.assert_close(changed.module()(X), X * 2 - X)
    assert "executorch_call_delegate" in targets(changed)


def test_map_args_gives_each_argument_with_its_schema() -> None:
    seen: list[str] = []

    def double(value: Any, argument: Any) -> Any:
        seen.append(argument.name)
        return value * 2

    assert map_args(torch.ops.aten.add.Tensor, double, (1, 2), {"alpha": 3}) == ((2, 4), {"alpha": 6})
    assert seen == ["self", "other", "alpha"]


class Renamed(ExportedProgramPassBase):
    """Changes the program whole."""

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        for node in calls(exported_program.graph):
            node.target = ops.edge.aten.mul.Tensor
        return ExportedProgramPassResult(exported_program, True)

    def requires(self, exported_program: ExportedProgram) -> None:
        assert targets(exported_program) == ["aten.sub.Tensor"]

    def ensures(self, exported_program: ExportedProgram) -> None:
        assert targets(exported_program) == ["aten.mul.Tensor"]


def test_passes_over_graphs_and_over_programs_run_in_their_order() -> None:
    program = edge(lambda x, y: x + y, X, X)
    changed = transform_program(program, [SubForAdd(), Renamed(), SubForAdd()])
    assert targets(changed) == ["aten.mul.Tensor"]
    assert targets(program) == ["aten.add.Tensor"]


def test_the_result_of_passes_can_be_another_dialect() -> None:
    program = edge(lambda x: x + 1, X)

    def bare(module: GraphModule) -> None:
        for node in calls(module.graph):
            node.target = node.target._op

    with pytest.raises(EdgeError, match="breaks a rule of the edge dialect"):
        _transform(program, bare)
    changed = _transform(program, bare, override_verifiers=[Verifier])
    assert changed.dialect == to_aten(program).dialect


def test_a_pass_manager_runs_lists_of_passes_and_refuses_methods() -> None:
    program = edge(lambda x: x + 1, X)
    changed = transform_program(program, [PassManager([SubForAdd(), [dead_code_elimination_pass]])])
    assert targets(changed) == ["aten.sub.Tensor"]

    module = edge(lambda x: x + 1, X).graph_module
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        output.replace_input_with(output.all_input_nodes[0], module.graph.call_method("relu", (X,)))
    with pytest.raises(EdgeError, match="no methods"):
        PassManager().check(module)


def test_dead_code_goes_also_from_control_flow() -> None:
    program = edge(branches, X)
    for module in program.graph_module.modules():
        assert isinstance(module, GraphModule)
        first = next(node for node in module.graph.nodes if node.op == "call_function")
        with module.graph.inserting_after(first):
            module.graph.node_copy(first)
    assert dead_code_elimination_pass(program.graph_module).modified
    assert not dead_code_elimination_pass(program.graph_module).modified


def test_debug_handles_are_numbered_anew() -> None:
    program = edge(lambda x: torch.nn.functional.gelu(x + 1), X)
    before = [node.meta.pop("debug_handle") for node in calls(program.graph)]
    DebugHandleGeneratorPass()(program.graph_module)
    assert [node.meta["debug_handle"] for node in calls(program.graph)] == before


def test_tensors_that_a_graph_holds_become_inputs() -> None:
    program = edge(lambda x: x + 1, X)
    module = program.graph_module
    module.register_buffer("table", torch.ones(4))
    first = calls(module.graph)[0]
    with module.graph.inserting_before(first):
        table = module.graph.get_attr("table")
    table.meta["val"] = module.table
    first.args = (first.args[0], table)
    lifted = lift_constant_tensor_pass(program)
    assert lifted is program
    assert not module.graph.find_nodes(op="get_attr")
    (name,) = program.graph_signature.lifted_tensor_constants
    torch.testing.assert_close(program.constants[name], torch.ones(4))
    torch.testing.assert_close(program.module()(X), X + 1)
