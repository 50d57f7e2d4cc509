"""Which nodes become ONNX models: those that ONNX Runtime computes as eager does, in as few groups as possible."""

from __future__ import annotations

import operator
from types import MappingProxyType

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from hatch_lower.backends.onnxruntime.options import Options
from hatch_lower.backends.onnxruntime.probe import Prober
from hatch_lower.backends.onnxruntime.support import KEPT, is_size, why_not
from hatch_lower.exir.backend.canonical_partitioners.graph_partitioner import KeptOperators, SupportPartitioner
from hatch_lower.exir.backend.canonical_partitioners.group_partitioner import Partition
from hatch_lower.exir.backend.canonical_partitioners.nodes import Ranges, is_view
from hatch_lower.exir.backend.partitioner import DelegationSpec, PartitionResult
from hatch_lower.exir.backend.utils import WhyNoPartitionReporter, tag_constant_data

BACKEND_ID = "onnxruntime"
ONLY_VIEWS = "it computes nothing, and nothing beside it is taken"
ONLY_SIZES = "it computes a size of what is outside"


class OnnxruntimePartitioner(SupportPartitioner):
    """Takes what torch's exporter translates, ONNX Runtime has kernels for, and tests have shown to equal eager.

    Args:
        options: the recipe's options.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(BACKEND_ID, options.to_specs(), self.takes)
        facts = {"providers": options.providers, "threads": options.threads, "exclude": options.exclude}
        self._spec = MappingProxyType({**facts, "finite-only": options.finite})
        self._exclude, self._finite = frozenset(options.exclude), options.finite
        self._prober = Prober()
        self._why: dict[Node, str] = {}
        self._ranges: Ranges = {}

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        """Return the composites that stay whole where they are taken."""
        return list(KEPT), lambda node: not self._why_not(node, ep.range_constraints)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the operations to take and the constants that they use; buffers that the program changes stay outside."""
        self._why.clear()
        self._ranges = exported_program.range_constraints
        tags: dict[str, DelegationSpec] = {}
        reasons = WhyNoPartitionReporter()
        self.tag_graph(exported_program.graph_module, tags, reasons)
        tag_constant_data(exported_program)
        self._why.clear()
        return PartitionResult(exported_program, tags, reasons.reasons)

    def takes(self, node: Node) -> bool:
        """Return whether a node is taken. A size is, where it is one of what is taken: it may be needed there, too."""
        if node not in self._why:
            self._why[node] = self._judge(node)
        return not self._why[node]

    def _judge(self, node: Node) -> str:
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, Node)
            return self._why.get(source, ONLY_VIEWS)
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
            inside = is_size(node) and any(self._why.get(source) == "" for source in node.all_input_nodes)
            return "" if inside else ONLY_SIZES
        return self._why_not(node, self._ranges) or self._prober.why_not(node)

    def _why_not(self, node: Node, ranges: Ranges) -> str:
        return why_not(node, self._exclude, finite=self._finite, ranges=ranges)

    def propose(self, graph_module: GraphModule, reasons: WhyNoPartitionReporter) -> list[Partition]:
        """Return the partitions that compute something."""
        found = super().propose(graph_module, reasons)
        kept = [each for each in found if any(not is_view(node) and not is_size(node) for node in each.nodes)]
        for partition in found:
            if partition not in kept:
                for node in partition.nodes:
                    reasons.report_reject(node, ONLY_VIEWS)
        return kept

    def refusal(self, node: Node) -> str:
        """Return the reason that was found for an operation."""
        return self._why.get(node) or ONLY_VIEWS
