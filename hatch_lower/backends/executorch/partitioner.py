"""Which nodes become partitions: as many as XNNPACK takes, in as few convex groups as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from types import MappingProxyType

from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from hatch_lower.backends.executorch.configuration import BACKEND_ID, Options, executorch
from hatch_lower.backends.executorch.support import VIEWS, Support, float_partitioner
from hatch_lower.exir.backend.canonical_partitioners.group_partitioner import Partition
from hatch_lower.exir.backend.canonical_partitioners.grouping import group_nodes
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.backend.utils import tag_constant_data
from hatch_lower.exir.graph.surgery import graph_modules

ONLY_VIEWS = "it computes nothing, and nothing beside it is taken"


class ExecutorchPartitioner(Partitioner):
    """Takes what XNNPACK takes and gives as eager does, and on demand what ExecuTorch's portable kernels can do.

    Args:
        options: the recipe's options.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(MappingProxyType(asdict(options)))
        self.options = options

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the operations to take, those in branches of control flow too, and the constants that they use.

        Buffers that the program changes stay in the program.

        Raises:
            BackendError: if ExecuTorch is not installed.
        """
        support = Support(exported_program, self.options)
        spec = DelegationSpec(BACKEND_ID, self.options.to_specs())
        tags: dict[str, DelegationSpec] = {}
        reasons: dict[str, str] = {}
        for module in graph_modules(exported_program.graph_module):
            for partition in propose(module, support):
                tag = f"{BACKEND_ID}_{len(tags)}"
                tags[tag] = spec
                for node in partition.nodes:
                    node.meta[DELEGATION_TAG] = tag
            for node in module.graph.nodes:
                if node.op == "call_function" and DELEGATION_TAG not in node.meta:
                    reasons[node.name] = support.why(node) or ONLY_VIEWS
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags, reasons)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Return the composites that XNNPACK has kernels for."""
        with executorch():
            found = {
                config.get_original_aten()
                for config in float_partitioner(finite=True).target_partitioner_configs.values()
            }
        kept = [op for op in found if op is not None and str(op) not in self.options.exclude]
        return sorted(kept, key=str), None


def propose(module: GraphModule, support: Support) -> list[Partition]:
    """Return the partitions of one graph that compute something."""
    groups = group_nodes(module.graph, support.takes).partitions
    useful = [nodes for nodes in groups if any(computes(node) for node in nodes)]
    return [Partition(id=index, nodes=nodes) for index, nodes in enumerate(useful)]


def computes(node: Node) -> bool:
    """Return whether a node is an operation that does more than to arrange its operand anew."""
    target = torch_operator(node.target)
    return isinstance(target, OpOverload) and str(target) not in VIEWS
