"""What a node of an ATen or edge program gives, and whether it computes anything."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch._ops import OpOverload
from torch.fx import Node

from hatch_lower.backend.partitioners.operators import torch_operator

__all__ = ["VIEWS", "is_view", "producer_of", "tensors_of"]

VIEWS = frozenset(
    {
        "_unsafe_view",
        "alias",
        "detach",
        "expand",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    }
)
"""ATen operators that compute nothing: a partition of these alone costs more to call than to leave."""


def is_view(node: Node) -> bool:
    """Return whether a node computes nothing."""
    target = torch_operator(node.target)
    if isinstance(target, OpOverload):
        return target.namespace == "aten" and target._opname in VIEWS
    return target is operator.getitem


def producer_of(node: Node) -> Node:
    """Return the operation whose result a `getitem` takes, or the node itself."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    """Yield the fake tensors that a node gives."""
    value = node.meta.get("val")
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(each, torch.Tensor):
            yield each
