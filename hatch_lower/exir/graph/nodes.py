"""Facts about nodes of ATen and edge programs: views, result tensors, sizes that may be 0, the values that a node
mutates, and the owners of a value's memory.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping

import sympy
import torch
from torch.fx import GraphModule, Node

from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.surgery import attribute_of
from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name, schema_of
from hatch_lower.runtime.torch_private.symbols import ValueRanges, bound_sympy

# ATen operators without arithmetic: a partition of views alone costs more to call than to leave
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

Ranges = Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]  # `ExportedProgram.range_constraints`
MAY_BE_ZERO = "a dynamic size may be 0"  # part of a reason that a `min=1` in the size's `Dim` takes away


def may_be_zero(size: int | torch.SymInt, ranges: Ranges) -> bool:
    return not is_at_least(1, size, ranges)


def is_at_least(least: int, size: int | torch.SymInt, ranges: Ranges) -> bool:
    if isinstance(size, int):
        return size >= least
    # torch's own bounds of a symbol do not help: the exporter allows sizes of 0, but reasons as if all were 2 or more
    expression = size.node.expr
    if not expression.free_symbols <= ranges.keys():
        return False
    return bool(bound_sympy(expression, dict(ranges)).lower >= least)


def is_at_most(greatest: int, size: int | torch.SymInt, ranges: Ranges) -> bool:
    if isinstance(size, int):
        return size <= greatest
    expression = size.node.expr
    if not expression.free_symbols <= ranges.keys():
        return False
    return bool(bound_sympy(expression, dict(ranges)).upper <= greatest)


def is_view(node: Node) -> bool:
    target = torch_operator(node.target)
    if isinstance(target, OpOverload):
        return target.namespace == "aten" and base_name(target) in VIEWS
    return target is operator.getitem


def producer_of(node: Node) -> Node:
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def result_tensors(node: Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val")
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, torch.Tensor):
            yield item


STATISTICS = ("running_mean", "running_var")  # norms mutate these in training mode, which no schema declares


def written_into(module: GraphModule) -> set[Node]:
    """Return the values that a graph mutates, also in its regions."""
    found: set[Node] = set()
    for node in module.graph.nodes:
        found.update(map(memory_owner, memory_sources(node, is_write=True)))
        leaves = tensors.tree_leaves(node.args)
        for leaf in leaves:
            inner = attribute_of(module, leaf.target) if getattr(leaf, "op", "") == "get_attr" else None
            if isinstance(inner, GraphModule):
                # the inputs of a region are the last arguments of its call
                taken = inner.graph.find_nodes(op="placeholder")
                changed = written_into(inner)
                given = zip(reversed(taken), reversed(leaves), strict=False)
                found.update(memory_owner(value) for placeholder, value in given if placeholder in changed)
    return found


def memory_owner(node: Node) -> Node:
    """Return the node that owns the memory which this node may be a view of."""
    while source := next(memory_sources(node, is_write=False), None):
        node = source
    return node


def memory_sources(node: Node, *, is_write: bool) -> Iterator[Node]:
    """Yield the arguments that an operation mutates (`is_write`) or that its result may alias (`not is_write`)."""
    target = torch_operator(node.target)
    if target is operator.getitem and not is_write:
        yield from node.all_input_nodes[:1]
    elif isinstance(target, OpOverload):
        given = named_arguments(node)
        for argument in schema_of(target).arguments:
            alias = argument.alias_info
            if is_write:
                is_source = bool(alias and alias.is_write) or (argument.name in STATISTICS and is_trained(given))
            else:
                is_source = alias is not None
            if is_source:
                values = tensors.tree_leaves(given.get(argument.name))
                yield from (value for value in values if isinstance(value, Node))


def is_trained(given: Mapping[str, object]) -> bool:
    return any(given.get(name) is True for name in ("training", "train", "use_input_stats"))
