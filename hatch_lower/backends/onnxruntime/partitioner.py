"""Which nodes become ONNX models: those that ONNX Runtime computes as eager does, in as few groups as possible."""

from __future__ import annotations

import operator
from collections.abc import Hashable

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import EnginePartitioner, Reasons
from hatch_lower.backends.onnxruntime.options import BACKEND_ID, Options
from hatch_lower.backends.onnxruntime.probe import signature, try_call
from hatch_lower.backends.onnxruntime.support import (
    KEPT,
    differs_for_nan,
    is_size,
    why_not,
    why_not_bias,
    why_not_zero_points,
)
from hatch_lower.exir.backend.canonical_partitioners.graph_partitioner import KeptOperators
from hatch_lower.exir.backend.canonical_partitioners.nodes import Ranges, is_view
from hatch_lower.exir.graph.state import constant_of, constant_placeholders, mutated_targets

ONLY_SIZES = "it computes a size of what is outside"


class OnnxruntimePartitioner(EnginePartitioner[Reasons]):
    """Takes what torch's exporter translates, ONNX Runtime has kernels for, and tests have shown to equal eager."""

    def __init__(self, options: Options) -> None:
        facts = {"providers": options.providers, "threads": options.threads, "exclude": options.exclude}
        super().__init__(BACKEND_ID, options.to_specs(), {**facts, "finite-only": options.finite})
        self._exclude, self._finite = frozenset(options.exclude), options.finite
        self._tried: dict[Hashable, str] = {}  # what came of each kind of call

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        return list(KEPT), lambda node: not self._why_not(node, ep.range_constraints)

    def reasons(self, program: ExportedProgram) -> Reasons:
        # a size is taken where it is one of what is taken: it may be needed there
        known: dict[Node, str] = {}
        mutated = mutated_targets(program)
        constants = {
            node: constant_of(program, spec)
            for node, spec in constant_placeholders(program).items()
            if spec.target not in mutated
        }

        def judge(node: Node) -> str:
            if node.target is operator.getitem and isinstance(node.args[0], Node):
                return reason_of(node.args[0])
            if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
                inside = is_size(node) and any(known.get(source) == "" for source in node.all_input_nodes)
                return "" if inside else ONLY_SIZES
            reason = self._why_not(node, program.range_constraints)
            reason = reason or why_not_zero_points(node, constants) or why_not_bias(node, constants)
            return reason or self._why_not_tried(node)

        def reason_of(node: Node) -> str:
            if node not in known:
                known[node] = judge(node)
            return known[node]

        return reason_of

    def _why_not(self, node: Node, ranges: Ranges) -> str:
        return why_not(node, self._exclude, finite=self._finite, ranges=ranges)

    def _why_not_tried(self, node: Node) -> str:
        key = signature(node)
        if key not in self._tried:
            self._tried[key] = try_call(node)
        return self._tried[key]

    def needs_finite(self, node: Node, why_not: Reasons) -> bool:
        return differs_for_nan(node)

    def computes(self, node: Node) -> bool:
        return not is_view(node) and not is_size(node)
