"""Segments of a lowered method: delegate calls, and the operations between, each run alone on eager's values."""

from __future__ import annotations

import operator
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.cache.store import Store
from hatch_lower.exir.delegate import executorch_call_delegate
from hatch_lower.exir.graph.state import mutated_targets
from hatch_lower.exir.graph_module import submodule_of
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.localize.partition import RecordedCall, count_value_bytes, refusal_text, refuse_no_refusal
from hatch_lower.pipeline.localize.pieces import Runner, cut_out
from hatch_lower.pipeline.localize.reference import (
    Distance,
    Measure,
    State,
    evaluate_nodes,
    initial_state,
    user_results,
)
from hatch_lower.pipeline.rounding import mark_values


class Segment(Frozen):
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    delegate: LoweredBackendModule | None = None
    number: int = 0  # of the delegate call, from 1


class Off(Frozen):
    """A segment whose results on eager's own values differ from eager's."""

    segment: Segment
    call: RecordedCall
    distances: tuple[tuple[Node, Distance], ...]  # of the wrong outputs, in the order of the graph
    before: RecordedCall | None  # the call before, for a segment with state
    refusal: str = ""  # of a delegate that cannot be loaded or called


def segments_of(program: ExportedProgram, room: int) -> list[Segment]:
    """Return the segments in the graph's order; between delegate calls, a segment's values have up to `room` bytes."""
    segments: list[Segment] = []
    between: list[Node] = []
    weight = 0
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        is_item = node.target is operator.getitem
        if is_item and isinstance(node.args[0], Node) and node.args[0].target is executorch_call_delegate:
            continue
        if node.target is not executorch_call_delegate:
            size = count_value_bytes(node) if isinstance(node.meta.get("val"), torch.Tensor) else 0
            if between and weight + size > room and not is_item:
                segments.append(plain_segment(between))
                between, weight = [], 0
            between.append(node)
            weight += size
            continue
        if between:
            segments.append(plain_segment(between))
            between, weight = [], 0
        _, module = submodule_of(program.graph_module, node, 0, LoweredBackendModule)
        items = tuple(user for user in node.users if user.target is operator.getitem)
        number = 1 + sum(segment.delegate is not None for segment in segments)
        segments.append(Segment((*attributes_of(node), node, *items), items, module, number))
    return [*segments, plain_segment(between)] if between else segments


def plain_segment(nodes: Sequence[Node]) -> Segment:
    outputs = tuple(node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor))
    attributes = dict.fromkeys(source for node in nodes for source in attributes_of(node))
    return Segment((*attributes, *nodes), outputs)


def attributes_of(node: Node) -> list[Node]:
    return [source for source in node.all_input_nodes if source.op == "get_attr"]


class Segments:
    """The segments of a lowered method, each loaded at its first run; segments with state stay loaded."""

    def __init__(self, program: ExportedProgram, room: int, folder: Path, store: Store) -> None:
        self.program = program
        self._segments = segments_of(program, room)
        self._rounded = mark_values(program)
        self._folder = folder
        self._store = store
        self._kept: dict[int, Runner] = {}
        self._calls: dict[int, RecordedCall] = {}  # the last call of each segment with state

    def fresh_state(self) -> State:
        self._kept.clear()
        self._calls.clear()
        modules = [segment.delegate.original_module for segment in self._segments if segment.delegate is not None]
        return initial_state([self.program, *modules])

    def first_off(self, inputs: Sequence[object], state: State, measure: Measure, results: list[object]) -> Off | None:
        """Run a call by torch, and each segment on torch's values; return the first segment that is off."""
        # if all segments are right, torch's results are appended to `results`, and `state` becomes the next call's
        before = dict(state)
        last = {node: index for index, segment in enumerate(self._segments) for node in needed(segment)}
        held: dict[Node, object] = {}
        waiting = iter(enumerate(self._segments))
        index, segment = next(waiting, (-1, None))
        for node, value in evaluate_nodes(self.program, inputs, state):
            if node in last:
                held[node] = value
            if node.op == "output":
                results += user_results(self.program, value, state)
            while segment is not None and all(each in held for each in needed(segment)):
                if (off := self._off(index, segment, held, before, measure)) is not None:
                    return off
                held = {each: kept for each, kept in held.items() if last[each] > index}
                index, segment = next(waiting, (-1, None))
        return None

    def _off(
        self, index: int, segment: Segment, held: dict[Node, object], state: State, measure: Measure
    ) -> Off | None:
        try:
            with process_restored(), self._runner(index, segment) as (runner, inputs):
                given = runner([held[node] for node in inputs])
        except BaseException as error:  # a delegate may raise any exception
            refuse_no_refusal(error)
            if segment.delegate is None:
                raise
            call = RecordedCall(tuple(held[node] for node in segment_arguments(segment)), state)
            return Off(segment, call, (), self._calls.get(index), refusal_text(error))
        compared = [
            (node, measure.after(self._rounded.of(node)).distance(held[node], value))
            for node, value in zip(segment.outputs, given, strict=True)
        ]
        wrong = tuple((node, distance) for node, distance in compared if distance.is_wrong)
        before = self._calls.get(index)
        if wrong or index in self._kept:
            arguments = inputs if segment.delegate is None else segment_arguments(segment)
            self._calls[index] = RecordedCall(tuple(held[node] for node in arguments), state)
        return Off(segment, self._calls[index], wrong, before) if wrong else None

    @contextmanager
    def _runner(self, index: int, segment: Segment) -> Iterator[tuple[Runner, tuple[Node, ...]]]:
        piece = cut_out(self.program, segment.nodes, segment.outputs)
        if index in self._kept:
            yield self._kept[index], piece.inputs
            return
        # a new folder for each: a library that a process has loaded must not be overwritten
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        runner = Runner(piece.program, folder, self._store)
        if segment.delegate is not None and mutated_targets(segment.delegate.original_module):
            self._kept[index] = runner
        yield runner, piece.inputs
        if index not in self._kept:
            shutil.rmtree(folder, ignore_errors=True)


def needed(segment: Segment) -> Iterator[Node]:
    """Yield the nodes whose values running and comparing a segment needs, constants and state included."""
    inside = set(segment.nodes)
    for node in segment.nodes:
        yield from (source for source in node.all_input_nodes if source not in inside)
    yield from segment.outputs


def segment_arguments(segment: Segment) -> list[Node]:
    call = next(node for node in segment.nodes if node.target is executorch_call_delegate)
    return [node for node in call.args[1:] if isinstance(node, Node)]
