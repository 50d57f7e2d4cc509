"""Symbolic sizes of a portable partition: expressions as JSON, and what is known of their symbols."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch
from sympy.functions.elementary.piecewise import ExprCondPair
from torch.export import ExportedProgram

from hatch_lower.runtime.torch_private.symbols import (
    FUNCTIONS,
    SymbolFacts,
    ValueRanges,
    environment_of,
    int_oo,
    known_facts,
    symbolic,
)

DEPTH_LIMIT = 64
POWERS = ("sympy.Pow", "FloatPow", "LShift", "PowByNatural")
BASE_BITS, EXPONENT_LIMIT = 4096, 64
SYMPY_FUNCTIONS = (
    *("Abs", "Add", "And", "Eq", "Ge", "Gt", "Le", "Lt", "Mod", "Mul", "Ne", "Not", "Or", "Piecewise", "Pow"),
    *("ceiling", "floor"),
)
CLASSES: Mapping[str, type[sympy.Basic]] = MappingProxyType(
    {
        **{f"sympy.{name}": getattr(sympy, name) for name in SYMPY_FUNCTIONS},
        "sympy.ExprCondPair": ExprCondPair,  # one of the arguments of a `Piecewise`
        **FUNCTIONS,
    }
)
NAMES: Mapping[type[sympy.Basic], str] = MappingProxyType({kind: name for name, kind in CLASSES.items()})
# what is one object for all
CONSTANTS: Mapping[str, object] = MappingProxyType(
    {"true": sympy.true, "false": sympy.false, "int_oo": int_oo, "-int_oo": -int_oo, "oo": sympy.oo, "-oo": -sympy.oo}
)
KINDS: Mapping[str, type] = MappingProxyType({"int": int, "float": float, "bool": bool})


class NotPortableError(Exception):
    """A partition cannot be written down, or what was read is none."""


class SizeWriter:
    """Writes symbolic values; the symbols that it meets are written once for all."""

    def __init__(self, program: ExportedProgram) -> None:
        self._ranges = program.range_constraints
        self._symbols: dict[sympy.Symbol, SymbolFacts] = {}

    def value(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> dict[str, object]:
        kind = "int" if isinstance(value, torch.SymInt) else "float" if isinstance(value, torch.SymFloat) else "bool"
        node: Any = value.node
        expression: sympy.Basic = node.expr
        for symbol in sorted(expression.free_symbols, key=str):
            self._symbols.setdefault(symbol, known_facts(node.shape_env, symbol))
        hint = node.hint if node.has_hint() else None
        return {kind: write_expression(expression), "hint": hint.hex() if isinstance(hint, float) else hint}

    def symbols(self) -> list[dict[str, object]]:
        if len({symbol.name for symbol in self._symbols}) < len(self._symbols):
            raise NotPortableError("two symbols with one name")
        return [
            {
                "name": symbol.name,
                "assumptions": dict(symbol.assumptions0),
                "hint": facts.hint,
                "bounds": write_bounds(facts.bounds),
                "size_like": facts.size_like,
                "range": write_bounds(self._ranges.get(symbol)),
            }
            for symbol, facts in sorted(self._symbols.items(), key=lambda item: item[0].name)
        ]


class SizeReader:
    # what a `SizeWriter` wrote, as values of one new environment

    def __init__(self, rows: Any) -> None:
        self._symbols: dict[str, sympy.Symbol] = {}
        facts: list[tuple[sympy.Symbol, SymbolFacts]] = []
        self.ranges: dict[sympy.Symbol, ValueRanges[sympy.Expr]] = {}
        for row in rows:
            symbol = read_symbol(row)
            self._symbols[row["name"]] = symbol
            facts.append((symbol, SymbolFacts(row["hint"], read_bounds(row["bounds"]), row["size_like"])))
            if (allowed := read_bounds(row["range"])) is not None:
                self.ranges[symbol] = allowed
        self.environment = environment_of(facts)

    def value(self, written: Mapping[str, object]) -> Any:
        (name,) = written.keys() & KINDS.keys()
        hint = written["hint"]
        expression = read_expression(written[name], self._symbols)
        return symbolic(expression, self.environment, KINDS[name], float.fromhex(hint) if type(hint) is str else hint)


def write_expression(expression: sympy.Basic, depth: int = 0) -> object:
    if isinstance(expression, sympy.Symbol):
        return expression.name
    if isinstance(expression, sympy.Integer):
        return int(expression)
    for name, constant in CONSTANTS.items():
        if expression is constant or expression == constant:
            return [name]
    if isinstance(expression, sympy.Rational):
        return ["rational", int(expression.p), int(expression.q)]
    if isinstance(expression, sympy.Float):
        return ["float", float(expression).hex()]
    written = NAMES.get(type(expression))
    if written is None:
        raise NotPortableError(f"the function `{type(expression).__name__}` of symbolic sizes")
    if depth >= DEPTH_LIMIT:
        raise NotPortableError(f"an expression of more than {DEPTH_LIMIT} levels")
    return [written, *(write_expression(part, depth + 1) for part in expression.args)]


def read_expression(written: Any, symbols: Mapping[str, sympy.Symbol]) -> Any:
    # sympy evaluates a text as Python where it expects an expression, in a list too: it gets none
    if isinstance(written, str):
        return symbols[written]
    if type(written) is int:
        return sympy.Integer(written)
    name, *parts = written
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name == "rational":
        above, below = parts
        if type(above) is not int or type(below) is not int or below < 1:
            raise NotPortableError(f"a fraction of {above!r:.40} and {below!r:.40}")
        return sympy.Rational(above, below)
    if name == "float":
        (text,) = parts
        return sympy.Float(float.fromhex(text))
    args = [read_expression(part, symbols) for part in parts]
    if name in POWERS:
        refuse_large_power(name, *args)
    return CLASSES[name](*args)


def refuse_large_power(name: str, base: sympy.Basic, exponent: sympy.Basic) -> None:
    large = isinstance(base, sympy.Integer) and int(base).bit_length() > BASE_BITS
    if large or (exponent.is_number and not abs(exponent) <= EXPONENT_LIMIT):
        raise NotPortableError(f"`{name}` of a number that takes long to compute")


def read_symbol(row: Mapping[str, Any]) -> sympy.Symbol:
    # names of symbols stand in code that is generated later
    name, assumptions = row["name"], row["assumptions"]
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise NotPortableError(f"a symbol {name!r:.40}")
    if not all(value is None or type(value) is bool for value in assumptions.values()):
        raise NotPortableError(f"assumptions {assumptions!r:.80} on `{name}`")
    return sympy.Symbol(name, **assumptions)


def write_bounds(bounds: ValueRanges[sympy.Expr] | None) -> object:
    return None if bounds is None else [write_expression(bounds.lower), write_expression(bounds.upper)]


def read_bounds(written: Any) -> ValueRanges[sympy.Expr] | None:
    return None if written is None else ValueRanges(*(read_expression(bound, {}) for bound in written))
