from __future__ import annotations

from typing import Any

import pytest
import torch
from support.backends import TagBy, recorded
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import ExportedProgram
from torch.fx import GraphModule

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.backend_api import lower_methods, to_backend
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.delegate import executorch_call_delegate
from hatch_lower.exir.dialects._ops import EdgeOpOverload
from hatch_lower.exir.graph.surgery import graph_modules
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.convert import to_edge

pytestmark = pytest.mark.torch


class TagEverywhere(Partitioner):
    """Tags every multiplication, addition and sine, in nested graphs too, with one tag."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        for module in graph_modules(exported_program.graph_module):
            for node in module.graph.nodes:
                if isinstance(node.target, EdgeOpOverload) and str(node.target).split(".")[1] in ("mul", "add", "sin"):
                    node.meta["delegation_tag"] = "arithmetic"
        return PartitionResult(exported_program, {"arithmetic": DelegationSpec("RecordingBackend", [])})


class Cond(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: torch.sin(t) * 2, lambda t: t + 1, (x,))


class NestedCond(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(t: torch.Tensor) -> torch.Tensor:
            return torch.cond(t.sum() > 10, lambda u: u * 3, lambda u: u + 5, (t,)) * 2

        return torch.cond(x.sum() > 0, inner, lambda t: t + 1, (x,))


class While(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, torch.sin(t) * 2), (count, x))[1]


class Map(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_map(lambda row: torch.sin(row) * 2, x)


class Scan(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x)[1]


def edge(module: torch.nn.Module, *args: Any) -> ExportedProgram:
    return to_edge(torch.export.export(module, args, strict=False))


def lowered_in(module: GraphModule) -> list[LoweredBackendModule]:
    children = [each.children() for each in graph_modules(module)]
    return [child for each in children for child in each if isinstance(child, LoweredBackendModule)]


@pytest.mark.parametrize(
    ("module", "delegates"),
    [(Cond(), 2), (NestedCond(), 4), (While(), 1), (Map(), 1), (Scan(), 1)],
    ids=["cond", "nested cond", "while_loop", "map", "scan"],
)
def test_partitions_in_control_flow_are_lowered_where_they_are(module: torch.nn.Module, delegates: int) -> None:
    x = torch.randn(3, 4).abs()
    found = lower_methods({"forward": edge(module, x)}, {"forward": TagEverywhere()})["forward"]
    assert found.partitions == delegates
    assert len(lowered_in(found.program.graph_module)) == delegates
    for value in (x, -x):
        torch.testing.assert_close(found.program.module()(value), module(value))


def test_handles_of_delegates_are_their_own_in_every_graph() -> None:
    program = to_backend(edge(NestedCond(), torch.randn(3, 4)), TagEverywhere())
    handles = [
        node.meta["debug_handle"]
        for module in graph_modules(program.graph_module)
        for node in module.graph.find_nodes(op="call_function", target=executorch_call_delegate)
    ]
    assert len(handles) == len(set(handles)) == 4


def test_no_tag_is_left_behind() -> None:
    program = to_backend(edge(NestedCond(), torch.randn(3, 4)), TagEverywhere())
    for module in graph_modules(program.graph_module):
        assert all("delegation_tag" not in node.meta for node in module.graph.nodes)


def test_a_whole_conditional_may_go_into_a_partition() -> None:
    x = torch.randn(3, 4)
    program = to_backend(edge(Cond(), x), TagBy(lambda node: "all"))
    (module,) = lowered_in(program.graph_module)
    assert len(list(graph_modules(module.original_module.graph_module))) == 3
    for value in (x.abs(), -x.abs()):
        torch.testing.assert_close(program.module()(value), Cond()(value))


def test_all_nodes_that_a_backend_is_given_have_debug_handles_but_inputs_and_outputs() -> None:
    with recorded() as calls:
        to_backend(edge(Cond(), torch.randn(3, 4)), TagBy(lambda node: "all"))
    ((program, _),) = calls
    nodes = [node for module in graph_modules(program.graph_module) for node in module.graph.nodes]
    assert {node.op for node in nodes} >= {"get_attr", "call_function"}
    for node in nodes:
        assert ("debug_handle" in node.meta) == (node.op not in ("placeholder", "output"))


class TagBranchInput(Partitioner):
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        branch = exported_program.graph_module.true_graph_0
        next(iter(branch.graph.nodes)).meta["delegation_tag"] = "a"
        return PartitionResult(exported_program, {"a": DelegationSpec("RecordingBackend", [])})


def test_a_branchs_input_is_not_owned() -> None:
    with pytest.raises(PartitionError, match=r"the user input `\w+` is tagged `a`"):
        to_backend(edge(Cond(), torch.randn(3, 4)), TagBranchInput())
