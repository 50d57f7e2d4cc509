"""Which nodes become partitions: as many as XNNPACK takes, in as few convex groups as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import EnginePartitioner, Reasons
from hatch_lower.backends.executorch.configuration import BACKEND_ID, Options, executorch
from hatch_lower.backends.executorch.support import VIEWS, Support, float_partitioner
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator


class ExecutorchPartitioner(EnginePartitioner):
    """Takes what XNNPACK takes and gives as eager does, and on demand what ExecuTorch's portable kernels can do."""

    def __init__(self, options: Options) -> None:
        super().__init__(BACKEND_ID, options.to_specs(), asdict(options))
        self.options = options

    def reasons(self, program: ExportedProgram) -> Reasons:
        return Support(program, self.options).why

    def computes(self, node: Node) -> bool:
        # it does more than to arrange its operand anew
        target = torch_operator(node.target)
        return isinstance(target, OpOverload) and str(target) not in VIEWS

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        with executorch():
            originals = {
                config.get_original_aten()
                for config in float_partitioner(finite=True).target_partitioner_configs.values()
            }
        kept = [op for op in originals if op is not None and str(op) not in self.options.exclude]
        return sorted(kept, key=str), None
