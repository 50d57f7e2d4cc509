"""Sizes that are known at run time only: arithmetic of ExecuTorch's runtime, and sizes that a call can pass.

The runtime itself, without any library of kernels, reads sizes of tensors, computes with sizes, and makes views of
memory. A method takes no number: a number is passed as the size of a tensor without elements (`run.operand`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import INTEGERS, why_not_tensors
from hatch_lower.exir.graph.nodes import Ranges, may_be_zero, result_tensors
from hatch_lower.exir.graph.operators import operator_name, torch_operator
from hatch_lower.runtime.torch_private.operators import OpOverload
from hatch_lower.runtime.torch_private.symbols import bound_sympy, int_oo


def aten_names(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


# They change at most the sizes of their operand, where tensors are contiguous as in ExecuTorch; an `expand` only if
# nothing is repeated
SHAPED = aten_names("_unsafe_view.default clone.default expand.default reshape.default view.default")

# larger bounds mean unbounded: a size without a bound gets `sys.maxsize` or infinity from torch, or a term of it
LARGE = 2**31

SIZE_OF = torch.ops.aten.sym_size.int
ARITHMETIC = (operator.add, operator.floordiv, operator.mod, operator.mul, operator.sub, torch.sym_max, torch.sym_min)
VIEWS = SHAPED - {"aten.clone.default", "aten.expand.default"}
TENSORS = frozenset({torch.float16, torch.float32, torch.float64, *INTEGERS})  # that the runtime can be given


def keeps_shape(node: Node) -> bool:
    """Return whether a `SHAPED` node gives its operand's sizes."""
    source = node.all_input_nodes[0]
    # as text: comparing symbols would decide facts about them
    return [str(size) for size in source.meta["val"].shape] == [str(size) for size in node.meta["val"].shape]


def gives_number(node: Node) -> bool:
    number = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))
    return number or not isinstance(torch_operator(node.target), OpOverload)


def numbers_of(node: Node) -> Iterator[Node]:
    """Yield the operands that are numbers at run time, and no tensors."""
    for source in node.all_input_nodes:
        if not isinstance(source.meta.get("val"), (torch.Tensor, tuple, list)):
            yield source


def why_not_size(node: Node, ranges: Ranges) -> str:
    if torch_operator(node.target) != SIZE_OF and node.target not in ARITHMETIC:
        return f"ExecuTorch's runtime has no `{operator_name(node.target)}` for sizes"
    return why_not_number(node, ranges) or why_not_size_numbers(node, ranges) or why_not_tensors(node, TENSORS)


def why_not_size_numbers(node: Node, ranges: Ranges) -> str:
    return next((reason for source in numbers_of(node) if (reason := why_not_number(source, ranges))), "")


def why_not_number(source: Node, ranges: Ranges) -> str:
    value = source.meta.get("val")
    if not isinstance(value, torch.SymInt):
        return f"it takes `{source.name}`, which is known at run time only and is not a size"
    if upper_bound(value, ranges) is None:
        return f"it takes the size `{source.name}`, which has no upper bound, and ExecuTorch reserves memory beforehand"
    if not bool(bound_sympy(value.node.expr, dict(ranges)).lower >= 0):
        return f"it takes the number `{source.name}`, which may be negative and so is not a size"
    return ""


def upper_bound(size: int | torch.SymInt, ranges: Ranges) -> int | None:
    if isinstance(size, int):
        return size
    bound = bound_sympy(size.node.expr, dict(ranges)).upper
    return int(bound) if bound.is_Integer and bound is not int_oo and bound < LARGE else None


def is_bounded(node: Node, ranges: Ranges) -> bool:
    return all(upper_bound(size, ranges) is not None for tensor in result_tensors(node) for size in tensor.shape)


def why_not_view(node: Node, ranges: Ranges) -> str:
    sizes = node.meta["val"].shape
    if -1 in view_sizes(node) and any(may_be_zero(size, ranges) for size in sizes):
        return f"`{torch_operator(node.target)}` leaves a size to be inferred, and another size may be 0"
    return why_not_size_numbers(node, ranges)


def inferred_shape(node: Node) -> list[int] | None:
    """Return the sizes that a `SHAPED` node gives its result, a symbolic size as -1; `None` if -1 is ambiguous."""
    value = node.meta["val"]
    if str(torch_operator(node.target)) == "aten.expand.default" and not keeps_shape(node):
        return None
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    # a size that is inferred beside a size of 0 could be anything
    return None if sizes.count(-1) > 1 or (-1 in sizes and 0 in sizes) else sizes


def new_shape(node: Node) -> list[Any] | None:
    """Return the sizes argument of a `SHAPED` node here; `None` if the node repeats its operand."""
    shape = inferred_shape(node)
    return view_sizes(node) if shape is None and str(torch_operator(node.target)) in VIEWS else shape


def view_sizes(node: Node) -> list[object]:
    """Return the sizes of a view: numbers, nodes, and -1 for the inferred size."""
    given: Any = node.args[1]
    return [
        known if isinstance(size, int) and isinstance(known, int) else size
        for size, known in zip(given, node.meta["val"].shape, strict=True)
    ]
