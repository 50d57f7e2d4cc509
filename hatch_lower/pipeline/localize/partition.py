"""The search inside a partition, for wrong operations and for operations that a backend refuses: operations as
numbers, and probes that lower some operations and compare.
"""

from __future__ import annotations

import gc
import math
import operator
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.cache.store import Store
from hatch_lower.errors import LowerError, UnavailableError
from hatch_lower.exir.backend.backend_api import Cut, lower_methods
from hatch_lower.exir.backend.canonical_partitioners.all_node_partitioner import AllNodePartitioner
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.graph.nodes import is_view
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.state import constant_placeholders, mutated_targets
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.exceptions import describe_exception, is_out_of_memory
from hatch_lower.pipeline.localize.pieces import METHOD, Piece, Runner, cut_out, lower_piece, takes_all
from hatch_lower.pipeline.localize.reference import Distance, Measure, State, evaluate_nodes, values_at
from hatch_lower.pipeline.localize.search import ExhaustedError, Order, find_refused
from hatch_lower.pipeline.rounding import mark_values
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

MOST_LOWERINGS = 12  # limit of a search that only explains an error
LEAST_ROOM = 1 << 24  # bytes of values that a probe may always compare


@dataclass(slots=True)
class SearchLimits:
    ends: float  # on the clock of `time.monotonic`
    most: int = MOST_LOWERINGS
    lowerings: int = 0

    def is_over(self) -> bool:
        return self.lowerings >= self.most or time.monotonic() > self.ends

    def take(self) -> None:
        if self.is_over():
            raise ExhaustedError
        self.lowerings += 1


@dataclass(frozen=True, slots=True)
class RecordedCall:
    # on eager's own values

    inputs: tuple[object, ...]
    state: State  # before the call


@dataclass(frozen=True, slots=True)
class Step:
    main: Node
    nodes: tuple[Node, ...]
    values: tuple[Node, ...]  # the results that are tensors
    is_fixed: bool  # whether all sources are constants


def steps_of(program: ExportedProgram) -> list[Step]:
    changed = mutated_targets(program)
    fixed = {node for node, spec in constant_placeholders(program).items() if spec.target not in changed}
    steps = []
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        items = tuple(user for user in node.users if user.target is operator.getitem)
        attributes = tuple(source for source in node.all_input_nodes if source.op == "get_attr")
        is_fixed = all(source in fixed for source in node.all_input_nodes if source.op != "get_attr")
        if is_fixed:
            fixed.update((node, *items))
        values = tuple(each for each in items or (node,) if isinstance(each.meta.get("val"), torch.Tensor))
        steps.append(Step(node, (*attributes, node, *items), values, is_fixed))
    return steps


def make_order(steps: Sequence[Step], room: int) -> Order:
    number = {node: index for index, step in enumerate(steps) for node in step.nodes if node.op != "get_attr"}
    # sizes are computed by the program, not by a backend's kernels
    sources = tuple(
        tuple(
            sorted(
                {
                    number[source]
                    for node in step.nodes
                    for source in node.all_input_nodes
                    if source in number and number[source] != index and steps[number[source]].values
                }
            )
        )
        for index, step in enumerate(steps)
    )
    comparable = frozenset(index for index, step in enumerate(steps) if step.values)
    sizes = tuple(sum(map(count_value_bytes, step.values)) for step in steps)
    views = frozenset(index for index, step in enumerate(steps) if is_view(step.main) or is_copy(step.main))
    return Order(sources, comparable, views, sizes, room)


def is_copy(node: Node) -> bool:
    # dropout in eval mode becomes a copy, too; some engines cannot return both a copy and its source
    operator = torch_operator(node.target)
    return isinstance(operator, OpOverload) and base_name(operator) == "clone"


def count_value_bytes(node: Node) -> int:
    value = node.meta["val"]
    sizes = (size if isinstance(size, int) else size.node.hint or 1 for size in value.shape)
    return math.prod(sizes) * int(value.element_size())


