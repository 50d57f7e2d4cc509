"""Symbolic sizes: torch's symbols renamed in order of appearance, with ranges, and expressions over the symbols."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import sympy
import torch

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import EdgeError
from hatch_lower.format.arguments import Input, Symbol, SymbolInput, TensorInput, expressions_in, is_contiguous
from hatch_lower.format.codec import encode
from hatch_lower.format.expression import (
    EXPONENT_LIMIT,
    OPERATIONS,
    Compound,
    Expression,
    NumberKind,
    find_number_kind,
    symbols_in,
)
from hatch_lower.runtime.analysis import bind_symbols
from hatch_lower.runtime.torch_private import symbols as torch_symbols
from hatch_lower.runtime.torch_private.symbols import ValueRanges, bound_sympy, function_name, unsimplified

SYMBOL = re.compile(r"\b[a-z]+\d+\b")
OPERATORS: Mapping[type, str] = {
    **dict.fromkeys((sympy.Max, torch_symbols.Max), "max"),
    **dict.fromkeys((sympy.Min, torch_symbols.Min), "min"),
    **dict.fromkeys((torch_symbols.FloorDiv, torch_symbols.CleanDiv), "floordiv"),
    **dict.fromkeys((sympy.Mod, torch_symbols.Mod, torch_symbols.PythonMod), "mod"),
    **dict.fromkeys((sympy.ceiling, torch_symbols.CeilToInt), "ceil"),
    **dict.fromkeys((sympy.floor, torch_symbols.FloorToInt), "floor"),
    **dict.fromkeys((torch_symbols.FloatTrueDiv, torch_symbols.IntTrueDiv), "truediv"),
    sympy.Abs: "abs",
    sympy.Add: "add",
    sympy.And: "and",
    sympy.Eq: "eq",
    sympy.Le: "le",
    sympy.Lt: "lt",
    sympy.Mul: "mul",
    sympy.Ne: "ne",
    sympy.Not: "not",
    sympy.Or: "or",
    torch_symbols.FloatPow: "realpow",
    torch_symbols.RoundDecimal: "rounddecimal",
    torch_symbols.RoundToInt: "round",
    torch_symbols.ToFloat: "float",
    torch_symbols.TruncToInt: "trunc",
    torch_symbols.Where: "where",
}
SWAPPED: Mapping[type, str] = {sympy.Ge: "le", sympy.Gt: "lt"}
COMMUTATIVE = frozenset({"add", "and", "max", "min", "mul", "or"})
ROUNDINGS = frozenset({"ceil", "floor", "round", "trunc"})
BITWISE: Mapping[str, str] = {"bitwise_and": "bitand", "bitwise_or": "bitor", "bitwise_xor": "bitxor"}


class SizeSymbols:
    def __init__(
        self, ranges: Mapping[sympy.Expr, ValueRanges[sympy.Expr]], labels: Mapping[str, str], where: str
    ) -> None:
        self._constraints = ranges
        self._labels = labels
        self._where = where
        self._names: dict[sympy.Symbol, str] = {}
        self._inputs: set[sympy.Symbol] = set()

    def close_inputs(self) -> None:
        # all symbols so far come from inputs, and the executor checks their ranges
        self._inputs = set(self._names)

    def determined(self, inputs: Sequence[Input]) -> tuple[Input, ...]:
        """Replace, in inputs, expressions whose symbols do not follow from the sizes by a new symbol each."""
        # occurs in parts of a method: a tensor with `int(0.5 * s0)` rows does not determine `s0`
        known = {binding.symbol for binding in bind_symbols(inputs)}
        wholes: dict[Expression, str] = {}

        def whole(expression: Expression) -> Expression:
            if symbols_in(expression) <= known:
                return expression
            if expression not in wholes:
                wholes[expression] = self._names[sympy.Dummy(integer=True)] = f"s{len(self._names)}"
            return wholes[expression]

        found: list[Input] = []
        for entry in inputs:
            if isinstance(entry, TensorInput) and not symbols_in_all(entry) <= known and is_contiguous(entry):
                shape = tuple(map(whole, entry.shape))
                found.append(TensorInput(entry.dtype, shape, contiguous_strides(shape)))
            else:
                found.append(SymbolInput(whole(entry.expr)) if isinstance(entry, SymbolInput) else entry)
        return tuple(found)

    def expr(self, value: int | torch.SymInt | sympy.Expr) -> Expression:
        if isinstance(value, int):
            return value
        return self._whole(value.node.expr if isinstance(value, torch.SymInt) else value)

    def ranges(self) -> dict[str, Symbol]:
        # for the symbols in expressions; sizes are not negative
        symbols = {}
        for symbol, name in self._names.items():
            bounds = self._range(symbol)
            symbols[name] = Symbol(
                max(0, finite_bound(bounds.lower) or 0), finite_bound(bounds.upper), self._labels.get(str(symbol), name)
            )
        return symbols

    def proves(self, value: object) -> bool:
        """Return whether a condition (`bool` or `torch.SymBool`) holds for all inputs in range."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, torch.SymBool):
            return False
        # `node.expr` presupposes the assertion: it has already merged the symbols that the assertion declares equal
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
        # If only a multiple of a symbol was constrained (a size of `2 * Dim("half")`), torch reports a lower bound of 2
        # for the symbol, which is only an assumption of tracing; the multiple's range has the declared bound.
        own = self._constraints.get(symbol, ValueRanges.unknown_int())
        for constrained, bounds in self._constraints.items():
            if constrained.free_symbols != {symbol} or constrained == symbol or own.lower != 2:
                continue
            factor, rest = constrained.coeff(symbol), constrained - constrained.coeff(symbol) * symbol
            if factor.is_integer and factor > 0 and rest.is_integer:
                return ValueRanges(max(sympy.Integer(0), sympy.ceiling((bounds.lower - rest) / factor)), own.upper)
        return own

    def _whole(self, expr: sympy.Expr) -> Expression:
        if isinstance(expr, torch_symbols.IntTrueDiv):
            expr = self._quotient(expr)
        converted = self._convert(expr)
        if find_number_kind(converted) is not NumberKind.INTEGER:
            raise self._unsupported(expr)
        return converted

    def _convert(self, expr: sympy.Basic) -> Expression:
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Float):
            return float(expr)
        if expr in (sympy.true, sympy.false):
            return bool(expr)
        if isinstance(expr, sympy.Symbol):
            return self._names.setdefault(expr, f"s{len(self._names)}")
        if isinstance(expr, torch_symbols.Identity):
            return self._convert(expr.args[0])
        if isinstance(expr, sympy.Piecewise):
            return self._pieces(expr)
        if isinstance(expr, (sympy.Pow, torch_symbols.PowByNatural)):
            return self._power(*expr.args)
        parts = [self._convert(part) for part in expr.args]
        if isinstance(expr, torch_symbols.ModularIndexing):
            return self._compound(expr, "mod", [Compound("floordiv", tuple(parts[:2])), parts[2]])
        if isinstance(expr, (torch_symbols.LShift, torch_symbols.RShift)):
            factor = Compound("pow", (2, parts[1]))
            return self._compound(
                expr, "mul" if isinstance(expr, torch_symbols.LShift) else "floordiv", [parts[0], factor]
            )
        if isinstance(expr, torch_symbols.TruncToFloat):
            return Compound("float", (self._compound(expr, "trunc", parts),))
        if type(expr) in SWAPPED:
            return self._compound(expr, SWAPPED[type(expr)], parts[::-1])
        op = OPERATORS.get(type(expr)) or function_name(type(expr), "OpaqueUnaryFn_")
        op = op or BITWISE.get(function_name(type(expr), "BitwiseFn_"), "")
        return self._compound(expr, op, parts)

    def _compound(self, expr: sympy.Basic, op: str, parts: list[Expression]) -> Expression:
        if op not in OPERATIONS:
            raise self._unsupported(expr)
        if op in COMMUTATIVE:
            # the order must not depend on torch's names of symbols
            numbers = [part for part in parts if isinstance(part, int | float)]
            others = [part for part in parts if not isinstance(part, int | float)]
            others.sort(key=lambda part: canonical_json(encode(part)))
            parts = [*numbers, *others] if op == "mul" else [*others, *numbers]
        if op in ROUNDINGS and find_number_kind(parts[0]) is NumberKind.INTEGER:
            return parts[0]
        if OPERATIONS[op].kind(*map(find_number_kind, parts)) is None:
            # Python converts an integer operand to a real number if the other operand is real
            parts = [real_of(part) if find_number_kind(part) is NumberKind.INTEGER else part for part in parts]
        if OPERATIONS[op].kind(*map(find_number_kind, parts)) is None:
            raise self._unsupported(expr)
        return Compound(op, tuple(parts))

    def _power(self, base: sympy.Expr, exponent: sympy.Expr) -> Expression:
        expr = sympy.Pow(base, exponent, evaluate=False)
        if isinstance(exponent, sympy.Rational) and not (exponent.is_Integer and 0 <= int(exponent) <= EXPONENT_LIMIT):
            raise self._unsupported(expr)
        parts = [self._convert(base), self._convert(exponent)]
        if isinstance(exponent, sympy.Integer) and find_number_kind(parts[0]) is NumberKind.REAL:
            # sympy writes a product of equal factors as a power
            return self._compound(expr, "mul", parts[:1] * int(exponent))
        return self._compound(expr, "pow", parts)

    def _pieces(self, expr: sympy.Piecewise) -> Expression:
        pieces = [(self._convert(value), self._convert(condition)) for value, condition in expr.args]
        chosen, last = pieces[-1]
        if last is not True:
            raise self._unsupported(expr)
        for value, condition in reversed(pieces[:-1]):
            values = [value, chosen]
            if len({find_number_kind(each) for each in values}) > 1:
                values = [real_of(each) if find_number_kind(each) is NumberKind.INTEGER else each for each in values]
            chosen = self._compound(expr, "where", [condition, *values])
        return chosen

    def _quotient(self, expr: sympy.Expr) -> sympy.Expr:
        # a size is a whole number, so after the division all coefficients must be whole
        numerator, denominator = expr.args
        quotient = sympy.cancel(numerator / denominator)
        if any(not coefficient.is_integer for coefficient in sympy.Poly(quotient, *quotient.free_symbols).coeffs()):
            raise self._unsupported(expr)
        return sympy.expand(quotient)

    def _unsupported(self, expr: sympy.Basic) -> EdgeError:
        return EdgeError(
            "a size depends on the inputs in a way that a plan cannot express",
            where=self._where,
            found=f"`{expr}`",
            hint="compute the size from sizes with Python's arithmetic, `min`, `max`, `round`, and functions of `math`",
        )


def symbols_in_all(entry: Input) -> frozenset[str]:
    return frozenset[str]().union(*map(symbols_in, expressions_in(entry)))


def contiguous_strides(shape: Sequence[Expression]) -> tuple[Expression, ...]:
    inner = [shape[dimension + 1 :] for dimension in range(len(shape))]
    return tuple(Compound("mul", tuple(sizes)) if len(sizes) > 1 else sizes[0] if sizes else 1 for sizes in inner)


def real_of(part: Expression) -> Expression:
    return float(part) if isinstance(part, int) else Compound("float", (part,))


def finite_bound(bound: sympy.Expr) -> int | None:
    return int(bound) if bound.is_Integer and abs(int(bound)) < 2**62 else None
