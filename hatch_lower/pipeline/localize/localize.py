"""Localize the error of a lowered method: from a wrong method to a wrong operation.

```text
localize_method   each input, by eager and by torch (`reference`), and every segment alone on these values (`segments`)
inside            the operations at fault in the first wrong partition (`search`, over the probes of `partition`)
```
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from hatch_lower.cache.store import Store
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner
from hatch_lower.exir.graph.nodes import producer_of
from hatch_lower.exir.graph.surgery import attribute_of, graph_modules
from hatch_lower.exir.graph.tensors import span_length
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, get_lowered_backend_modules
from hatch_lower.exir.lowering.leave_out import PLACE
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.debug_map import Origin
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.localize.finding import Finding, Verdict
from hatch_lower.pipeline.localize.partition import (
    LEAST_ROOM,
    MOST_LOWERINGS,
    PartitionProbe,
    RecordedCall,
    SearchLimits,
    Step,
    agreement,
    fixed_steps,
    make_order,
    steps_of,
)
from hatch_lower.pipeline.localize.pieces import Piece, Runner
from hatch_lower.pipeline.localize.reference import Distance, Measure, state_values, user_output_values
from hatch_lower.pipeline.localize.search import (
    ExhaustedError,
    FoundKind,
    FoundOperations,
    Order,
    find_refused,
    find_wrong,
)
from hatch_lower.pipeline.localize.segments import Off, Segments
from hatch_lower.pipeline.rounding import Rounding
from hatch_lower.runtime.numbers import Tolerance
from hatch_lower.runtime.torch_private import tensors as trees

CALLS = 2  # for each input: state must carry over to the next call
SHARE = 8  # a probe's values may take a model's bytes divided by `SHARE`

VERDICTS: Mapping[FoundKind, Verdict] = {
    FoundKind.ALONE: "operation",
    FoundKind.TOGETHER: "together",
    FoundKind.AMONG: "among",
    FoundKind.UNSEEN: "partition",
}


class LocalizeCase(Frozen):
    name: str
    leaves: tuple[object, ...]
    new_eager: Callable[[], Callable[[], object]]  # returns a function that calls a fresh eager module on the inputs


class LocalizeSubject(Frozen):
    model: str
    method: str
    recipe: str
    program: ExportedProgram
    partitioners: Mapping[str, Partitioner]  # by the id of their backend
    tolerance: Tolerance
    rounding: Rounding
    store: Store
    folder: Path
    origin: Callable[[Node], Origin]
    reproduce: Callable[[Piece, Sequence[object], LoweredBackendModule, Finding], str] | None = None


@dataclass(slots=True)
class LocalizeProgress:
    subject: LocalizeSubject
    limits: SearchLimits
    began: float = field(default_factory=time.monotonic)

    def finding(self, verdict: Verdict, **facts: Any) -> Finding:
        subject, seconds = self.subject, time.monotonic() - self.began
        known = {"lowerings": self.limits.lowerings, "seconds": round(seconds, 2), **facts}
        return Finding(subject.model, subject.method, subject.recipe, verdict, **known)


def localize_method(
    subject: LocalizeSubject, cases: Sequence[LocalizeCase], seconds: float, lowerings: int = MOST_LOWERINGS
) -> Finding:
    """Return the finding for a method after about `seconds` at most: a backend's call is not interrupted."""
    progress = LocalizeProgress(subject, SearchLimits(time.monotonic() + seconds, lowerings))
    room = room_of(subject.program)
    segments = Segments(subject.program, room, subject.folder, subject.store)
    for case in cases:
        if varies(case):
            return progress.finding("random", case=case.name)
    for case in cases:
        if (finding := in_case(progress, segments, case, room)) is not None:
            return finding
    names = ", ".join(case.name for case in cases)
    return progress.finding("rounding" if differs(subject, cases) else "none", case=names)


