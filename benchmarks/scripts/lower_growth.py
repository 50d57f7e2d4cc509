"""`lower_growth.py SIZE…`: CPU seconds of partitioning and lowering chains of SIZE operations, as JSON by size.

Every tenth of a chain's operations begins a partition of five; the backend does nothing. In a process of its own, for
Python's garbage collector walks through whatever else is in memory.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph
from torch.utils import _pytree as pytree

from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.dialects._ops import edge_overload
from hatch_lower.exir.dialects.edge.verify import EdgeVerifier

ROUNDS = 3
EVERY, TAKEN = 10, 5


class EmptyBackend(BackendDetails):
    """Its blob is empty."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return PreprocessResult(b"")


class Blocks(Partitioner):
    """Takes the first half of each block of ten operations."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags = {}
        operations = [node for node in exported_program.graph.nodes if node.op == "call_function"]
        for number, node in enumerate(operations):
            if number % EVERY < TAKEN:
                tag = f"block_{number // EVERY}"
                node.meta["delegation_tag"] = tag
                tags[tag] = DelegationSpec("EmptyBackend", [])
        return PartitionResult(exported_program, tags)


def edge_chain(length: int) -> ExportedProgram:
    """Return the edge program of a chain, made without torch.export, which is slow for long ones."""
    graph = Graph()
    with FakeTensorMode():
        value = torch.empty(2)
    node = graph.placeholder("x")
    node.meta["val"] = value
    operators = [edge_overload(op) for op in (torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor)]
    for index in range(length):
        node = graph.call_function(operators[index % 2], (node, 1.0 if index % 2 else 1.5))
        node.meta.update(val=value, debug_handle=index + 1)
    graph.output((node,))
    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, TensorArgument("x"), None)],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None)],
    )
    specs = [pytree.tree_flatten(value)[1] for value in (((0,), {}), 0)]
    entry = ModuleCallEntry("", ModuleCallSignature([], [], *specs))
    return ExportedProgram({}, graph, signature, {}, {}, [entry], verifiers=[EdgeVerifier])


def measure(length: int) -> float:
    """Return the median CPU seconds over some rounds."""
    program = edge_chain(length)
    times = []
    for _ in range(ROUNDS):
        gc.collect()
        begin = time.process_time()
        lowered = to_backend(program, Blocks())
        times.append(time.process_time() - begin)
        assert len(list(lowered.graph_module.children())) == -(-length // EVERY)
        del lowered
    return statistics.median(times)


measure(100)
print(json.dumps({size: measure(int(size)) for size in sys.argv[1:]}))
