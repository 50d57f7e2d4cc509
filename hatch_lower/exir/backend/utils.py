"""Questions about graphs that backends and their tests ask: what is delegated, what is not, are two the same."""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem
from typing import Any

from torch._higher_order_ops import executorch_call_delegate
from torch.fx import Graph, GraphModule, Node

from hatch_lower.exir.graph.canonical import SymbolNames, encode_graph, encode_literal, encode_target

__all__ = ["get_delegates", "get_non_lowered_nodes", "is_identical_graph", "is_same_node"]


def get_delegates(graph: Graph) -> list[Node]:
    """Return the nodes of a graph that stand for lowered modules, known by their calls and not by their names."""
    return [
        node
        for node in graph.nodes
        if node.op == "get_attr"
        and any(user.target is executorch_call_delegate and user.args[0] is node for user in node.users)
    ]


def get_non_lowered_nodes(graph: Graph) -> list[Node]:
    """Return the calls of a graph that are no delegate calls and do not take one's results apart."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function" and node.target is not executorch_call_delegate and not is_delegate_result(node)
    ]


def is_delegate_result(node: Node) -> bool:
    """Return whether a node takes one result of a delegate call."""
    if node.target is not getitem:
        return False
    source, index = node.args
    return isinstance(source, Node) and source.target is executorch_call_delegate and isinstance(index, int)


def is_identical_graph(graph_left: GraphModule, graph_right: GraphModule) -> bool:
    """Return whether two graphs have the same canonical form: operators, edges, literals, values and nested graphs.

    Names of nodes and metadata without influence on results are not in it; the order of nodes is.
    """
    if len(graph_left.graph.nodes) != len(graph_right.graph.nodes):
        return False
    return encode_graph(graph_left, SymbolNames()) == encode_graph(graph_right, SymbolNames())


def is_same_node(node_left: Node | Iterable[Node], node_right: Node | Iterable[Node]) -> bool:
    """Return whether two nodes, or nodes in pairs, are computed in the same way from the same inputs on.

    Operators, edges and literals count. Nothing is remembered after the call.
    """
    left = [node_left] if isinstance(node_left, Node) else list(node_left)
    right = [node_right] if isinstance(node_right, Node) else list(node_right)
    if len(left) != len(right):
        return False
    pending = list(zip(left, right, strict=True))
    seen = set(pending)
    while pending:
        one, other = pending.pop()
        if one.op != other.op or encode_target(one.target) != encode_target(other.target):
            return False
        pairs: list[tuple[Node, Node]] = []
        if not pair_nodes((one.args, one.kwargs), (other.args, other.kwargs), pairs):
            return False
        new = [pair for pair in pairs if pair not in seen]
        seen.update(new)
        pending += new
    return True


def pair_nodes(left: Any, right: Any, pairs: list[tuple[Node, Node]]) -> bool:
    """Return whether arguments are the same but for nodes; add those, paired, to `pairs`."""
    if isinstance(left, Node) and isinstance(right, Node):
        pairs.append((left, right))
        return True
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(
            pair_nodes(one, other, pairs) for one, other in zip(left, right, strict=True)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(pair_nodes(left[key], right[key], pairs) for key in left)
    if isinstance(left, slice) and isinstance(right, slice):
        return pair_nodes((left.start, left.stop, left.step), (right.start, right.stop, right.step), pairs)
    if isinstance(left, Node) or isinstance(right, Node):
        return False
    return bool(encode_literal(left, SymbolNames()) == encode_literal(right, SymbolNames()))
