"""Graphs that a pass has broken, and programs whose tensors are gone: an error names the node, also under `-O`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph_module import get_control_flow_submodules
from hatch_lower.exir.lowered_backend_module import executorch_call_delegate, get_lowered_backend_modules
from hatch_lower.exir.pass_manager import PassManager
from hatch_lower.exir.program._program import EdgeProgramManager, to_edge
from hatch_lower.pipeline.save import save_program

pytestmark = pytest.mark.torch

Change = Callable[[Node], None]


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


def edge(module: torch.nn.Module) -> EdgeProgramManager:
    return to_edge(torch.export.export(module.eval(), (torch.ones(2, 3),)))


def found_on_saving(manager: EdgeProgramManager, folder: Path) -> EdgeError:
    with pytest.raises(EdgeError) as caught:
        save_program(manager.to_backend({}).to_executorch(), folder / "program")
    assert not list(folder.iterdir())
    return caught.value


def literal_branch(node: Node) -> None:
    node.args = (node.args[0], 7, *node.args[2:])


def branch_that_is_an_input(node: Node) -> None:
    node.args = (node.args[0], next(iter(node.graph.nodes)), *node.args[2:])


def operands_by_name(node: Node) -> None:
    node.kwargs = {"operands": node.args[3]}
    node.args = node.args[:3]


@pytest.mark.parametrize("change", [literal_branch, branch_that_is_an_input, operands_by_name])
def test_a_changed_cond_is_an_error_at_its_node(change: Change, tmp_path: Path) -> None:
    def change_cond(module: GraphModule) -> PassResult:
        (node,) = (node for node in module.graph.nodes if node.target is torch.ops.higher_order.cond)
        change(node)
        return PassResult(module, True)

    manager = edge(Branches()).transform([change_cond])
    assert "cond" in found_on_saving(manager, tmp_path).where


@pytest.mark.parametrize("value", [None, "x"])
def test_a_weight_that_is_gone_is_named(value: Any, tmp_path: Path) -> None:
    manager = edge(torch.nn.Linear(3, 3))
    manager.exported_program().state_dict["weight"] = value
    error = found_on_saving(manager, tmp_path)
    assert error.what == "the program has no tensor for its parameter `weight`"


def graph_with_call(target: Any, *arguments: Any, **modules: torch.nn.Module) -> GraphModule:
    graph = Graph()
    given = [graph.get_attr(name) if name in modules else name for name in arguments]
    graph.output(graph.call_function(target, tuple(given)))
    return GraphModule(torch.nn.ModuleDict(modules), graph)


def test_a_delegate_call_of_another_module_is_named() -> None:
    module = graph_with_call(executorch_call_delegate, "lowered", lowered=torch.nn.ReLU())
    with pytest.raises(EdgeError) as caught:
        get_lowered_backend_modules(module)
    assert caught.value.where == "node `executorch_call_delegate`, argument 0"
    assert caught.value.found == "a `torch.nn.modules.activation.ReLU`"


def test_a_branch_that_is_no_graph_is_named() -> None:
    module = graph_with_call(torch.ops.higher_order.cond, True, "yes", "no", yes=torch.nn.ReLU(), no=torch.nn.ReLU())
    with pytest.raises(EdgeError, match="is not a `torch"):
        get_control_flow_submodules(module)


def test_what_the_check_after_a_pass_finds_is_its_own_error() -> None:
    def call_method(module: GraphModule) -> PassResult:
        with module.graph.inserting_before(module.graph.output_node()):
            module.graph.call_method("relu", (module.graph.output_node().args[0][0],))
        return PassResult(module, True)

    program = edge(torch.nn.ReLU()).exported_program()
    with pytest.raises(EdgeError, match="an edge program calls operators, and no methods"):
        PassManager([call_method], run_checks_after_each_pass=True)(program.graph_module)


def test_passes_run_over_graph_modules_only() -> None:
    with pytest.raises(EdgeError) as caught:
        PassManager([])(torch.nn.Linear(1, 1))
    assert caught.value.found == "a value of the type `Linear`"
