"""Symbolic sizes: torch's symbols renamed in order of appearance, their ranges, and expressions over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import (
    CleanDiv,
    FloorDiv,
    Identity,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
)
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import EdgeError
from hatch_lower.format.codec import encode
from hatch_lower.format.expression import Compound, Expression
from hatch_lower.format.inputs import Symbol

SYMBOL = re.compile(r"\b[a-z]+\d+\b")


class Symbols:
    """The symbols of one method."""

    def __init__(self, ranges: Mapping[sympy.Expr, ValueRanges[Any]], labels: Mapping[str, str], where: str) -> None:
        self._constraints = ranges
        self._labels = labels
        self._where = where
        self._names: dict[sympy.Symbol, str] = {}
        self._inputs: set[sympy.Symbol] = set()

    def close_inputs(self) -> None:
        # from here on all symbols met so far are known, and checked to be in range
        self._inputs = set(self._names)

    def expr(self, value: Any) -> Expression:
        if isinstance(value, int):
            return value
        return self._convert(expression_of(value))

    def ranges(self) -> dict[str, Symbol]:
        # of the symbols that an expression used; sizes are not negative
        symbols = {}
        for symbol, name in self._names.items():
            bounds = self._range(symbol)
            symbols[name] = Symbol(
                max(0, finite(bounds.lower) or 0), finite(bounds.upper), self._labels.get(str(symbol), name)
            )
        return symbols

    def proves(self, value: Any) -> bool:
        """Return whether a condition (`bool` or `torch.SymBool`) holds for all inputs that are in range."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, torch.SymBool):
            return False
        # `node.expr` would take the assertion itself for granted: what it says is equal is one symbol there
        condition = value.node._expr
        if condition is sympy.true:
            return True
        free = condition.free_symbols
        if not free or not free <= self._inputs:
            return False
        bounds = bound_sympy(condition, {symbol: self._range(symbol) for symbol in free})
        return bool(bounds.lower is sympy.true)

    def rename(self, text: str) -> str:
        known = {str(symbol): name for symbol, name in self._names.items()}
        return SYMBOL.sub(lambda match: known.get(match[0], match[0]), text)

    def _name(self, symbol: sympy.Symbol) -> str:
        return self._names.setdefault(symbol, f"s{len(self._names)}")

    def _range(self, symbol: sympy.Symbol) -> ValueRanges[Any]:
        # Where only a multiple of a symbol was constrained (a size of `2 * Dim("half")`), torch reports for the symbol
        # itself that it is at least 2, which it merely assumed while tracing; the multiple's range says what was meant.
        own = self._constraints.get(symbol, ValueRanges.unknown_int())
        for constrained, bounds in self._constraints.items():
            if constrained.free_symbols != {symbol} or constrained == symbol or own.lower != 2:
                continue
            factor, rest = constrained.coeff(symbol), constrained - constrained.coeff(symbol) * symbol
            if factor.is_integer and factor > 0 and rest.is_integer:
                return ValueRanges(max(sympy.Integer(0), sympy.ceiling((bounds.lower - rest) / factor)), own.upper)
        return own

    def _convert(self, expr: sympy.Expr) -> Expression:
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            return self._name(expr)
        rule = RULES.get(type(expr))
        if rule is None:
            raise self._unsupported(expr)
        return rule(self, expr)

    def _commutative(self, op: str, expr: sympy.Expr) -> Expression:
        # the order must not depend on what torch calls its symbols
        parts = [self._convert(part) for part in expr.args]
        numbers = [part for part in parts if isinstance(part, int)]
        others = [part for part in parts if not isinstance(part, int)]
        others.sort(key=lambda part: canonical_json(encode(part)))
        return Compound(op, tuple([*numbers, *others] if op == "mul" else [*others, *numbers]))

    def _ordered(self, op: str, expr: sympy.Expr) -> Expression:
        return Compound(op, tuple(self._convert(part) for part in expr.args))

    def _power(self, expr: sympy.Expr) -> Expression:
        exponent = expr.args[1]
        if not exponent.is_Integer or not 0 <= int(exponent) <= 64:
            raise self._unsupported(expr)
        return self._ordered("pow", expr)

    def _exact_division(self, expr: sympy.Expr) -> Expression:
        numerator, denominator = expr.args
        quotient = sympy.cancel(numerator / denominator)
        if any(not coefficient.is_integer for coefficient in sympy.Poly(quotient, *quotient.free_symbols).coeffs()):
            raise self._unsupported(expr)
        return self._convert(sympy.expand(quotient))

    def _modular_indexing(self, expr: sympy.Expr) -> Expression:
        base, divisor, modulus = (self._convert(part) for part in expr.args)
        return Compound("mod", (Compound("floordiv", (base, divisor)), modulus))

    def _unsupported(self, expr: sympy.Expr) -> EdgeError:
        return EdgeError(
            "a size depends on the inputs in a way that a plan cannot express",
            where=self._where,
            found=f"`{expr}`",
            hint="compute it from sizes by +, -, *, //, %, ** with a constant, max and min",
        )


Rule = Callable[[Symbols, Any], Expression]

RULES: Mapping[type, Rule] = {
    sympy.Add: lambda symbols, expr: symbols._commutative("add", expr),
    sympy.Mul: lambda symbols, expr: symbols._commutative("mul", expr),
    sympy.Max: lambda symbols, expr: symbols._commutative("max", expr),
    sympy.Min: lambda symbols, expr: symbols._commutative("min", expr),
    Max: lambda symbols, expr: symbols._commutative("max", expr),
    Min: lambda symbols, expr: symbols._commutative("min", expr),
    FloorDiv: lambda symbols, expr: symbols._ordered("floordiv", expr),
    CleanDiv: lambda symbols, expr: symbols._ordered("floordiv", expr),
    Mod: lambda symbols, expr: symbols._ordered("mod", expr),
    PythonMod: lambda symbols, expr: symbols._ordered("mod", expr),
    sympy.Mod: lambda symbols, expr: symbols._ordered("mod", expr),
    sympy.Pow: lambda symbols, expr: symbols._power(expr),
    PowByNatural: lambda symbols, expr: symbols._power(expr),
    IntTrueDiv: lambda symbols, expr: symbols._exact_division(expr),
    ModularIndexing: lambda symbols, expr: symbols._modular_indexing(expr),
    Identity: lambda symbols, expr: symbols._convert(expr.args[0]),
}


def expression_of(value: Any) -> sympy.Expr:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return value


def finite(bound: sympy.Expr) -> int | None:
    return int(bound) if bound.is_Integer and abs(int(bound)) < 2**62 else None
