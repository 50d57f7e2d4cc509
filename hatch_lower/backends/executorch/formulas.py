"""Operations without a kernel in XNNPACK, written as several operations with kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.fx import Node

from hatch_lower.backends.executorch.norms import NORMS, Call, norm_constants, why_not_norm, write_norm
from hatch_lower.backends.executorch.softmax import (
    SAFE_SOFTMAX,
    softmax_constants,
    why_not_safe_softmax,
    write_safe_softmax,
)
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator


class Formula(NamedTuple):
    """How an operation is written as several operations."""

    # returns the reason why a node cannot be written, for any dtype
    why_not: Callable[[Node], str]
    # constants of a node's operations, by name
    constants: Callable[[Node], Mapping[str, torch.Tensor]]
    # writes the first result of a node from its constants and its translated arguments
    write: Callable[[Call, Node, Mapping[str, Node], Mapping[Node, Node]], Node]


FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys(NORMS, Formula(why_not_norm, norm_constants, write_norm)),
    str(SAFE_SOFTMAX): Formula(why_not_safe_softmax, softmax_constants, write_safe_softmax),
}


def formula_of(node: Node) -> Formula | None:
    return FORMULAS.get(str(torch_operator(node.target)))
