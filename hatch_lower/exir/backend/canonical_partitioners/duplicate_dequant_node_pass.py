"""A dequantization for each use, so that partitions of `dq → op → q` share no node."""

from __future__ import annotations

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from hatch_lower.exir.dialects._ops import ops
from hatch_lower.exir.pass_base import ExportPass


class DuplicateDequantNodePass(ExportPass):
    """Gives each user of a `dequantize_per_tensor` but the first a copy of the node, in place."""

    def call(self, mod: GraphModule) -> PassResult:
        target = ops.edge.quantized_decomposed.dequantize_per_tensor.default
        modified = False
        for node in mod.graph.find_nodes(op="call_function", target=target):
            for user in list(node.users)[1:]:
                with mod.graph.inserting_before(user):
                    copied = mod.graph.node_copy(node)
                user.replace_input_with(node, copied)
                modified = True
        mod.recompile()
        return PassResult(mod, modified)
