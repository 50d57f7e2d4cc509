"""Compile half of the `executorch` backend: a partition goes through ExecuTorch's own pipeline and becomes a `.pte`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from torch.export import ExportedProgram
from torch.fx import Graph, Node

from hatch_lower.backends.engine_partitioner import EnginePartitioner
from hatch_lower.backends.executorch.configuration import BACKEND_ID, ExecutorchOptions, executorch, parse_options
from hatch_lower.backends.executorch.formulas import SAFE_SOFTMAX
from hatch_lower.backends.executorch.pipeline import lower_partition
from hatch_lower.backends.executorch.prepare import ExecutorchCopy
from hatch_lower.backends.executorch.quantized import quantizes
from hatch_lower.backends.executorch.sizes import ARITHMETIC
from hatch_lower.backends.executorch.support import (
    IDLE,
    ExecutorchSupport,
    guards_suppressed,
    why_not_whole,
    xnnpack_partitioner,
)
from hatch_lower.backends.executorch.versions import LIMIT, REQUIREMENT
from hatch_lower.errors import BackendError, extra_hint
from hatch_lower.exir._serialize._named_data_store import CONSTANTS_TAG
from hatch_lower.exir.backend.backend_details import BackendDetails, CompileSpec, PreprocessResult
from hatch_lower.exir.backend.canonical_partitioners.graph_partitioner import KeptOperators
from hatch_lower.exir.backend.options import spec_values
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.state import constant_placeholders
from hatch_lower.runtime.torch_private.operators import OpOverload

VERSION = "13"


class ExecutorchBackend(BackendDetails):
    """Lowers a partition with ExecuTorch and XNNPACK; its delegate is `ExecutorchDelegate` of the module `run`."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        options = parse_options(spec_values(BACKEND_ID, compile_specs))
        with executorch(), guards_suppressed(edge_program):
            copied = ExecutorchCopy(edge_program)
            lowered = lower_partition(copied, finite=options.finite)
        weights = lowered.weights.external_data.get(CONSTANTS_TAG, {})
        return PreprocessResult(
            processed_bytes=lowered.data,
            debug_handle_map=lowered.handles,
            data_store_output=lowered.weights,
            suffix="pte",
            requirements=(required_to_run(installed("executorch", required=True)),),
            info={
                "threads": options.threads,
                "weights": next(iter(weights), None),
                "names": lowered.names,
                **copied.call_facts(),
            },
        )

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        return ExecutorchPartitioner(parse_options(options))

    @classmethod
    def requirements(cls, options: Mapping[str, object]) -> Sequence[str]:
        return (REQUIREMENT,)

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        # torchao, for ExecuTorch uses its passes
        return {
            "backend": VERSION,
            "executorch": installed("executorch", required=True),
            "torchao": installed("torchao"),
            "flatbuffers": installed("flatbuffers"),
        }


def installed(name: str, *, required: bool = False) -> str:
    try:
        return version(name)
    except PackageNotFoundError as error:
        if required:
            raise BackendError(
                "the backend `executorch` needs ExecuTorch, which is not installed", hint=extra_hint("executorch")
            ) from error
        return "none"


def is_called_function(node: Node) -> bool:
    return node.op == "call_function"


def is_idle(node: Node) -> bool:
    return str(torch_operator(node.target)) in IDLE or node.target in ARITHMETIC


class ExecutorchPartitioner(EnginePartitioner[ExecutorchSupport]):
    """Takes all that XNNPACK computes as eager does, and on demand operators of ExecuTorch's portable kernels."""

    def __init__(self, options: ExecutorchOptions) -> None:
        super().__init__(BACKEND_ID, options.to_specs(), asdict(options))
        self.options = options

    def reasons(self, program: ExportedProgram) -> ExecutorchSupport:
        return ExecutorchSupport(program, self.options)

    def needs_finite(self, node: Node, why_not: ExecutorchSupport) -> bool:
        return why_not.needs_finite(node)

    def computes(self, node: Node) -> bool:
        return isinstance(torch_operator(node.target), OpOverload) and not is_idle(node) and not quantizes(node)

    def groups(self, graph: Graph, why_not: ExecutorchSupport) -> Iterable[Iterable[Node]]:
        return [self.trimmed(nodes) for nodes in super().groups(graph, why_not)]

    def trimmed(self, nodes: Iterable[Node]) -> list[Node]:
        # Operations that compute nothing, at a border with an operation outside: there ExecuTorch would copy, and
        # reserve memory for, a mere view.
        kept = dict.fromkeys(nodes)
        for node in list(kept):
            sources = node.all_input_nodes
            if is_idle(node) and kept.keys().isdisjoint(sources) and any(map(is_called_function, sources)):
                del kept[node]
        for node in reversed(list(kept)):
            if is_idle(node) and kept.keys().isdisjoint(node.users) and any(map(is_called_function, node.users)):
                del kept[node]
        return list(kept)

    def idle_refusal(self, node: Node) -> str:
        return "it computes nothing, and does not stand between operations that are taken"

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        with executorch():
            originals = {
                config.get_original_aten()
                for config in xnnpack_partitioner(integers=False, finite=True).target_partitioner_configs.values()
            }
        wanted = {SAFE_SOFTMAX, *originals}
        kept = [op for op in wanted if op is not None and str(op) not in self.options.exclude]
        constants = {node.name for node in constant_placeholders(ep)}
        return sorted(kept, key=str), lambda node: not why_not_whole(node, ep, constants, finite=self.options.finite)


def required_to_run(version: str) -> str:
    """Return the requirement of a file that a version of ExecuTorch made: later runtimes read older files."""
    return f"executorch>={'.'.join(version.split('.')[:2])},<{LIMIT}"
