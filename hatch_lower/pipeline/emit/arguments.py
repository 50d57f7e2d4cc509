"""Arguments of graph nodes as arguments of plan instructions, and the names of called operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.fx import Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator
from hatch_lower.exir.dialects.edge._ops import dotted_name
from hatch_lower.exir.graph.python_functions import PYTHON_FUNCTIONS
from hatch_lower.format.arguments import NAMES, Argument, Literal, Special
from hatch_lower.runtime.torch_private.operators import OpOverload


def overload_of(target: object) -> OpOverload | None:
    """Return the torch overload that a node calls, of the edge dialect or plain; None for other targets."""
    operator = torch_operator(target)
    return operator if isinstance(operator, OpOverload) else None


def name_of(node: Node) -> str:
    if (overload := overload_of(node.target)) is not None:
        return dotted_name(overload)
    # torch's operation behind `map` is named `map_impl`
    return PYTHON_FUNCTIONS.get(node.target) or str(getattr(node.target, "__name__", node.target)).removesuffix("_impl")


def number_conversion(value: object) -> str | None:
    # a delegate may return a 0-d tensor for a Python number of torch's graph
    if isinstance(value, (bool, torch.SymBool)):
        return "item_bool"
    if isinstance(value, (int, torch.SymInt)):
        return "item_int"
    return "item_float" if isinstance(value, (float, torch.SymFloat)) else None


def convert_argument(value: object, refer: Callable[[Node], Argument], where: str) -> Argument:
    if isinstance(value, Node):
        return refer(value)
    if isinstance(value, (list, tuple)):
        return tuple(convert_argument(item, refer, where) for item in value)
    return literal_argument(value, where)


def literal_argument(value: object, where: str) -> Literal:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, complex)) and type(value) in (int, float, complex):
        return math.nan if value != value and isinstance(value, float) else value
    if isinstance(value, torch.SymInt) and (known := value.node.maybe_as_int()) is not None:
        return int(known)
    name = value.type if isinstance(value, torch.device) else str(value).removeprefix("torch.")
    for kind, names in NAMES.items():
        if isinstance(value, getattr(torch, kind)) and name in names:
            return Special(kind, name)
    raise EdgeError(
        "a literal in the graph cannot be packaged",
        where=where,
        found=f"{type(value).__name__} {value!s:.200}",
        hint="plans hold numbers, strings, dtypes, layouts, memory formats and the device `cpu`",
    )
