"""Which operation reads what another one computes: debug maps say it inside delegates and nested graphs too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.backends import TagBy, everything
from torch.fx import Node

from hatch_lower.canonical import sha256_file
from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.format.debug_map import DebugMap
from hatch_lower.pipeline.emit.emit import MethodToEmit, emit_program

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]


class Diamond(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left, right = torch.sin(x), torch.cos(y)
        return torch.relu(left * right) + left


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.sin(x)
        return torch.tanh(torch.cond(y.sum() > 0, lambda t: torch.cos(t), lambda t: torch.exp(t), (z,)))


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second = torch.split(torch.sin(x), 2)
        return torch.cos(first) + torch.tanh(second) + y[:2]


def debug_of(module: torch.nn.Module, choose: Callable[[Node], str | None]) -> DebugMap:
    """Return the debug map of a module whose operations are in the partitions that `choose` names."""
    program = torch.export.export(module, (torch.ones(4), torch.ones(4)), strict=False)
    lowered = lower_methods({"forward": to_edge(program)}, {"forward": TagBy(choose)})["forward"].program
    return emit_program("model", {"forward": MethodToEmit("forward", lowered, ("x", "y"))}, roots=[ROOT]).debug


def edges_of(debug: DebugMap) -> set[tuple[str, str]]:
    """Return the edges by the names of operators; inputs are `input 0`, `input 1`."""
    method = debug.methods["forward"]
    return {
        (short(method.handles[maker].op) if maker >= 0 else f"input {-1 - maker}", short(method.handles[handle].op))
        for handle, makers in method.reads.items()
        for maker in makers
    }


def short(op: str) -> str:
    return op.split(".")[1] if "." in op else op


DIAMOND = {
    ("input 0", "sin"),
    ("input 1", "cos"),
    ("sin", "mul"),
    ("cos", "mul"),
    ("mul", "relu"),
    ("relu", "add"),
    ("sin", "add"),
}


@pytest.mark.parametrize(
    "choose",
    [
        everything,
        lambda node: None,
        lambda node: "one" if "sin" in node.name or "cos" in node.name else "two",
        lambda node: node.name if "mul" in node.name or "relu" in node.name else None,
    ],
    ids=["one partition", "none", "two partitions", "some outside"],
)
def test_the_edges_are_the_same_however_a_method_is_partitioned(choose: Callable[[Node], str | None]) -> None:
    assert edges_of(debug_of(Diamond(), choose)) == DIAMOND


def test_edges_go_into_branches_and_out_of_them() -> None:
    edges = edges_of(debug_of(Branches(), lambda node: None))
    assert {("sin", "cos"), ("sin", "exp"), ("cos", "cond"), ("exp", "cond"), ("cond", "tanh")} <= edges
    assert ("input 1", "sum") in edges


@pytest.mark.parametrize("choose", [everything, lambda node: None], ids=["delegated", "not"])
def test_edges_go_through_operations_with_several_results(choose: Callable[[Node], str | None]) -> None:
    edges = edges_of(debug_of(Halves(), choose))
    readers = {reader for maker, reader in edges if maker not in ("input 0", "input 1")}
    assert {"cos", "tanh"} <= readers
    assert ("input 0", "sin") in edges
    assert ("input 0", "cos") not in edges


def test_a_debug_map_has_the_digests_of_the_sources_that_it_names() -> None:
    debug = debug_of(Diamond(), everything)
    assert debug.files == {"tests/core/test_flow.py": sha256_file(Path(__file__))}
