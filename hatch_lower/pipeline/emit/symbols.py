"""Symbolic sizes: torch's symbols renamed in order of appearance, their ranges, and expressions over them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import sympy
import torch

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import EdgeError
from hatch_lower.format.codec import encode
from hatch_lower.format.expression import Compound, Expression
from hatch_lower.format.inputs import Symbol
from hatch_lower.runtime.torch_private.symbols import (
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
    ValueRanges,
    bound_sympy,
    unsimplified,
)

SYMBOL = re.compile(r"\b[a-z]+\d+\b")
OPERATORS: Mapping[type, str] = {
    **dict.fromkeys((sympy.Max, Max), "max"),
    **dict.fromkeys((sympy.Min, Min), "min"),
    **dict.fromkeys((FloorDiv, CleanDiv), "floordiv"),
    **dict.fromkeys((sympy.Mod, Mod, PythonMod), "mod"),
    **dict.fromkeys((sympy.Pow, PowByNatural), "pow"),
    sympy.Add: "add",
    sympy.Mul: "mul",
}


class Symbols:
    def __init__(
        self, ranges: Mapping[sympy.Expr, ValueRanges[sympy.Expr]], labels: Mapping[str, str], where: str
    ) -> None:
        self._constraints = ranges
        self._labels = labels
        self._where = where
        self._names: dict[sympy.Symbol, str] = {}
        self._inputs: set[sympy.Symbol] = set()

    def close_inputs(self) -> None:
        # from here on all symbols met so far are known, and checked to be in range
        self._inputs = set(self._names)

    def expr(self, value: int | torch.SymInt | sympy.Expr) -> Expression:
        if isinstance(value, int):
            return value
        return self._convert(value.node.expr if isinstance(value, torch.SymInt) else value)

    def ranges(self) -> dict[str, Symbol]:
        # of the symbols that an expression used; sizes are not negative
        symbols = {}
        for symbol, name in self._names.items():
            bounds = self._range(symbol)
            symbols[name] = Symbol(
                max(0, finite(bounds.lower) or 0), finite(bounds.upper), self._labels.get(str(symbol), name)
            )
        return symbols

    def proves(self, value: object) -> bool:
        """Return whether a condition (`bool` or `torch.SymBool`) holds for all inputs that are in range."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, torch.SymBool):
            return False
        # `node.expr` would take the assertion itself for granted: what it says is equal is one symbol there
        condition = unsimplified(value)
        if condition is sympy.true:
            return True
        free = condition.free_symbols
        if not free or not free <= self._inputs:
            return False
        return bool(bound_sympy(condition, {symbol: self._range(symbol) for symbol in free}).lower is sympy.true)

    def rename(self, text: str) -> str:
        known = {str(symbol): name for symbol, name in self._names.items()}
        return SYMBOL.sub(lambda match: known.get(match[0], match[0]), text)

    def _range(self, symbol: sympy.Symbol) -> ValueRanges[sympy.Expr]:
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
            return self._names.setdefault(expr, f"s{len(self._names)}")
        if isinstance(expr, Identity):
            return self._convert(expr.args[0])
        if isinstance(expr, IntTrueDiv):
            return self._convert(self._quotient(expr))
        if isinstance(expr, ModularIndexing):
            base, divisor, modulus = (self._convert(part) for part in expr.args)
            return Compound("mod", (Compound("floordiv", (base, divisor)), modulus))
        op = OPERATORS.get(type(expr))
        if op is None or (op == "pow" and not (expr.args[1].is_Integer and 0 <= int(expr.args[1]) <= 64)):
            raise self._unsupported(expr)
        parts = [self._convert(part) for part in expr.args]
        if op in ("add", "mul", "max", "min"):
            # the order must not depend on what torch calls its symbols
            numbers = [part for part in parts if isinstance(part, int)]
            others = [part for part in parts if not isinstance(part, int)]
            others.sort(key=lambda part: canonical_json(encode(part)))
            parts = [*numbers, *others] if op == "mul" else [*others, *numbers]
        return Compound(op, tuple(parts))

    def _quotient(self, expr: sympy.Expr) -> sympy.Expr:
        # a plan has no fractions: the numbers in it must be whole once the division is carried out
        numerator, denominator = expr.args
        quotient = sympy.cancel(numerator / denominator)
        if any(not coefficient.is_integer for coefficient in sympy.Poly(quotient, *quotient.free_symbols).coeffs()):
            raise self._unsupported(expr)
        return sympy.expand(quotient)

    def _unsupported(self, expr: sympy.Expr) -> EdgeError:
        return EdgeError(
            "a size depends on the inputs in a way that a plan cannot express",
            where=self._where,
            found=f"`{expr}`",
            hint="compute it from sizes by +, -, *, //, %, ** with a constant, max and min",
        )


def finite(bound: sympy.Expr) -> int | None:
    return int(bound) if bound.is_Integer and abs(int(bound)) < 2**62 else None
