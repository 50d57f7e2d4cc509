"""Lowered programs compute what eager modules compute; partitions that cannot run are refused."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import event, given, note, settings, target
from hypothesis import strategies as st
from support.backends import BoundBackend, BoundDelegate
from support.generated import Drawn, Recipe, examples, export, inputs, recipes
from support.random_tags import TagNodes, Tags, draw_tags, find_faults, graphs_of, repair, tag_constants
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.backend_api import DelegatedMethod, lower_methods, to_backend
from hatch_lower.exir.lowering.leave_out import nodes_by_place, number_places
from hatch_lower.pipeline.emit.delegates import delegate_file
from hatch_lower.pipeline.emit.emit import MethodToEmit, emit_program
from hatch_lower.runtime.executor import Executor, execute_plan

pytestmark = pytest.mark.torch

BACKENDS = (ReferenceBackend.__name__, BoundBackend.__name__)
DELEGATES = dict(zip(BACKENDS, (ReferenceDelegate, BoundDelegate), strict=True))
CALLS = 4


def run_once(run: Callable[..., Any], call: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return the results of a call, and what became of its inputs."""
    args = copy.deepcopy(call)
    return [each.clone() for each in (*run(*args), *args)]


class Eager:
    """What a module returns, call by call, and what it makes of its inputs."""

    def __init__(self, recipe: Recipe) -> None:
        self.calls = [inputs(recipe, number) for number in range(CALLS)]
        module = Drawn(recipe)
        self.expected = [run_once(module, call) for call in self.calls]

    def compare(self, run: Any, route: str) -> None:
        """Make the calls one after the other, on one instance."""
        for number, (call, expected) in enumerate(zip(self.calls, self.expected, strict=True)):
            given = run_once(run, call)
            assert len(given) == len(expected)
            for index, (left, right) in enumerate(zip(given, expected, strict=True)):
                torch.testing.assert_close(
                    left,
                    right,
                    rtol=1e-4,
                    atol=1e-5,
                    equal_nan=True,
                    msg=lambda text: f"{route}, call {number}, result {index}: {text}",  # noqa: B023
                )


def execute(program: ExportedProgram, folder: Path) -> Executor:
    """Emit a lowered program, write its delegates, and load it."""
    emitted = emit_program("model", {"forward": MethodToEmit("forward", program, ("x", "y"))})
    for digest, blob in emitted.blobs.items():
        path = folder / "model" / delegate_file(digest, blob.suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob.data)
    spans = [emitted.storages[storage.key].view(getattr(torch, storage.dtype)) for storage in emitted.plan.storages]
    return execute_plan(emitted.plan, spans, DELEGATES, folder)


def lower(program: ExportedProgram, tags: Tags, backend: str) -> DelegatedMethod:
    """Lower a program with tags made beforehand."""
    return lower_methods({"forward": program}, {"forward": TagNodes(tags, backend)})["forward"]


@given(recipe=recipes(), seed=st.integers(0, 2**20))
def test_what_is_lowered_computes_what_eager_computes(recipe: Recipe, seed: int) -> None:
    random = Random(seed)
    program = export(recipe)
    eager = Eager(recipe)
    state = {name: tensor.clone() for name, tensor in (program.state_dict | program.constants).items()}
    for backend in BACKENDS:
        tags = repair(program.graph_module, draw_tags(program.graph_module, random), random)
        tags |= tag_constants(program, tags, random)
        note(f"{backend}: {tags}")
        lowered = lower(program, tags, backend)
        assert lowered.partitions >= len({tag for (graph, _), tag in tags.items() if graph == 0})
        event(f"partitions: {min(lowered.partitions, 6)}")
        with TemporaryDirectory() as folder, torch.no_grad():
            executor = execute(lowered.program, Path(folder))
            eager.compare(executor.methods["forward"], f"{backend}, plan")
            executor.reset()
            eager.compare(executor.methods["forward"], f"{backend}, plan after reset")
            eager.compare(lowered.program.module(), f"{backend}, program")
        for name, tensor in (program.state_dict | program.constants).items():
            tensor.data.copy_(state[name])


