"""Indices that eager refuses if they are negative, for engines that count such ones from the end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

__all__ = ["INDEX_POSITIONS", "without_negatives"]

aten = torch.ops.aten
INDEX_POSITIONS: Mapping[OpOverload, int] = MappingProxyType(
    {
        aten.embedding.default: 1,
        aten.gather.default: 2,
        aten.index_select.default: 2,
        aten.scatter.src: 2,
        aten.scatter.value: 2,
        aten.scatter_add.default: 2,
        aten.scatter_reduce.two: 2,
    }
)
"""Operators that take no negative index, and the position of their indices."""


def without_negatives(index: Node) -> tuple[tuple[OpOverload, int], ...]:
    """Return the operators, each with its number, that make a negative index larger than any size, and thus refused."""
    value: Any = index.meta["val"]
    return (aten.clamp.default, -1), (aten.bitwise_and.Scalar, torch.iinfo(value.dtype).max)
