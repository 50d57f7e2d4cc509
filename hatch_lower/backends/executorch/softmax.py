"""Softmax of rows that may be masked as a whole, written with the operations that XNNPACK has kernels for.

torch gives zeros for a row of which every element is -inf. Its own decomposition compares elements and chooses by the
answer, for which XNNPACK has no kernels: each attention would be cut in two.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import arguments_of
from hatch_lower.backends.executorch.norms import Call

SAFE_SOFTMAX = torch.ops.aten._safe_softmax.default
LOWEST = torch.finfo(torch.float32).min
STEP = 2.0**106  # four units in the last place of the lowest number


def why_not_safe_softmax(node: Node) -> str:
    """Return why XNNPACK cannot compute a safe softmax; dtypes are checked elsewhere."""
    given = arguments_of(node)
    rank = given["self"].meta["val"].dim()
    if not rank or given["dim"] % rank != rank - 1:
        return f"XNNPACK computes `{SAFE_SOFTMAX}` along the last dimension only"
    return ""


def softmax_constants(node: Node) -> dict[str, torch.Tensor]:
    return {"step": torch.tensor(STEP, dtype=torch.float32), "highest": torch.tensor(-LOWEST, dtype=torch.float32)}


def write_safe_softmax(call: Call, node: Node, constants: Mapping[str, Node], values: Mapping[Node, Node]) -> Node:
    """Write such a node by calls of operators; `values` maps its arguments to their translations."""
    aten = torch.ops.aten
    scores = values[arguments_of(node)["self"]]
    # -inf becomes the lowest number, and numbers near the lowest become the next steps above
    least = call(aten.clamp.default, call(aten.add.Tensor, scores, constants["step"]), LOWEST, LOWEST + STEP)
    finite = call(aten.maximum.default, scores, least)
    # 0 where an element was -inf, and 1 elsewhere
    counts = call(aten.clamp.default, call(aten.add.Tensor, finite, constants["highest"]), 0, 1)
    return call(aten.mul.Tensor, call(aten._softmax.default, finite, finite.meta["val"].dim() - 1, False), counts)
