"""Which nodes become OpenVINO models: as many as possible, in as few convex groups as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from hatch_lower.backends.openvino.claims import KEPT_OPERATORS
from hatch_lower.backends.openvino.options import Options
from hatch_lower.backends.openvino.support import (
    Support,
    arguments,
    is_move,
    is_result,
    is_square,
    why_not_operation,
)
from hatch_lower.exir.backend.canonical_partitioners.grouping import group_nodes
from hatch_lower.exir.backend.canonical_partitioners.nodes import Ranges
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.backend.utils import tag_constant_data, unchanged_constants
from hatch_lower.exir.graph.surgery import nested_graph_modules

BACKEND_ID = "openvino"
ONLY_MOVES = "it only moves values, and nothing beside it is taken"


class OpenvinoPartitioner(Partitioner):
    """Takes what OpenVINO computes as eager does.

    Args:
        options: the recipe's options.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(asdict(options))
        self.options = options

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag operations, those in branches and bodies of control flow too, and the constants that they use.

        Buffers that a call changes stay in the program.
        """
        tags: dict[str, DelegationSpec] = {}
        reasons: dict[str, str] = {}
        constants = unchanged_constants(exported_program)
        pending = [exported_program.graph_module]
        while pending:
            module = pending.pop()
            support = Support(module.graph, self.options, constants, exported_program.range_constraints)
            self._tag(module, support, tags, reasons)
            pending += [nested for _, nested in nested_graph_modules(module)]
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags, reasons)

    def _tag(
        self,
        module: GraphModule,
        support: Support,
        tags: dict[str, DelegationSpec],
        reasons: dict[str, str],
    ) -> None:
        for nodes in group_nodes(module.graph, lambda node: not support.why_not(node)).partitions:
            if all(is_move(node) or is_result(node) for node in nodes):
                reasons.update({node.name: ONLY_MOVES for node in nodes})
                continue
            tag = f"{BACKEND_ID}_{len(tags)}"
            tags[tag] = DelegationSpec(BACKEND_ID, self.options.to_specs())
            for node in nodes:
                node.meta[DELEGATION_TAG] = tag
        for node in module.graph.nodes:
            if node.op == "call_function" and DELEGATION_TAG not in node.meta:
                reasons.setdefault(node.name, support.why_not(node))

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Return the composites that OpenVINO has kernels for, where it takes them.

        A linear layer whose weight is square, and computed or a view, is decomposed: whether it is taken, only the edge
        program shows.
        """
        return list(KEPT_OPERATORS), lambda node: self._keeps(node, ep.range_constraints)

    def _keeps(self, node: Node, ranges: Ranges) -> bool:
        weight = arguments(node).get("weight")
        if isinstance(weight, Node) and weight.op == "call_function" and is_square(weight, "aten.linear.default"):
            return False
        return not why_not_operation(node, self.options, ranges)
