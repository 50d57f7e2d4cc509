"""The backend layer beside ExecuTorch 1.4.1: CPU time, growth and memory, with backends that do nothing.

CPU time is `time.process_time`, so other work on the machine counts little. What needs ExecuTorch is skipped where it
is not installed: `pip install executorch==1.4.1`.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.program._program import to_edge

SIZES = (2000, 4000, 8000, 16000, 32000)


class EmptyBackend(BackendDetails):
    """Its blob is empty."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return PreprocessResult(b"")


@pytest.fixture(scope="module")
def executorch() -> SimpleNamespace:
    """ExecuTorch's functions, and an empty backend for it; its warnings are its own."""
    if find_spec("executorch") is None:
        pytest.skip("executorch==1.4.1 is not installed: nothing to compare with")
    with quiet():
        from executorch import exir
        from executorch.exir.backend.backend_api import to_backend as lower
        from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
        from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

    class EmptyPeer(BackendDetails):  # type: ignore[misc]
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> Any:
            return PreprocessResult(b"")

    return SimpleNamespace(
        to_edge=exir.to_edge,
        to_backend=lower,
        backend=EmptyPeer,
        partitioner=partitioner_class(Partitioner, PartitionResult, DelegationSpec, "EmptyPeer"),
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Let a peer warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def partitioner_class(base: Any, result: Any, delegation: Any, backend: str) -> Any:
    """Return a partitioner of either side: equal blocks of operations, the first half of each taken."""

    class Blocks(base):  # type: ignore[misc]
        def __init__(self, nodes: int, partitions: int) -> None:
            super().__init__()
            self.nodes, self.partitions = nodes, partitions

        def partition(self, exported_program: Any) -> Any:
            tags = {}
            numbers = count()
            for node in exported_program.graph.nodes:
                if node.op == "call_function":
                    number = next(numbers)
                    block = number * self.partitions // self.nodes
                    begin, end = (-(-each * self.nodes // self.partitions) for each in (block, block + 1))
                    if number < begin + max(1, (end - begin) // 2):
                        tag = f"block_{block}"
                        node.meta["delegation_tag"] = tag
                        tags[tag] = delegation(backend, [])
            return result(exported_program, tags)

    return Blocks


Blocks = partitioner_class(Partitioner, PartitionResult, DelegationSpec, "EmptyBackend")


class Chain(torch.nn.Module):
    """Additions and multiplications by turns, each on the result before it."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(self.length):
            x = x + 1.0 if index % 2 else x * 1.5
        return x


def cpu_seconds(action: Callable[[], object], rounds: int = 1) -> float:
    """Return the median CPU time of an action over some rounds."""
    times = []
    for _ in range(rounds):
        gc.collect()
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def exponent(points: Iterable[tuple[float, float]]) -> float:
    """Return the power with which the second number of each point grows with the first, by least squares."""
    logs = [(math.log(size), math.log(each)) for size, each in points]
    x, y = (sum(point[axis] for point in logs) / len(logs) for axis in (0, 1))
    return sum((a - x) * (b - y) for a, b in logs) / sum((a - x) ** 2 for a, _ in logs)


@pytest.mark.benchmark(group="backend layer")
@pytest.mark.parametrize(("nodes", "partitions", "goal"), [(1000, 50, ">= 5 x"), (1000, 400, ">= 50 x")])
def test_lower_a_chain(bench: Any, executorch: SimpleNamespace, nodes: int, partitions: int, goal: str) -> None:
    exported = torch.export.export(Chain(nodes), (torch.ones(2),), strict=False)
    program = to_edge(exported).exported_program()
    lowered = to_backend(program, Blocks(nodes, partitions))
    assert len(list(lowered.graph_module.children())) == partitions
    ours = cpu_seconds(lambda: to_backend(program, Blocks(nodes, partitions)), 5)
    bench.benchmark.pedantic(lambda: to_backend(program, Blocks(nodes, partitions)), rounds=3)
    with quiet():
        peer = executorch.to_edge(exported).exported_program()
        theirs = cpu_seconds(lambda: executorch.to_backend(peer, executorch.partitioner(nodes, partitions)))
    bench.report(
        f"partition and lower a chain, N = {nodes}, P = {partitions}",
        f"{theirs / ours:.0f} x faster ({ours:.3f} s; ExecuTorch {theirs:.1f} s CPU)",
        goal,
        ours=ours,
        theirs=theirs,
        ratio=theirs / ours,
    )


@pytest.mark.benchmark(group="backend layer")
def test_growth(bench: Any) -> None:
    reports: list[dict[str, float]] = []
    bench.benchmark.pedantic(lambda: reports.append(bench.script("lower_growth.py", *map(str, SIZES))), rounds=1)
    seconds = reports[0]
    power = exponent((float(size), each) for size, each in seconds.items())
    listed = ", ".join(f"{size}: {each:.2f} s" for size, each in seconds.items())
    bench.report(
        f"growth, N = {SIZES[0]}, P = {SIZES[0] // 10} to N = {SIZES[-1]}, P = {SIZES[-1] // 10}",
        f"exponent {power:.2f} ({listed})",
        "exponent <= 1.15",
        exponent=power,
        **{f"seconds_{size}": each for size, each in seconds.items()},
    )


def bert() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return an encoder of BERT-base's size, 12 layers, and its input."""
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(), add_pooling_layer=False), (torch.arange(128).reshape(1, 128) + 1000,)


def llama() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a Llama of 12 layers, and its input."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
        vocab_size=32000,
        use_cache=False,
    )
    return LlamaModel(config), (torch.arange(128).reshape(1, 128) + 1000,)


class FirstResult(torch.nn.Module):
    """Returns the last hidden state of a transformer."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return it: int64 [1, 128] to float32 [1, 128, 768]."""
        found: torch.Tensor = self.model(input_ids=tokens, return_dict=False)[0]
        return found


MODELS: Mapping[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]] = {
    "BERT-base": bert,
    "Llama": llama,
}


@pytest.mark.benchmark(group="backend layer")
@pytest.mark.parametrize("name", list(MODELS))
def test_to_edge(bench: Any, executorch: SimpleNamespace, name: str) -> None:
    with quiet():
        model, args = MODELS[name]()
        exported = torch.export.export(FirstResult(model).eval(), args, strict=False)
        to_edge(exported)
        ours = cpu_seconds(lambda: to_edge(exported), 3)
        bench.benchmark.pedantic(lambda: to_edge(exported), rounds=1)
        itself = cpu_seconds(lambda: exported.run_decompositions(), 3)
        executorch.to_edge(torch.export.export(Chain(3), (torch.ones(2),), strict=False))
        theirs = cpu_seconds(lambda: executorch.to_edge(exported), 2)
    bench.report(
        f"to_edge, {name} of 12 layers",
        f"{theirs / ours:.2f} x faster ({ours:.2f} s, of which torch {itself:.2f} s; ExecuTorch {theirs:.2f} s CPU)",
        ">= 2.5 x",
        ours=ours,
        theirs=theirs,
        decompositions=itself,
        ratio=theirs / ours,
    )


@pytest.mark.benchmark(group="backend layer")
@pytest.mark.parametrize(
    ("case", "measure", "goal"),
    [
        ("heavy", "peak memory, 1 GiB of weights, two methods, 8 partitions each, all delegated", "<= 1.05"),
        ("shared", "peak memory, one 64 MiB weight with 32 users in 2 partitions", "<= 1.1"),
    ],
)
def test_peak_memory(bench: Any, case: str, measure: str, goal: str) -> None:
    reports: list[dict[str, Any]] = []
    bench.benchmark.pedantic(lambda: reports.append(in_fresh_process(bench, case, "ours")), rounds=1)
    ours = reports[0]
    text = f"{ours['ratio']:.3f} of the weights"
    figures = {"ratio": ours["ratio"]}
    peer = peer_report(bench, case)
    if peer is not None:
        text += f" (ExecuTorch {peer['ratio']:.2f})"
        figures["theirs"] = peer["ratio"]
    bench.report(measure, text, goal, **figures)


@pytest.mark.benchmark(group="backend layer")
def test_nothing_is_retained(bench: Any) -> None:
    reports: list[dict[str, Any]] = []
    bench.benchmark.pedantic(lambda: reports.append(in_fresh_process(bench, "retained", "ours")), rounds=1)
    ours = reports[0]
    text = f"{ours['alive']} of {ours['weights']} weights, {ours['more'] / 2**20:.0f} MiB"
    peer = peer_report(bench, "retained")
    if peer is not None:
        text += f" (ExecuTorch {peer['alive']} of {peer['weights']}, {peer['more'] / 2**20:.0f} MiB)"
    bench.report(
        "retained after del, ten models of 64 MiB in a row", text, "nothing", alive=ours["alive"], more=ours["more"]
    )


def peer_report(bench: Any, case: str) -> dict[str, Any] | None:
    """Return ExecuTorch's figures, or `None` where it is not installed."""
    return None if find_spec("executorch") is None else in_fresh_process(bench, case, "executorch")


def in_fresh_process(bench: Any, case: str, side: str) -> dict[str, Any]:
    """Return the figures of one side; freed tensors go back to the system at once, so that what is left is in use."""
    variables = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    report: dict[str, Any] = bench.script("lower_memory.py", case, side, environment=variables)
    return report
