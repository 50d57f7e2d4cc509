"""Why OpenVINO does not take an operation of a model that is quantized by the numbers of each call.

Its products of integers have a result of the same eight bits, so integers are multiplied as float32 here. A scale is
float64 in eager and float32 in OpenVINO; both are equal if the operation that chooses the scale is also taken.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem

import torch
from torch.fx import Node

from hatch_lower.backends.openvino.claims import (
    CHOOSE,
    CHOSEN,
    DEQUANTIZE_CHOSEN,
    FLOATING,
    KEPT_WHOLE,
    QUANTIZE_CHOSEN,
    QUANTIZED,
    overloads,
)
from hatch_lower.backends.openvino.lookups import source_of
from hatch_lower.exir.backend.canonical_partitioners.nodes import producer_of
from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments, operator_name

EXACT = 2**24  # whole numbers that float32 holds
LARGEST_PRODUCT = 2**14  # largest product of two signed 8-bit integers
ROUNDERS = frozenset(overloads("ceil floor round"))
BOUNDING = {"aten.clamp.default": ("min", "max"), "aten.hardtanh.default": ("min_val", "max_val")}
FILLING = frozenset(overloads("full full_like"))
SUMS = frozenset(overloads("add.Tensor sub.Tensor"))


def why_not_chosen(node: Node, why_not: Callable[[Node], str]) -> str:
    """Return why a scale that a call chooses, or an operation using it, is not taken: all are taken, or none."""
    chooser = chooser_of(node)
    if chooser is None:
        return "its scale is not a result of `choose_qparams`"
    group = [chooser, *(user for result in chooser.users for user in result.users)]
    for member in group:
        name = operator_name(member.target) if member.op == "call_function" else member.op
        if name not in CHOSEN:
            return f"`{member.name}` uses a scale, which OpenVINO has in float32"
        if chooser_of(member) is not chooser:
            return f"`{member.name}` uses a scale and a zero point that were chosen apart"
        given = named_arguments(member)["input"]
        if name == QUANTIZE_CHOSEN and given is not named_arguments(chooser)["input"]:
            return f"`{member.name}` quantizes other numbers than the numbers that its scale was chosen for"
        if name == QUANTIZE_CHOSEN and any(user not in group for user in member.users):
            return f"`{member.name}` is used as integers"
        if name == DEQUANTIZE_CHOSEN and given not in group:
            return f"`{member.name}` has integers that were quantized elsewhere"
        if reason := why_not(member):
            return reason if member is node else f"it belongs to `{member.name}`: {reason}"
    return ""


def chooser_of(node: Node) -> Node | None:
    """Return the operation that chooses an operation's scale and zero point, if they have one."""
    if operator_name(node.target) == CHOOSE:
        return node
    given = named_arguments(node)
    parts = [part for part in (given.get("scale"), given.get("zero_point")) if isinstance(part, Node)]
    places = [part.args[1] for part in parts if part.target is getitem]
    makers = {producer_of(part) for part in parts}
    maker = makers.pop() if places == [0, 1] and len(makers) == 1 else None
    return maker if maker is not None and operator_name(maker.target) == CHOOSE else None


def why_not_product(node: Node) -> str:
    """Return why a product of 8-bit integers, which have a sign, is not taken."""
    count = named_arguments(node)["self"].meta["val"].shape[-1]
    if isinstance(count, int) and count * LARGEST_PRODUCT <= EXACT:
        return ""
    if all(operator_name(user.target) == "aten._to_copy.default" and of_floats(user) for user in node.users):
        return ""
    return f"float32 does not hold the sums of {count} products, and they are used as integers"


def of_floats(node: Node) -> bool:
    value: torch.Tensor = node.meta["val"]
    return value.dtype in FLOATING


def makes_integers(node: Node) -> bool:
    """Return whether an operation makes 8-bit integers of numbers."""
    converts = operator_name(node.target) == "aten._to_copy.default"
    return converts and node.meta["val"].dtype in QUANTIZED and of_floats(node.all_input_nodes[0])


def makes_exact_integers(node: Node) -> bool:
    """Return whether an operation makes 8-bit integers of whole numbers, all of which are in their range."""
    source = source_of(node.all_input_nodes[0])
    return makes_integers(node) and is_whole(source) and fits(source, torch.iinfo(node.meta["val"].dtype))


def fits(source: Node, limits: torch.iinfo) -> bool:
    given = named_arguments(source) if source.op == "call_function" else {}
    name = operator_name(source.target)
    names = ("fill_value",) if name in FILLING else BOUNDING.get(name, ())
    bounds = [given.get(bound) for bound in names]
    return bool(bounds) and all(
        isinstance(bound, (int, float)) and limits.min <= bound <= limits.max for bound in bounds
    )


def is_whole(node: Node) -> bool:
    """Return whether all numbers of a value are whole."""
    pending: list[object] = [node]
    seen: set[Node] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, Node) and value not in seen:
            seen.add(value)
            pending += whole_if(value)
        elif not isinstance(value, Node) and not (isinstance(value, (int, float)) and float(value).is_integer()):
            return False
    return True


def whole_if(node: Node) -> list[object]:
    """Return the values that must be whole numbers for a node's result to be whole."""
    name = operator_name(node.target) if node.op == "call_function" else ""
    if name in ROUNDERS or not node.meta["val"].dtype.is_floating_point:
        return []
    given = named_arguments(node) if name else {}
    if name in SUMS:
        return [given["self"], given["other"], given.get("alpha", 1)]
    if name in FILLING:
        return [given["fill_value"]]
    if name in BOUNDING:
        return [given.get(argument) for argument in ("self", *BOUNDING[name])]
    return list(node.all_input_nodes) if name in KEPT_WHOLE else [None]
