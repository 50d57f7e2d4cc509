"""Bounds of whole numbers, as expressions of dynamic sizes.

OpenVINO computes int64 as int32, compares integers as float32, and does not notice an index out of range. The bounds
show the integers for which this makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from operator import getitem
from typing import Any, NamedTuple

import sympy
import torch
from torch.fx import Graph, Node

from hatch_lower.backends.openvino import claims
from hatch_lower.exir.graph.nodes import Ranges
from hatch_lower.exir.graph.operators import named_arguments, operator_name
from hatch_lower.runtime.torch_private.symbols import bound_sympy

INTEGER_DTYPES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


class Bounds(NamedTuple):
    """The least and the greatest number that a tensor may have; both are numbers or expressions of sizes."""

    least: sympy.Expr
    greatest: sympy.Expr


class BoundsOfGraph:
    """The bounds of a graph's results that hold in each call; results of unknown bounds are left out."""

    def __init__(self, graph: Graph, ranges: Ranges) -> None:
        self._ranges = ranges
        self._known: dict[Node, Bounds] = {}
        for node in graph.nodes:
            value = node.meta.get("val")
            if node.op != "call_function" or not isinstance(value, torch.Tensor):
                continue
            found = Bounds(sympy.S.Zero, sympy.S.One) if value.dtype is torch.bool else None
            if value.dtype in INTEGER_DTYPES:
                found = self._bounds_of(node, value.dtype)
                if value.dtype is not torch.int64:  # of int64, only results of arithmetic may be beyond
                    found = self._within_dtype(found, value.dtype)
            if found is not None:
                self._known[node] = found

    def fits(self, node: Node, size: int | torch.SymInt) -> bool:
        """Return whether all numbers of a result are at least 0 and less than a size."""
        found = self._known.get(node)
        return found is not None and self._orders(sympy.S.Zero, found.least, found.greatest, expression_of(size) - 1)

    def within(self, node: Node, limit: int) -> bool:
        """Return whether no number of a result is greater than a limit, or less than its negative."""
        found = self._known.get(node)
        return found is not None and self._is_between(found, -limit, limit)

    def _bounds_of(self, node: Node, dtype: torch.dtype) -> Bounds | None:
        name = operator_name(node.target)
        given = named_arguments(node)
        if node.target is getitem:
            return place_bounds(node.args[0], node.args[1])
        if name in WITH_BOUNDS:
            return WITH_BOUNDS[name](given)
        if name in claims.KEPT_WHOLE | claims.CHOICES | JOINED:
            # also the numbers of an index, which makes the bounds wider and not wrong
            return self._around([self._known.get(source) for source in integer_inputs(node)])
        if name == "aten._to_copy.default":
            return self._within_dtype(self._known.get(node.all_input_nodes[0]), dtype)
        if name in COMPUTED:
            values = [self._operand(given.get(argument)) for argument in ("self", "other") if argument in given]
            known = [value for value in values if value is not None]
            plain = len(known) == len(values) and given.get("alpha", 1) == 1
            return self._within_dtype(COMPUTED[name](*known), dtype) if plain else None
        return self._clamped(given) if name == "aten.clamp.default" else place_bounds(node, 0)

    def _operand(self, value: object) -> Bounds | None:
        if isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor):
            return self._known.get(value)
        number = value.meta.get("val") if isinstance(value, Node) else value
        if isinstance(number, (int, torch.SymInt)):
            return Bounds(expression_of(number), expression_of(number))
        return None

    def _around(self, parts: list[Bounds | None]) -> Bounds | None:
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or not known:
            return None
        least, greatest = ([part[end] for part in known] for end in (0, 1))
        first = next((each for each in least if all(self._orders(each, other) for other in least)), None)
        last = next((each for each in greatest if all(self._orders(other, each) for other in greatest)), None)
        found = Bounds(
            min(map(self._at_least, least)) if first is None else first,
            max(map(self._at_most, greatest)) if last is None else last,
        )
        return self._within_dtype(found, torch.int64) if first is None or last is None else found

    def _within_dtype(self, found: Bounds | None, dtype: torch.dtype) -> Bounds | None:
        # a number beyond wraps around
        if found is None:
            return None
        limits = torch.iinfo(dtype)
        return found if self._is_between(found, limits.min, limits.max) else None

    def _clamped(self, given: Mapping[str, Any]) -> Bounds | None:
        least, greatest = given.get("min"), given.get("max")
        if type(least) is not int or type(greatest) is not int:
            return None
        return Bounds(sympy.Integer(min(least, greatest)), sympy.Integer(greatest))

    def _is_between(self, found: Bounds, least: int, greatest: int) -> bool:
        return bool(self._at_least(found.least) >= least and self._at_most(found.greatest) <= greatest)

    def _orders(self, *values: sympy.Expr) -> bool:
        """Return whether each value is at most the next one, for all sizes."""
        return all(self._at_least(after - before) >= 0 for before, after in pairwise(values))

    def _at_least(self, expression: sympy.Expr) -> sympy.Expr:
        return self._range(expression)[0]

    def _at_most(self, expression: sympy.Expr) -> sympy.Expr:
        return self._range(expression)[1]

    def _range(self, expression: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        if not expression.free_symbols <= self._ranges.keys():
            return -sympy.oo, sympy.oo
        found = bound_sympy(expression, dict(self._ranges))
        return found.lower, found.upper


def expression_of(size: int | torch.SymInt) -> sympy.Expr:
    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


def integer_inputs(node: Node) -> list[Node]:
    return [source for source in claims.tensor_inputs(node) if source.meta["val"].dtype in INTEGER_DTYPES]


def numbers_in_a_row(given: Mapping[str, Any]) -> Bounds | None:
    start, end, step = (
        value.meta["val"] if isinstance(value, Node) else value
        for value in (given.get("start", 0), given["end"], given.get("step", 1))
    )
    if not isinstance(step, int) or step < 1 or not all(isinstance(each, (int, torch.SymInt)) for each in (start, end)):
        return None
    return Bounds(expression_of(start), expression_of(end) - 1)


def equal_numbers(given: Mapping[str, Any]) -> Bounds | None:
    value = given.get("fill_value", given.get("s"))
    return Bounds(sympy.Integer(value), sympy.Integer(value)) if type(value) is int else None


def place_bounds(node: Any, result: object) -> Bounds | None:
    """Return the bounds of a result that counts places in a dimension: of `argmax`, or the second of `topk`."""
    name, given = operator_name(node.target), named_arguments(node)
    if COUNTING.get(name) != result:
        return None
    shape, dim = given["self"].meta["val"].shape, given.get("dim", -1)
    flat = dim is None or (name in FLAT and "dim" not in given)
    size = math.prod(expression_of(length) for length in (shape if flat else shape[dim : dim + 1 or None]))
    return Bounds(sympy.S.Zero, sympy.Integer(-1) + size)


def product(left: Bounds, right: Bounds) -> Bounds | None:
    ends = [one * other for one in left for other in right]
    return Bounds(min(ends), max(ends)) if all(end.is_number for end in ends) else None


def size_of_numbers(value: Bounds) -> Bounds | None:
    ends = [abs(end) for end in value]
    return Bounds(sympy.S.Zero, max(ends)) if all(end.is_number for end in ends) else None


WITH_BOUNDS: Mapping[str, Callable[[Mapping[str, Any]], Bounds | None]] = {
    "aten.arange.start_step": numbers_in_a_row,
    **dict.fromkeys(claims.overloads("full full_like scalar_tensor"), equal_numbers),
}
JOINED = frozenset({"aten.where.self"})
COMPUTED: Mapping[str, Callable[..., Bounds | None]] = {
    "aten.add.Tensor": lambda left, right: Bounds(left.least + right.least, left.greatest + right.greatest),
    "aten.sub.Tensor": lambda left, right: Bounds(left.least - right.greatest, left.greatest - right.least),
    "aten.mul.Tensor": product,
    "aten.neg.default": lambda value: Bounds(-value.greatest, -value.least),
    "aten.abs.default": size_of_numbers,
}
FLAT = frozenset(claims.overloads("argmax argmin"))  # without a dimension they count places of all numbers
# the result that counts places, by operator
COUNTING: Mapping[str, int] = {**dict.fromkeys(FLAT, 0), **dict.fromkeys(claims.overloads("sort topk"), 1)}
