"""Checks of a backend's partitioning: tags, in linear time, and a debug map that covers every operation."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.backends.testing.bench import Bench, warnings_ignored
from hatch_lower.backends.testing.case import Case, Data, Fault, KitModule, NotClaimedError, module
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG
from hatch_lower.exir.graph.canonical import structure_digest
from hatch_lower.exir.graph.nodes import result_tensors
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.graph.surgery import all_nodes, copy_program
from hatch_lower.exir.graph.tensors import tensor_digests
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule

SAMPLE = ("operators/fused", "operators/perceptron", "constants/every kind", "state/counted", "control flow/cond")
STEPS = 8
LIMIT = 2.6  # ratio of extra work for four and two times the program: 2 is linear, 4 is quadratic


def check_graph_is_left(bench: Bench, cases: Sequence[Case]) -> str:
    """Partition programs twice, and compare the programs and their metadata with the originals."""
    chosen = [case for case in cases if case.name in SAMPLE] or list(cases[:1])
    for case in chosen:
        first, second = copy_program(bench.edge(case)), copy_program(bench.edge(case))
        before = description(first)
        with warnings_ignored():
            first_result = bench.partitioner().partition(first)
            second_result = bench.partitioner().partition(second)
        if first_result.tagged_exported_program is not first or description(first) != before:
            raise Fault(f"`{case.name}`: the partitioner changes the program apart from its tags")
        answers = [
            (tags_of(program), result.partition_tags, result.reasons)
            for program, result in ((first, first_result), (second, second_result))
        ]
        if answers[0] != answers[1]:
            raise Fault(f"`{case.name}`: a second partitioner partitions the same program differently")
    return f"{len(chosen)} programs"


def description(program: ExportedProgram) -> object:
    nodes = [
        (node.name, node.op, str(node.target), sorted(set(node.meta) - {DELEGATION_TAG}), node.meta.get("debug_handle"))
        for node in all_nodes(program.graph_module)
    ]
    state = tensor_digests(constant_of(program, spec) for spec in constant_specs(program))
    return structure_digest(program), nodes, list(state), program.graph_module.code


def tags_of(program: ExportedProgram) -> list[tuple[str, object]]:
    return [(node.name, node.meta.get(DELEGATION_TAG)) for node in all_nodes(program.graph_module)]


def check_linear(bench: Bench, cases: Sequence[Case]) -> str:
    """Count a partitioner's interpreter steps for a program, and for twice and four times the program."""
    counts = [steps_for(bench, size * STEPS) for size in (1, 2, 4)]
    growth = (counts[2] - counts[1]) / max(counts[1] - counts[0], 1)
    if growth > LIMIT:
        raise Fault(f"partitioning takes {counts[0]}, {counts[1]} and {counts[2]} steps for 1, 2 and 4 times a program")
    return f"{counts[0]}, {counts[1]} and {counts[2]} steps for 1, 2 and 4 times a program"


def long(self: KitModule, x: Tensor, count: int) -> Tensor:
    # operators that many backends take, with operators between that few take
    for _ in range(count):
        x = torch.relu(x * self.scale + x) + 1
        x = torch.sin(x) @ self.weight
        x = torch.cumsum(x, 0)
    return x


def steps_for(bench: Bench, count: int) -> int:
    def make(data: Data) -> KitModule:
        weights = {"scale": torch.nn.Parameter(data.draw(4)), "weight": torch.nn.Parameter(data.draw(4, 4))}
        return module(lambda self, x: long(self, x, count), **weights)

    case = Case(f"long/{count}", make, lambda data: ((data.draw(4, 4),),))
    program = copy_program(bench.edge(case))
    partitioner = bench.partitioner()
    with warnings_ignored(), counted() as steps:
        partitioner.partition(program)
    return steps[0]


@contextmanager
def counted() -> Iterator[list[int]]:
    steps = [0]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            steps[0] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(before)


def check_handles(bench: Bench, cases: Sequence[Case]) -> str:
    """Compare the handles of the operations of all partitions with the handles in their debug maps."""
    claimed = bench.claimed(cases)
    with_map, without = 0, []
    for case in claimed:
        for partition in bench.partitions(case):
            given = (partition.meta or {}).get("debug_handle_map")
            if given is None:
                without.append(case.name)
                continue
            with_map += 1
            compare_handles(case, partition, {handle for handles in given.values() for handle in handles})
    if not with_map:
        raise NotClaimedError("the backend takes no operation" if not claimed else "the backend gives no debug map")
    if without:
        raise Fault(f"`{without[0]}`: a partition has no debug map, where other partitions have a map")
    return f"{with_map} partitions"


def compare_handles(case: Case, partition: LoweredBackendModule, told: set[int]) -> None:
    nodes: dict[int, Node] = {}
    needed: set[int] = set()
    for node in all_nodes(partition.original_module.graph_module):
        handle = node.meta.get("debug_handle")
        if node.op == "call_function" and handle:
            nodes.setdefault(handle, node)
            if list(result_tensors(node)):  # size arithmetic may have no instruction in a delegate
                needed.add(handle)
    lost = sorted(needed - told)
    if lost:
        raise Fault(f"`{case.name}`: no instruction of the debug map computes `{nodes[lost[0]].name}`")
    foreign = sorted(told - set(nodes))
    if foreign:
        raise Fault(f"`{case.name}`: the debug map names the handle {foreign[0]}, which no operation inside has")
