"""A stored debug map with the source lines of another export is what that export's own lowering would write."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from support.generated import Drawn, Recipe, inputs
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.format.debug_map import DebugMap, Origin
from hatch_lower.pipeline.emit.emit import EmittedProgram, MethodToEmit, emit_program
from hatch_lower.pipeline.emit.sources import SourceRoots, anchors_of, re_anchor, source_lines

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
SOURCES = SourceRoots([ROOT])
PLAIN = (
    "linear",
    "layer norm",
    "split",
    "gelu",
    "softmax",
    "lifted",
    "index",
    "cast",
    "size",
    "change state",
    "in place",
)


class Positive(torch.nn.Module):
    """Where an input is positive; torch checks how many places there are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0)


def exported(*steps: str, dynamic: bool = False) -> ExportedProgram:
    """Return a program with these steps of `support.generated`, one after the other."""
    recipe = Recipe(tuple((step, index, index, 1) for index, step in enumerate(steps, 1)), (0, 1), dynamic)
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "y": {0: rows}} if dynamic else None
    return torch.export.export(Drawn(recipe), inputs(recipe, 0), dynamic_shapes=shapes, strict=False)


def emitted(edge: ExportedProgram) -> EmittedProgram:
    names = tuple(f"arg_{index}" for index in range(edge.call_spec.in_spec.child(0).num_children))
    return emit_program("model", {"forward": MethodToEmit("forward", edge, names)}, roots=[ROOT])


def re_anchored(program: ExportedProgram, found: EmittedProgram, other: ExportedProgram | None = None) -> DebugMap:
    """Return the debug map after all that came from source lines has been taken out of it."""
    method = found.debug.methods["forward"]
    bare = {handle: Origin(origin.op, "stale", "stale") for handle, origin in method.handles.items()}
    stored = DebugMap({"forward": replace(method, handles=bare)})
    anchors = anchors_of(found.nodes, {"forward": program})
    return re_anchor(stored, anchors, {"forward": other or program}, SOURCES)


def move(program: ExportedProgram, by: int) -> None:
    """Give each line of the tests' modules a line of its own elsewhere."""
    traces: dict[str, int] = {}
    for node in program.graph.nodes:
        trace = node.meta.get("stack_trace", "")
        if "/tests/" in trace:
            line = by + traces.setdefault(trace, len(traces))
            node.meta["stack_trace"] = f'{trace}\n  File "{ROOT}/tests/moved.py", line {line}, in step'


@pytest.mark.parametrize(
    "step", [PLAIN, ("branch",), ("nested branch",), ("sin", "loop"), ("map",), ("scan",)], ids=str
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_lines_follow_from_the_exported_graph(step: tuple[str, ...], dynamic: bool) -> None:
    program = exported(*step, dynamic=dynamic)
    found = emitted(to_edge(program))
    assert found.debug.methods["forward"].handles
    assert re_anchored(program, found) == found.debug


def test_every_line_is_that_of_the_other_export() -> None:
    program, other = exported(*PLAIN), exported(*PLAIN)
    move(other, 1000)
    stored = emitted(to_edge(program))
    assert re_anchored(program, stored, other) == emitted(to_edge(other)).debug
    assert re_anchored(program, stored, other) != stored.debug


def test_operations_inside_delegates_have_anchors_too() -> None:
    program = exported(*PLAIN)
    edge = to_edge(program)
    lowered = lower_methods({"forward": edge}, {"forward": TagBy(everything)})["forward"].program
    found = emitted(lowered)
    assert found.debug.methods["forward"].delegates
    assert re_anchored(program, found) == found.debug


def test_operations_that_a_filter_keeps_whole_have_anchors() -> None:
    program = exported("gelu", "linear", "gelu")
    chosen: list[Node] = []

    def wanted(node: Node) -> bool:
        chosen.append(node)
        return len(chosen) == 1

    edge = to_edge(program, keep_nodes={torch.ops.aten.gelu.default: wanted, torch.ops.aten.linear.default: wanted})
    assert all("hatch_lower_kept" not in node.meta for node in program.graph.nodes)
    found = emitted(edge)
    assert re_anchored(program, found) == found.debug


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # of torch 2.11, about itself
def test_a_program_that_was_made_from_another_has_anchors_in_itself() -> None:
    stored = io.BytesIO()
    torch.export.save(exported(*PLAIN).run_decompositions({}), stored)
    program: Any = torch.export.load(io.BytesIO(stored.getvalue()))
    found = emitted(to_edge(program))
    assert re_anchored(program, found) == found.debug


def test_checks_of_a_size_have_the_line_of_the_operation_that_makes_it() -> None:
    program, other = (torch.export.export(Positive(), (torch.ones(3, 4),), strict=False) for _ in range(2))
    move(other, 1000)
    stored = emitted(to_edge(program))
    checks = [origin for origin in stored.debug.methods["forward"].handles.values() if "assert" in origin.op]
    assert checks
    assert all(origin.source for origin in checks)
    assert re_anchored(program, stored) == stored.debug
    assert re_anchored(program, stored, other) == emitted(to_edge(other)).debug


def test_a_node_that_was_made_of_none_has_no_source_line() -> None:
    program = exported("sin")
    edge = to_edge(program)
    for node in edge.graph.nodes:
        node.meta.pop("from_node", None)
        node.meta["stack_trace"] = f'  File "{ROOT}/tests/elsewhere.py", line 1, in step'
    found = emitted(edge)
    (origin,) = re_anchored(program, found).methods["forward"].handles.values()
    assert origin == Origin("aten.sin.default")
    assert re_anchored(program, found) != found.debug, "so that such a model is not kept"


def test_source_lines_of_the_outer_graph() -> None:
    program = exported("sin")
    lines = source_lines(program, SOURCES)
    assert len(lines) == len(program.graph.nodes)
    assert {line.rpartition(":")[0] for line in lines if line} == {"tests/support/generated.py"}
