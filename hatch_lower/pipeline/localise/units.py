"""What a lowered method does one after the other, each alone on eager's values: delegate calls, and what is between."""

from __future__ import annotations

import operator
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.cache.store import Store
from hatch_lower.exir.delegate import executorch_call_delegate
from hatch_lower.exir.graph.state import mutated_targets
from hatch_lower.exir.graph_module import submodule_of
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.pipeline.localise.distance import Distance, Measure
from hatch_lower.pipeline.localise.partition import Call, bytes_of
from hatch_lower.pipeline.localise.pieces import Runner, cut_out
from hatch_lower.pipeline.localise.reference import State, evaluate, initial_state, user_results


@dataclass(frozen=True, slots=True)
class Unit:
    """A delegate call, or operations that the program runs itself."""

    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    delegate: LoweredBackendModule | None = None
    number: int = 0  # of the delegate call, from 1


@dataclass(frozen=True, slots=True)
class Off:
    """A unit that computes something else than eager, on eager's own values."""

    unit: Unit
    call: Call
    distances: tuple[tuple[Node, Distance], ...]  # of the outputs that are wrong, in the order of the graph
    before: Call | None  # the call before this one, of a unit with state


def units_of(program: ExportedProgram, room: int) -> list[Unit]:
    """Return the units in the order of the graph; operations between delegate calls as few units as there is room."""
    units: list[Unit] = []
    between: list[Node] = []
    weight = 0
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        is_item = node.target is operator.getitem
        if is_item and isinstance(node.args[0], Node) and node.args[0].target is executorch_call_delegate:
            continue
        if node.target is not executorch_call_delegate:
            size = bytes_of(node) if isinstance(node.meta.get("val"), torch.Tensor) else 0
            if between and weight + size > room and not is_item:
                units.append(plain_unit(between))
                between, weight = [], 0
            between.append(node)
            weight += size
            continue
        if between:
            units.append(plain_unit(between))
            between, weight = [], 0
        _, module = submodule_of(program.graph_module, node, 0, LoweredBackendModule)
        items = tuple(user for user in node.users if user.target is operator.getitem)
        number = 1 + sum(unit.delegate is not None for unit in units)
        units.append(Unit((*attributes_of(node), node, *items), items, module, number))
    return [*units, plain_unit(between)] if between else units


def plain_unit(nodes: Sequence[Node]) -> Unit:
    outputs = tuple(node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor))
    attributes = dict.fromkeys(source for node in nodes for source in attributes_of(node))
    return Unit((*attributes, *nodes), outputs)


def attributes_of(node: Node) -> list[Node]:
    return [source for source in node.all_input_nodes if source.op == "get_attr"]


class Units:
    """The units of a lowered method, each loaded when it is first run; one with state is kept."""

    def __init__(self, program: ExportedProgram, room: int, folder: Path, store: Store) -> None:
        self.program = program
        self._units = units_of(program, room)
        self._folder = folder
        self._store = store
        self._kept: dict[int, Runner] = {}
        self._calls: dict[int, Call] = {}  # the last one of each unit with state

    def fresh_state(self) -> State:
        """Return the state that the first call begins with, and let the units begin anew."""
        self._kept.clear()
        self._calls.clear()
        modules = [unit.delegate.original_module for unit in self._units if unit.delegate is not None]
        return initial_state([self.program, *modules])

    def first_off(self, inputs: Sequence[object], state: State, measure: Measure, results: list[Any]) -> Off | None:
        """Run a call by torch, and each unit on its values; return the first unit that is off.

        `results` are extended by what torch returns, if none is off; then `state` is what the next call begins with.
        """
        before = dict(state)
        last = {node: index for index, unit in enumerate(self._units) for node in needed(unit)}
        held: dict[Node, Any] = {}
        waiting = iter(enumerate(self._units))
        index, unit = next(waiting, (-1, None))
        for node, value in evaluate(self.program, inputs, state):
            if node in last:
                held[node] = value
            if node.op == "output":
                results += user_results(self.program, value, state)
            while unit is not None and all(each in held for each in needed(unit)):
                off = self._off(index, unit, held, before, measure)
                if off is not None:
                    return off
                held = {each: kept for each, kept in held.items() if last[each] > index}
                index, unit = next(waiting, (-1, None))
        return None

    def _off(self, index: int, unit: Unit, held: dict[Node, Any], state: State, measure: Measure) -> Off | None:
        with process_restored(), self._runner(index, unit) as (runner, inputs):
            given = runner([held[node] for node in inputs])
        compared = [
            (node, measure.distance(held[node], value)) for node, value in zip(unit.outputs, given, strict=True)
        ]
        wrong = tuple((node, distance) for node, distance in compared if distance.is_wrong)
        before = self._calls.get(index)
        if wrong or index in self._kept:
            arguments = inputs if unit.delegate is None else call_arguments(unit)
            self._calls[index] = Call(tuple(held[node] for node in arguments), state)
        return Off(unit, self._calls[index], wrong, before) if wrong else None

    @contextmanager
    def _runner(self, index: int, unit: Unit) -> Iterator[tuple[Runner, tuple[Node, ...]]]:
        piece = cut_out(self.program, unit.nodes, unit.outputs)
        if index in self._kept:
            yield self._kept[index], piece.inputs
            return
        # each in a folder of its own: a library that a process has loaded must not be written again
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        runner = Runner(piece.program, folder, self._store)
        if unit.delegate is not None and mutated_targets(unit.delegate.original_module):
            self._kept[index] = runner
        yield runner, piece.inputs
        if index not in self._kept:
            shutil.rmtree(folder, ignore_errors=True)


def needed(unit: Unit) -> Iterator[Node]:
    """Yield the nodes whose values are needed to run a unit and to compare it; constants and state, too."""
    inside = set(unit.nodes)
    for node in unit.nodes:
        yield from (source for source in node.all_input_nodes if source not in inside)
    yield from unit.outputs


def call_arguments(unit: Unit) -> list[Node]:
    call = next(node for node in unit.nodes if node.target is executorch_call_delegate)
    return [node for node in call.args[1:] if isinstance(node, Node)]