@given(recipe=recipes(), seed=st.integers(0, 2**20))
def test_partitions_without_some_operations_compute_what_eager_computes(recipe: Recipe, seed: int) -> None:
    random = Random(seed)
    program = export(recipe)
    number_places(program)
    places = list(nodes_by_place(program))
    chosen = dict.fromkeys(random.sample(places, random.randint(1, len(places))), "left out: it is wrong")
    tags = repair(program.graph_module, draw_tags(program.graph_module, random), random)
    tags |= tag_constants(program, tags, random)
    note(f"{tags} without {chosen}")
    partitioners = {"forward": TagNodes(tags, ReferenceBackend.__name__)}
    lowered = lower_methods({"forward": program}, partitioners, left_out={"forward": chosen})["forward"]
    # what is in a loop or branch goes where that goes
    outside = {place for place, node in nodes_by_place(program).items() if node.graph is program.graph}
    assert outside & chosen.keys() <= nodes_by_place(lowered.program).keys()
    event(f"partitions: {min(lowered.partitions, 6)}")
    with TemporaryDirectory() as folder, torch.no_grad():
        Eager(recipe).compare(execute(lowered.program, Path(folder)).methods["forward"], "plan")


def check_proof(program: ExportedProgram, tags: Tags, error: PartitionError) -> None:
    """See that an error's path consists of edges of the graph, joined inside of partitions, and ends where it began."""
    edges = re.findall(r"`(\w+)` needs `(\w+)`", error.found)
    assert edges, str(error)
    for number, module in enumerate(graphs_of(program.graph_module)):
        nodes: dict[str, Node] = {node.name: node for node in module.graph.nodes}

        def unit(name: str) -> str:
            return tags.get((number, name), f"={name}")  # noqa: B023

        if all(user in nodes and nodes.get(source) in nodes[user].all_input_nodes for user, source in edges):
            following = [*edges[1:], edges[0]]
            if all(unit(source) == unit(user) for (_, source), (user, _) in zip(edges, following, strict=True)):
                return
    pytest.fail(f"no graph has this path: {edges}")


@settings(max_examples=examples(0.5))
@given(recipe=recipes(), seeds=st.lists(st.integers(0, 2**20), min_size=4, max_size=4))
def test_partitions_that_cannot_run_are_refused_and_no_others(recipe: Recipe, seeds: list[int]) -> None:
    program = export(recipe)
    refused = 0
    for seed in seeds:
        random = Random(seed)
        tags = draw_tags(program.graph_module, random)
        results = [
            (number, node.name)
            for number, module in enumerate(graphs_of(program.graph_module))
            for node in module.graph.nodes
            if "getitem" in node.name
        ]
        if results and random.random() < 0.3:
            tags[random.choice(results)] = "part_0"
        faults = find_faults(program.graph_module, tags)
        if not faults:
            to_backend(program, TagNodes(tags, "BoundBackend"))
            continue
        refused += 1
        with pytest.raises(PartitionError) as caught:
            to_backend(program, TagNodes(tags, "BoundBackend"))
        named = re.findall(r"`([^`]+)`", caught.value.where)
        assert {tag for _, tag in faults.circles | faults.split}.issuperset(named)
        if "are in different partitions" not in caught.value.what:
            check_proof(program, tags, caught.value)
    target(float(refused))
    event(f"refused: {refused} of {len(seeds)}")


@settings(max_examples=examples(0.25))
@given(recipe=recipes(most=4, control_flow=False), seed=st.integers(0, 2**20))
def test_tags_where_none_belong_are_refused(recipe: Recipe, seed: int) -> None:
    program = export(recipe)
    random = Random(seed)
    tags = repair(program.graph_module, draw_tags(program.graph_module, random), random)
    known = sorted(set(tags.values()))
    operations = [node.name for node in program.graph.nodes if node.op == "call_function" and not node.users]
    operations += [key[1] for key in tags if key[0] == 0]
    wrong: list[tuple[str, list[str]]] = [("output", known), (random.choice(["x", "y"]), known)]
    if known:
        wrong.append((random.choice(operations), [*known]))
    for index, (name, declared) in enumerate(wrong):
        tag = "nobody's" if index == 2 else random.choice(known or ["a"])
        given_tags = {**tags, (0, name): tag}
        if index < 2:
            declared = declared or ["a"]
        with pytest.raises(PartitionError):
            to_backend(program, TagNodes(given_tags, "BoundBackend", declared))
