"""Values that a graph mutates before decomposition, and the nodes that own the memory of a value."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping

from torch.fx import GraphModule, Node

from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.surgery import attribute_of
from hatch_lower.runtime.torch_private import trees
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of

STATISTICS = ("running_mean", "running_var")  # norms mutate these in training mode, which no schema declares


def written_into(module: GraphModule) -> set[Node]:
    """Return the values that a graph mutates, also in its regions."""
    found: set[Node] = set()
    for node in module.graph.nodes:
        found.update(map(owner_of, sources_of(node, is_write=True)))
        leaves = trees.tree_leaves(node.args)
        for leaf in leaves:
            inner = attribute_of(module, leaf.target) if getattr(leaf, "op", "") == "get_attr" else None
            if isinstance(inner, GraphModule):
                # the inputs of a region are the last arguments of its call
                taken = inner.graph.find_nodes(op="placeholder")
                changed = written_into(inner)
                given = zip(reversed(taken), reversed(leaves), strict=False)
                found.update(owner_of(value) for placeholder, value in given if placeholder in changed)
    return found


def owner_of(node: Node) -> Node:
    """Return the node that owns the memory which this node may be a view of."""
    while source := next(sources_of(node, is_write=False), None):
        node = source
    return node


def sources_of(node: Node, *, is_write: bool) -> Iterator[Node]:
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
                values = trees.tree_leaves(given.get(argument.name))
                yield from (value for value in values if isinstance(value, Node))


def is_trained(given: Mapping[str, object]) -> bool:
    return any(given.get(name) is True for name in ("training", "train", "use_input_stats"))