def piece_of(
    program: ExportedProgram,
    steps: Sequence[Step],
    operations: Collection[int],
    outputs: Sequence[int],
    *,
    is_cut: bool = False,
) -> Piece:
    """Return operations as a program; without `is_cut`, earlier operations on constants alone are included."""
    chosen = set(operations)
    number = {node: index for index, step in enumerate(steps) for node in step.nodes}
    pending = [] if is_cut else list(chosen)
    while pending:
        for node in steps[pending.pop()].nodes:
            for source in node.all_input_nodes:
                index = number.get(source)
                if index is not None and index not in chosen and steps[index].is_fixed:
                    chosen.add(index)
                    pending.append(index)
    nodes = [node for index in chosen for node in steps[index].nodes]
    values = [value for index in sorted(set(outputs)) for value in steps[index].values]
    return cut_out(program, nodes, values)


@dataclass(slots=True)
class PartitionProbe:
    """Lowers parts of a partition, and compares the results with torch's."""

    program: ExportedProgram
    steps: Sequence[Step]
    spec: DelegationSpec
    partitioner: Partitioner | None
    call: RecordedCall
    measure: Measure
    limits: SearchLimits
    store: Store
    folder: Path
    distances: dict[int, Distance] = field(default_factory=dict)  # of each value, from the last comparison
    refusals: list[str] = field(default_factory=list)
    unclaimed: set[frozenset[int]] = field(default_factory=set)  # programs that the partitioner would not take
    seen: set[int] = field(default_factory=set)  # operations that were wrong in programs that the partitioner takes

    def __call__(
        self, operations: frozenset[int], outputs: Sequence[int], *, is_cut: bool = False
    ) -> frozenset[int] | None:
        piece = piece_of(self.program, self.steps, operations, outputs, is_cut=is_cut)
        self.limits.take()
        try:
            if self.partitioner is not None:
                with process_restored():
                    is_claimed = takes_all(self.partitioner, piece.program)
                (self.unclaimed.discard if is_claimed else self.unclaimed.add)(operations)
            given = self.run(piece)
        except BaseException as error:  # every exception of a backend counts as a refusal
            refuse_no_refusal(error)
            self.refusals.append(refusal_text(error))
            return None
        bad = self.compare(piece, given, outputs)
        if operations not in self.unclaimed:
            self.seen |= bad
        return bad

    def piece(self, operations: Collection[int], outputs: Sequence[int]) -> Piece:
        return piece_of(self.program, self.steps, operations, outputs)

    def run(self, piece: Piece) -> list[object]:
        gc.collect()  # loaded programs are in reference cycles
        with TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder, process_restored():
            return Runner(lower_piece(piece, self.spec, self.store), Path(folder), self.store)(self.inputs_of(piece))

    def inputs_of(self, piece: Piece) -> list[object]:
        return values_at(self.program, self.call.inputs, self.call.state, piece.inputs)

    def compare(self, piece: Piece, given: list[object], outputs: Sequence[int]) -> frozenset[int]:
        number = {value: index for index in outputs for value in self.steps[index].values}
        results: dict[Node, object] = dict(zip(piece.outputs, given, strict=True))
        given.clear()
        rounded = mark_values(self.program)
        found: dict[int, Distance] = {}
        for node, value in evaluate_nodes(self.program, self.call.inputs, dict(self.call.state)):
            if node in results:
                distance = self.measure.after(rounded.of(node)).distance(value, results.pop(node))
                index = number[node]
                if index not in found or distance.is_wrong or distance.largest > found[index].largest:
                    found[index] = distance
            if not results:
                break
        self.distances.update(found)
        return frozenset(index for index, distance in found.items() if distance.is_wrong)


def fixed_steps(steps: Sequence[Step]) -> frozenset[int]:
    return frozenset(index for index, step in enumerate(steps) if step.is_fixed)


def refuse_no_refusal(error: BaseException) -> None:
    """Raise an exception again if the exception is no refusal of a program: a signal, exhausted memory, no device."""
    # a signal ends the process with a code above 128; a delegate may raise any other `SystemExit`
    is_signal = isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128
    if is_out_of_memory(error) or is_signal or isinstance(error, (KeyboardInterrupt, UnavailableError)):
        raise error


