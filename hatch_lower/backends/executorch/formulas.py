"""Operations without a kernel in XNNPACK (norms, softmax of masked rows), written as several operations with
kernels.

torch gives zeros for a row of which every element is -inf. Its own decomposition compares elements and chooses by the
answer, for which XNNPACK has no kernels: each attention would be cut in two.

ExecuTorch's own kernels subtract the square of a mean from a mean of squares. A mean of 100 times the deviation then
leaves three digits, and of 1000 times no digit. Here the mean is subtracted before the square, as in eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import complete_arguments
from hatch_lower.backends.executorch.sizes import aten_names
from hatch_lower.exir.graph.operators import torch_operator

NORMS = aten_names("_native_batch_norm_legit.no_stats native_group_norm.default native_layer_norm.default")

Call: TypeAlias = Callable[..., Node]  # writes an operation


def why_not_norm(node: Node) -> str:
    """Return why XNNPACK cannot compute a norm; the dtypes of its tensors are looked at elsewhere."""
    name = str(torch_operator(node.target))
    given = complete_arguments(node)
    sizes = given["input"].meta["val"].shape
    if any(user.args[1] != 0 and user.users for user in node.users):
        return f"a result of `{name}` beside the first is used"
    fixed = sizes[1:2] if "group" in given else given.get("normalized_shape", ())
    if not all(isinstance(size, int) for size in fixed):
        return f"XNNPACK can compute `{name}` only of a number of elements that is known at build time"
    if "training" in given and sizes[0] != 1:
        return f"XNNPACK can compute `{name}` for each image by itself only"
    if inner_shape(node) is not None and sum(not isinstance(size, int) for size in sizes) > 1:
        return f"XNNPACK can reshape the input of `{name}` for at most a single size that is known at run time only"
    return ""


def inner_shape(node: Node) -> list[int | torch.SymInt] | None:
    """Return the sizes of the rows or images to which a norm's input is reshaped, or `None` without a reshape."""
    given = complete_arguments(node)
    sizes = given["input"].meta["val"].shape
    if "normalized_shape" in given:
        normalized = given["normalized_shape"]
        return None if len(normalized) == 1 else [-1, math.prod(normalized)]
    return None if len(sizes) == 4 else [*sizes[:2], 1, math.prod(sizes[2:])]


def norm_constants(node: Node) -> dict[str, torch.Tensor]:
    """Return the constants of a norm; XNNPACK needs a separate weight for each product."""
    given = complete_arguments(node)
    constants = {"eps": torch.tensor(given["eps"], dtype=torch.float32)}
    if "normalized_shape" in given:
        length = math.prod(given["normalized_shape"])
        averages = torch.full((1, length), 1 / length, dtype=torch.float32)
        constants |= {"mean": averages, "variance": averages.clone()}
    elif "group" in given:
        channels, groups = given["input"].meta["val"].shape[1], given["group"]
        members = torch.eye(groups, dtype=torch.float32).repeat_interleave(channels // groups, dim=0)
        for what in ("mean", "variance"):
            constants |= {what: (members / (channels // groups)).T.contiguous(), f"{what} of channels": members.clone()}
    return constants


def write_norm(call: Call, node: Node, constants: Mapping[str, Node], values: Mapping[Node, Node]) -> Node:
    """Write a norm's first result by calls of operators; `values` maps its arguments to their translations."""
    aten = torch.ops.aten
    given = complete_arguments(node)
    in_rows, in_groups = "normalized_shape" in given, "group" in given

    def average(tensor: Node, what: str) -> Node:
        if in_rows:
            return call(aten.linear.default, tensor, constants[what])
        means = call(aten.mean.dim, tensor, [-1, -2], True)
        if not in_groups:
            return means
        channels = call(aten.reshape.default, means, [-1, means.meta["val"].shape[1]])
        groups = call(aten.linear.default, channels, constants[what])
        return of_channels(call(aten.linear.default, groups, constants[f"{what} of channels"]))

    def of_channels(tensor: Node) -> Node:
        sizes = tensor.meta["val"].shape
        if in_rows:
            return tensor if len(sizes) == 1 else call(aten.reshape.default, tensor, [-1])
        shape = [-1, sizes[-1], 1, 1] if isinstance(sizes[-1], int) else [1, -1, 1, 1]
        return call(aten.reshape.default, tensor, shape)

    taken, inner = values[given["input"]], inner_shape(node)
    sizes = taken.meta["val"].shape
    if inner is not None:
        taken = call(aten.reshape.default, taken, inferred(inner))
    centred = call(aten.sub.Tensor, taken, average(taken, "mean"))
    variance = average(call(aten.mul.Tensor, centred, centred), "variance")
    factor = call(aten.rsqrt.default, call(aten.add.Tensor, variance, constants["eps"]))
    if given["weight"] is not None:
        factor = call(aten.mul.Tensor, factor, of_channels(values[given["weight"]]))
    result = call(aten.mul.Tensor, centred, factor)
    if given["bias"] is not None:
        result = call(aten.add.Tensor, result, of_channels(values[given["bias"]]))
    return call(aten.reshape.default, result, inferred(sizes)) if inner is not None else result


def inferred(sizes: Sequence[int | torch.SymInt]) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in sizes]


SAFE_SOFTMAX = torch.ops.aten._safe_softmax.default
LOWEST = torch.finfo(torch.float32).min
STEP = 2.0**106  # four units in the last place of the lowest number


def why_not_safe_softmax(node: Node) -> str:
    """Return why XNNPACK cannot compute a safe softmax; dtypes are checked elsewhere."""
    given = complete_arguments(node)
    rank = given["self"].meta["val"].dim()
    if not rank or given["dim"] % rank != rank - 1:
        return f"XNNPACK computes `{SAFE_SOFTMAX}` along the last dimension only"
    return ""


def softmax_constants(node: Node) -> dict[str, torch.Tensor]:
    return {"step": torch.tensor(STEP, dtype=torch.float32), "highest": torch.tensor(-LOWEST, dtype=torch.float32)}


def write_safe_softmax(call: Call, node: Node, constants: Mapping[str, Node], values: Mapping[Node, Node]) -> Node:
    """Write such a node by calls of operators; `values` maps its arguments to their translations."""
    aten = torch.ops.aten
    scores = values[complete_arguments(node)["self"]]
    # -inf becomes the lowest number, and numbers near the lowest become the next steps above
    least = call(aten.clamp.default, call(aten.add.Tensor, scores, constants["step"]), LOWEST, LOWEST + STEP)
    finite = call(aten.maximum.default, scores, least)
    # 0 where an element was -inf, and 1 elsewhere
    counts = call(aten.clamp.default, call(aten.add.Tensor, finite, constants["highest"]), 0, 1)
    return call(aten.mul.Tensor, call(aten._softmax.default, finite, finite.meta["val"].dim() - 1, False), counts)


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
