"""Operations that the `cuda` backend leaves to the program: quantized operators, and sums of products of integers."""

from __future__ import annotations

import torch
from torch.fx import Node

from hatch_lower.backends.aoti.support import why_not_compiled
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.runtime.torch_private.operators import OpOverload


def why_not_on_gpu(node: Node, exclude: frozenset[str]) -> str:
    op = torch_operator(node.target)
    if isinstance(op, OpOverload):
        if op.namespace == "quantized_decomposed":
            return f"`{op}` computes with 8 bits, and the backend `cuda` has no kernels for quantized operators"
        if op in WITHOUT_INTEGERS and not node.meta["val"].is_floating_point():
            return f"libtorch has no `{op}` of integers on a GPU"
    return why_not_compiled(node, exclude)


WITHOUT_INTEGERS = frozenset(
    {
        torch.ops.aten.addmm.default,
        torch.ops.aten.baddbmm.default,
        torch.ops.aten.addmv.default,
        torch.ops.aten.mv.default,
        torch.ops.aten.linear.default,
        torch.ops.aten.convolution.default,
        torch.ops.aten.conv1d.default,
        torch.ops.aten.conv2d.default,
        torch.ops.aten.conv3d.default,
    }
)
