"""The indices of an operation, and the places of a table that they name."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from hatch_lower.backends.openvino.claims import KEPT_WHOLE, TABLES
from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments, operator_name

COUNTED = 2**31 - 1  # places that OpenVINO can number: it computes int64 as int32


class Lookup(NamedTuple):
    """An index of an operation, and the dimension of a table whose places it names."""

    indices: Node
    dim: int
    size: int | torch.SymInt


def lookup(node: Node) -> Lookup | None:
    found = lookups(node)
    return found[0] if len(found) == 1 else None


def points_of(node: Node) -> list[Lookup]:
    """Return the indices of an operation that looks up points in several adjacent dimensions, or an empty list."""
    found = lookups(node) if operator_name(node.target) == "aten.index.Tensor" else []
    if len(found) < 2 or any(used.dim != found[0].dim + place for place, used in enumerate(found)):
        return []
    sizes = [used.size for used in found if isinstance(used.size, int)]
    return found if len(sizes) == len(found) and math.prod(sizes) <= COUNTED else []


def lookups(node: Node) -> list[Lookup]:
    name, given = operator_name(node.target), named_arguments(node)
    shape = given[TABLES[name]].meta["val"].shape if name in TABLES else ()
    if not shape:
        return []
    index: Any = given.get("indices", given.get("index"))
    indices = list(enumerate(index)) if isinstance(index, (list, tuple)) else [(given.get("dim", 0), index)]
    return [Lookup(each, dim, shape[dim]) for dim, each in indices if each is not None]


def source_of(index: Node) -> Node:
    """Return the node that all elements of an index come from."""
    while index.op == "call_function" and operator_name(index.target) in KEPT_WHOLE:
        (index,) = tensor_inputs(index)
    return index


def nodes_in(value: Any) -> list[Node]:
    nodes: list[Node] = []
    torch.fx.map_arg(value, nodes.append)
    return nodes


def tensor_inputs(node: Node) -> list[Node]:
    return [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
