"""Find the operations that a backend refuses to lower, after a partition of a recipe cannot be lowered."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.cache.store import Store
from hatch_lower.exir.backend.backend_api import Cut, lower_methods
from hatch_lower.exir.backend.canonical_partitioners.all_node_partitioner import AllNodePartitioner
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.localize.partition import (
    LEAST_ROOM,
    Limits,
    Step,
    fixed_steps,
    order_of,
    piece_of,
    refusal_text,
    refuse_no_refusal,
    steps_of,
)
from hatch_lower.pipeline.localize.pieces import METHOD, lower_piece, takes_all
from hatch_lower.pipeline.localize.search import find_refused


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
    limits: Limits
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
        order = order_of(steps, LEAST_ROOM)
        limits = Limits(math.inf, most)
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
