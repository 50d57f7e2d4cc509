"""Grouping of supported nodes: growth with the graph, and torch's own partitioner beside it where that ends in time."""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra import partitioner as torch_partitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from hatch_lower.exir.backend.canonical_partitioners.group_partitioner import (
    CapabilityBasedPartitioner,
    GroupBasedPartitioner,
)
from hatch_lower.exir.backend.canonical_partitioners.patterns import find_pattern

SIZES = (2000, 4000, 8000, 16000, 32000)
SMALL_SIZES = (250, 500, 1000)
EVERY = 20


class Cosines(OperatorSupportBase):
    """Supports all but every twentieth node of the chain."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        return node.target is torch.cos


def chain(length: int) -> GraphModule:
    """Return a chain of operations, every twentieth unsupported."""
    graph = Graph()
    node = graph.placeholder("x")
    for index in range(length):
        node = graph.call_function(torch.sin if index % EVERY == EVERY - 1 else torch.cos, (node,))
    graph.output(node)
    return GraphModule(torch.nn.Module(), graph)


def groups_of(module: GraphModule) -> list[list[Node]]:
    """Return groups of four neighbours, one in each partition."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    return [nodes[start : start + 4] for start in range(0, len(nodes) - 4, EVERY)]


def cpu_seconds(action: Callable[[], object], rounds: int = 5) -> float:
    """Return the least CPU time of an action over some rounds."""
    times = []
    for _ in range(rounds):
        gc.collect()
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


def exponent(seconds: Mapping[int, float]) -> float:
    """Return the power of the size with which times grow, by least squares over logarithms."""
    points = [(math.log(size), math.log(each)) for size, each in seconds.items()]
    x, y = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def listed(seconds: Mapping[int, float]) -> str:
    """Return times in milliseconds by size."""
    return ", ".join(f"{size}: {each * 1e3:.0f} ms" for size, each in seconds.items())


def propose(partitioner: Callable[..., Any], module: GraphModule, **options: Any) -> int:
    """Return how many partitions a partitioner proposes."""
    return len(partitioner(module, Cosines(), True, **options).propose_partitions())


@pytest.mark.benchmark(group="grouping")
@pytest.mark.parametrize("kind", ["capability", "group"])
def test_growth(bench: Any, kind: str) -> None:
    seconds = {}
    for size in SIZES:
        module = chain(size)
        options = {"node_groups": groups_of(module)} if kind == "group" else {}
        partitioner = GroupBasedPartitioner if kind == "group" else CapabilityBasedPartitioner
        assert propose(partitioner, module, **options) == size // EVERY
        seconds[size] = cpu_seconds(lambda: propose(partitioner, module, **options))  # noqa: B023
    largest = chain(SIZES[-1])
    options = {"node_groups": groups_of(largest)} if kind == "group" else {}
    bench.benchmark.pedantic(lambda: propose(partitioner, largest, **options), rounds=3)
    power = exponent(seconds)
    bench.report(
        f"grouping partitioner ({kind}), N = {SIZES[0]} to {SIZES[-1]}",
        f"exponent {power:.2f} ({listed(seconds)})",
        "exponent <= 1.2 (torch's own: 2.7)",
        exponent=power,
        **{f"seconds_{size}": each for size, each in seconds.items()},
    )


@pytest.mark.benchmark(group="grouping")
def test_beside_torch(bench: Any) -> None:
    ours, theirs = {}, {}
    for size in SMALL_SIZES:
        module = chain(size)
        count = propose(torch_partitioner.CapabilityBasedPartitioner, module)
        assert propose(CapabilityBasedPartitioner, module) <= count
        ours[size] = cpu_seconds(lambda: propose(CapabilityBasedPartitioner, module))  # noqa: B023
        theirs[size] = cpu_seconds(lambda: propose(torch_partitioner.CapabilityBasedPartitioner, module), 1)  # noqa: B023
    last = chain(SMALL_SIZES[-1])
    bench.benchmark.pedantic(lambda: propose(CapabilityBasedPartitioner, last), rounds=5)
    ratio = theirs[SMALL_SIZES[-1]] / ours[SMALL_SIZES[-1]]
    bench.report(
        f"grouping, torch's CapabilityBasedPartitioner, N = {SMALL_SIZES[-1]}",
        f"{ratio:.0f} x faster (ours {listed(ours)}; torch {listed(theirs)}, exponent {exponent(theirs):.2f})",
        "faster",
        ratio=ratio,
        torch_exponent=exponent(theirs),
    )


@pytest.mark.benchmark(group="grouping")
def test_memory(bench: Any) -> None:
    module = chain(SIZES[-1])
    propose(CapabilityBasedPartitioner, module)
    tracemalloc.start()
    propose(CapabilityBasedPartitioner, module)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    bench.benchmark.pedantic(lambda: propose(CapabilityBasedPartitioner, module), rounds=1)
    bench.report(
        f"grouping, peak memory, N = {SIZES[-1]}",
        f"{peak / 2**20:.0f} MiB, {peak / SIZES[-1]:.0f} bytes a node",
        "linear (torch's own: 71 MiB at N = 2000)",
        peak_bytes=peak,
    )


@pytest.mark.benchmark(group="grouping")
def test_patterns(bench: Any) -> None:
    pattern = Graph()
    node = pattern.placeholder("x")
    for function in (torch.cos, torch.cos, torch.sin):
        node = pattern.call_function(function, (node,))
    pattern.output(node)
    seconds = {}
    for size in SIZES:
        graph = chain(size).graph
        assert len(find_pattern(graph, pattern)) == size // EVERY
        seconds[size] = cpu_seconds(lambda: find_pattern(graph, pattern))  # noqa: B023
    bench.benchmark.pedantic(lambda: find_pattern(graph, pattern), rounds=3)
    power = exponent(seconds)
    bench.report(
        f"finding a pattern, N = {SIZES[0]} to {SIZES[-1]}",
        f"exponent {power:.2f} ({listed(seconds)})",
        "exponent <= 1.2",
        exponent=power,
    )
