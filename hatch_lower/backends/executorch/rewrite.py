"""Nodes of the edge dialect as ExecuTorch sees them: its operators, and numbers as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator
from hatch_lower.torch_private.operators import OpOverload


def aten_names(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


# Their second operand may be a Python number. Of an integer ExecuTorch makes a tensor of integers, and XNNPACK takes no
# numbers: so they become operators of tensors.
BINARY: Mapping[str, OpOverload] = {
    f"aten.{name}.{overload}": getattr(torch.ops.aten, name).Tensor
    for name in ("add", "div", "mul", "sub")
    for overload in ("Scalar", "Tensor")
}

# They give their operand other sizes at most, where tensors are contiguous as all are in ExecuTorch; an `expand` only
# where it repeats nothing
SHAPED = aten_names("_unsafe_view.default clone.default expand.default reshape.default view.default")


def full_arguments(node: Node) -> tuple[Any, ...]:
    # a pool may leave out its stride, and ExecuTorch wants it written
    args = tuple(node.args)
    if str(torch_operator(node.target)) == "aten.max_pool2d.default" and (len(args) < 3 or not args[2]):
        return (*args[:2], args[1], *args[3:])
    return args


def keeps_shape(node: Node) -> bool:
    """Return whether a `SHAPED` node gives its operand's sizes."""
    source = node.all_input_nodes[0]
    # as text: to compare symbols would be to decide something about them
    return [str(size) for size in source.meta["val"].shape] == [str(size) for size in node.meta["val"].shape]
