"""Which nodes become OpenVINO models: as many as possible, in as few convex groups as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import EnginePartitioner, Reasons
from hatch_lower.backends.openvino.claims import KEPT_OPERATORS
from hatch_lower.backends.openvino.options import BACKEND_ID, Options
from hatch_lower.backends.openvino.support import (
    Support,
    is_move,
    is_result,
    is_square,
    why_not_operation,
)
from hatch_lower.exir.backend.canonical_partitioners.nodes import Ranges
from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments
from hatch_lower.exir.backend.utils import unchanged_constants
from hatch_lower.exir.graph.surgery import graph_modules


class OpenvinoPartitioner(EnginePartitioner):
    def __init__(self, options: Options) -> None:
        super().__init__(BACKEND_ID, options.to_specs(), asdict(options))
        self.options = options

    def reasons(self, program: ExportedProgram) -> Reasons:
        constants = unchanged_constants(program)
        supports = {
            module.graph: Support(module.graph, self.options, constants, program.range_constraints)
            for module in graph_modules(program.graph_module)
        }
        return lambda node: supports[node.graph].why_not(node)

    def computes(self, node: Node) -> bool:
        return not is_move(node) and not is_result(node)

    def idle_refusal(self, node: Node) -> str:
        return "it only moves values, and nothing beside it is taken"

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        return list(KEPT_OPERATORS), lambda node: self._keeps(node, ep.range_constraints)

    def _keeps(self, node: Node, ranges: Ranges) -> bool:
        weight = named_arguments(node).get("weight")
        if isinstance(weight, Node) and weight.op == "call_function" and is_square(weight, "aten.linear.default"):
            return False  # whether it is taken, only the edge program shows
        return not why_not_operation(node, self.options, ranges)