def refusal_text(error: BaseException) -> str:
    if isinstance(error, LowerError):
        return f"{error.what}: {error.found.splitlines()[0]}" if error.found else error.what
    return describe_exception(error).splitlines()[0]


def agreement(order: Order, operation: int, distances: Mapping[int, Distance]) -> float:
    """Return the largest error of an operation's inputs in their last comparison."""
    return max((distances[each].largest for each in order.sources[operation] if each in distances), default=0.0)


class Refusal(Frozen):
    method: str
    backend: str
    nodes: tuple[Node, ...]  # a single refused operation, or operations that are refused together
    text: str


@dataclass(slots=True)
class LoweringProbe:
    """Lowers parts of a partition without running the parts; a part that the backend refuses counts as wrong."""

    program: ExportedProgram
    steps: Sequence[Step]
    spec: DelegationSpec
    partitioner: Partitioner
    refusal: str  # of the whole partition
    limits: SearchLimits
    store: Store
    refusals: dict[frozenset[int], str] = field(default_factory=dict)
    lowered: int = 0  # parts that the backend took

    def __call__(
        self, operations: frozenset[int], outputs: Sequence[int], *, is_cut: bool = False
    ) -> frozenset[int] | None:
        self.limits.take()
        piece = piece_of(self.program, self.steps, operations, outputs, is_cut=is_cut)
        text = raised(lambda: lower_piece(piece, self.spec, self.store))
        if text is None:
            self.lowered += 1
            return frozenset()
        self.refusals[operations] = text
        # the backend may refuse a program that no partitioner would create for an unrelated reason
        claimed: list[bool] = []
        raised(lambda: claimed.append(takes_all(self.partitioner, piece.program)))
        return frozenset(outputs) if text == self.refusal or claimed == [True] else None


def find_refusal(cut: Cut, partitioners: Mapping[str, Partitioner], store: Store, most: int) -> Refusal | None:
    """Return the operations that a backend refuses in its first refused partition; `None` if no small set is found."""
    taken = set[str]()  # backends that took another partition
    for method, partition, program in cut.extracted:
        spec = partition.spec
        if (text := refusal_of(program, spec, store)) is None:
            taken.add(spec.backend_id)
            continue
        if not is_complete(spec):
            return None
        steps = steps_of(program)
        order = make_order(steps, LEAST_ROOM)
        limits = SearchLimits(math.inf, most)
        probe = LoweringProbe(program, steps, spec, partitioners[method], text, limits, store)
        found = find_refused(order, probe, partial(probe, is_cut=True), fixed_steps(steps))
        # a compiler or an engine that fails with every program is not the fault of an operation
        if found is None or not (probe.lowered or spec.backend_id in taken or lowers_a_sum(spec)):
            return None
        nodes = tuple(steps[operation].main for operation in found.operations)
        return Refusal(method, spec.backend_id, nodes, probe.refusals.get(frozenset(found.operations), text))
    return None


def refusal_of(program: ExportedProgram, spec: DelegationSpec, store: Store) -> str | None:
    """Return the text of a backend's refusal of a partition; `None` if the backend takes the partition."""
    partitioners = {METHOD: AllNodePartitioner(*spec)}
    return raised(lambda: lower_methods({METHOD: program}, partitioners, store=store, validate=False))


def lowers_a_sum(spec: DelegationSpec) -> bool:
    """Return whether a backend lowers the sum of two tensors, without the cache."""

    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    program = to_edge(torch.export.export(Sum(), (torch.ones(2),)))
    return refusal_of(program, spec, Store(Path(os.devnull), "off", lambda line: None)) is None


def is_complete(spec: DelegationSpec) -> bool:
    """Return whether a backend has its libraries and compilers."""
    return raised(lambda: find_backend(spec.backend_id).fingerprint(spec.compile_specs)) is None


def raised(run: Callable[[], object]) -> str | None:
    try:
        with process_restored():
            run()
    except BaseException as error:  # a backend may raise any exception
        refuse_no_refusal(error)
        return refusal_text(error)
    return None