def room_of(program: ExportedProgram) -> int:
    tensors = [*program.state_dict.values(), *program.constants.values()]
    held = sum(span_length(tensor) * tensor.element_size() for tensor in tensors if isinstance(tensor, torch.Tensor))
    return max(held // SHARE, LEAST_ROOM)


def varies(case: LocalizeCase) -> bool:
    """Return whether eager itself returns other results in another call of a fresh module."""
    first, second = (trees.tree_leaves(case.new_eager()()) for _ in range(2))
    measure = Measure(Tolerance())
    return any(measure.distance(one, other).is_wrong for one, other in zip(first, second, strict=True))


def in_case(progress: LocalizeProgress, segments: Segments, case: LocalizeCase, room: int) -> Finding | None:
    measure = Measure(progress.subject.tolerance)
    state = segments.fresh_state()
    eager = case.new_eager()
    for number in range(1, CALLS + 1 if state else 2):
        name = case.name if number == 1 else f"{case.name}, call {number}"
        results: list[object] = []
        off = segments.first_off(case.leaves, state, measure, results)
        if off is not None and (delegate := off.segment.delegate) is None:
            node, distance = off.distances[0]
            operation = progress.subject.origin(node)
            held = sorted({module.backend_id for module in modules_with_state(progress.subject.program, node)})
            notes = (f"its branches or body hold partitions of {', '.join(held)}",) if held else ()
            return progress.finding("outside", case=name, operations=(operation,), notes=notes, **told(distance))
        if off is not None and delegate is not None:
            return replace(inside(progress, off, delegate, measure, room), case=name)
        expected = trees.tree_leaves(eager())
        pairs = zip(expected, results, progress.subject.rounding.outputs, strict=True)
        compared = [measure.after(marks).distance(one, other) for one, other, marks in pairs]
        if wrong := [distance for distance in compared if distance.is_wrong]:
            return progress.finding("conversion", case=name, **told(wrong[0]))
    return None


def modules_with_state(program: ExportedProgram, node: Node) -> Iterator[LoweredBackendModule]:
    # delegates in the branches and bodies of control flow
    for source in producer_of(node).all_input_nodes:
        attribute = attribute_of(program.graph_module, str(source.target)) if source.op == "get_attr" else None
        if isinstance(attribute, GraphModule):
            for module in graph_modules(attribute):
                yield from get_lowered_backend_modules(module)


def differs(subject: LocalizeSubject, cases: Sequence[LocalizeCase]) -> bool:
    """Return whether the method as a whole differs from eager by verification's tolerance."""
    measure = Measure(subject.tolerance, strict=True)
    folder = subject.folder / "whole"
    folder.mkdir()
    with process_restored():
        runner = Runner(subject.program, folder, subject.store)
        for case in cases:
            runner.reset()
            eager = case.new_eager()
            for _ in range(CALLS):
                pairs = zip(trees.tree_leaves(eager()), runner(case.leaves), subject.rounding.outputs, strict=True)
                if any(measure.after(marks).distance(one, other).is_wrong for one, other, marks in pairs):
                    return True
    return False


def told(distance: Distance) -> dict[str, object]:
    return {"difference": distance.text, "error": distance.largest if math.isfinite(distance.largest) else None}


def inside(progress: LocalizeProgress, off: Off, module: LoweredBackendModule, measure: Measure, room: int) -> Finding:
    subject, program = progress.subject, module.original_module
    steps = steps_of(program)
    order = make_order(steps, room)
    probe = PartitionProbe(
        program,
        steps,
        DelegationSpec(module.backend_id, module.compile_specs),
        subject.partitioners.get(module.backend_id),
        off.call,
        measure,
        progress.limits,
        subject.store,
        subject.folder,
    )
    facts: dict[str, object] = {"backend": module.backend_id, "partition": off.segment.number}
    if off.refusal:
        return refused_finding(progress, probe, order, off.refusal, facts)
    number = {value: index for index, step in enumerate(steps) for value in step.values}
    results = user_output_values(program)
    returned = [results[cast("int", node.args[1])] for node, _ in off.distances]  # each node takes a single result
    wrong = [number[value] for value in returned if value in number]
    if not wrong:  # the partition returns an input
        return progress.finding("partition", **facts, **told(off.distances[0][1]))
    found = find_wrong(order, min(wrong), probe)
    if found.kind is FoundKind.UNSEEN and off.before is not None and (state := in_state(probe, order, off.before)):
        found = state
    finding, piece = describe_found(progress, probe, order, found, facts, off)
    if subject.reproduce is None or piece is None:
        return finding
    return replace(finding, reproduction=subject.reproduce(piece, probe.inputs_of(piece), module, finding))


def refused_finding(
    progress: LocalizeProgress, probe: PartitionProbe, order: Order, refusal: str, facts: Mapping[str, object]
) -> Finding:
    """Search for the operations that a backend lowered but cannot run."""

    def refuses(operations: frozenset[int], outputs: Sequence[int], *, is_cut: bool = False) -> frozenset[int] | None:
        if probe(operations, outputs, is_cut=is_cut) is not None:
            return frozenset()
        # the backend may refuse a program that no partitioner would create for an unrelated reason
        is_evidence = operations not in probe.unclaimed or probe.refusals[-1] == refusal
        return frozenset(outputs) if is_evidence else None

    found = find_refused(order, refuses, partial(refuses, is_cut=True), fixed_steps(probe.steps))
    facts = {**facts, "difference": refusal}
    if found is None:
        return progress.finding("partition", **facts)
    return progress.finding("refused", **named(progress.subject, probe.steps, found.operations), **facts)


def named(subject: LocalizeSubject, steps: Sequence[Step], operations: Sequence[int]) -> dict[str, object]:
    nodes = [steps[operation].main for operation in operations]
    return {
        "operations": tuple(map(subject.origin, nodes)),
        "places": tuple(node.meta.get(PLACE, -1) for node in nodes),
        "handles": tuple(node.meta.get("debug_handle", 0) for node in nodes),
    }


def in_state(probe: PartitionProbe, order: Order, before: RecordedCall) -> FoundOperations | None:
    """Search for wrong state from the call before, if no operation in this call is wrong by itself."""
    steps = {value: index for index, step in enumerate(probe.steps) for value in step.values}
    kept = [steps[node] for node in state_values(probe.program).values() if node in steps]
    call, probe.call = probe.call, before
    bad = None
    try:
        bad = probe(frozenset(range(len(probe.steps))), sorted(set(kept))) if kept else None
        return find_wrong(order, min(bad), probe) if bad else None
    except ExhaustedError:
        return None
    finally:
        if not bad:
            probe.call = call


def describe_found(
    progress: LocalizeProgress,
    probe: PartitionProbe,
    order: Order,
    found: FoundOperations,
    facts: dict[str, object],
    off: Off,
) -> tuple[Finding, Piece | None]:
    """Return the finding, and the operations as a separate piece, if any are named."""
    known = named(progress.subject, probe.steps, found.operations)
    wrong = [probe.distances[number] for number in found.operations if number in probe.distances]
    shown = [distance for distance in wrong if distance.is_wrong] or [off.distances[0][1]]
    facts |= told(shown[0])
    verdict = VERDICTS[found.kind]
    notes = list(search_notes(probe, found))
    if found.kind is FoundKind.UNSEEN and off.before is not None:
        verdict = "state"
    if found.kind is FoundKind.ALONE:
        (operation,) = found.operations
        facts["agree"] = agreement(order, operation, probe.distances)
        if frozenset(found.operations) in probe.unclaimed and operation not in probe.seen:
            verdict = "partition"
            op = progress.subject.origin(probe.steps[operation].main).op
            notes.append(f"{op} is off alone, but the partitioner would not give the backend {op} alone")
            known = {}
    finding = progress.finding(verdict, notes=tuple(notes), **known, **facts)
    if not found.operations:
        return finding, None
    used = {source for number in found.operations for source in order.sources[number]}
    return finding, probe.piece(found.operations, [number for number in found.operations if number not in used])


def search_notes(probe: PartitionProbe, found: FoundOperations) -> Iterator[str]:
    if found.kind in (FoundKind.AMONG, FoundKind.TOGETHER) and probe.limits.is_over():
        yield f"stopped after {probe.limits.lowerings} lowerings: a longer search may find fewer operations"
    if probe.refusals and found.kind is FoundKind.AMONG:
        yield f"the backend refused {len(probe.refusals)} smaller programs; the last refusal: {probe.refusals[-1]}"
