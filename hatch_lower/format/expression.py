"""Sizes that depend on symbols: `int | "s0" | {"op": …, "args": […]}`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from hatch_lower.format.reading import read_fields, read_integer, read_list, refuse

DEPTH_LIMIT = 32
POWER_LIMIT = 64
ARITIES: Mapping[str, int | None] = MappingProxyType(
    {"add": None, "floordiv": 2, "max": None, "min": None, "mod": 2, "mul": None, "neg": 1, "pow": 2, "sub": 2}
)
"""Operation to its number of arguments; `None`: one or more."""


@dataclass(frozen=True, slots=True)
class Compound:
    """An operation over expressions."""

    op: str
    args: tuple[Expression, ...]


Expression: TypeAlias = int | str | Compound


def read_symbol(value: Any, where: str) -> str:
    """Return `value`, the name of a symbol: ASCII letters, digits and underscores."""
    if not isinstance(value, str) or not value.isascii() or not value.isidentifier():
        refuse(where, f"{value!r:.40} instead of a symbol")
    return value


def read_expression(value: Any, where: str, depth: int = 0) -> Expression:
    """Return the expression that `value` describes.

    Raises:
        ProgramError: for an unknown operation, a wrong number of arguments, division by the literal 0, an exponent
            that is not a literal from 0 to 64, powers of powers beyond that, or more than 32 levels.
    """
    if isinstance(value, str):
        return read_symbol(value, where)
    if not isinstance(value, dict):
        return read_integer(value, where)
    fields = read_fields(value, frozenset({"op", "args"}), where)
    op = fields["op"]
    if not isinstance(op, str) or op not in ARITIES:
        refuse(where, f"unknown operation {op!r:.40}")
    if depth >= DEPTH_LIMIT:
        refuse(where, f"an expression of more than {DEPTH_LIMIT} levels")
    args = tuple(read_expression(each, where, depth + 1) for each in read_list(fields["args"], where))
    arity = ARITIES[op]
    if len(args) != arity if arity is not None else not args:
        refuse(where, f"`{op}` of {len(args)} arguments")
    if op in ("floordiv", "mod") and args[1] == 0:
        refuse(where, "a division by 0")
    if op == "pow" and not (isinstance(args[1], int) and 0 <= args[1] <= POWER_LIMIT):
        refuse(where, "an exponent that is no literal from 0 to 64")
    compound = Compound(op, args)
    if op == "pow" and _degree(compound) > POWER_LIMIT:
        refuse(where, "a power of a power beyond 64")
    return compound


def expression_json(expression: Expression) -> Any:
    """Return the JSON value that `read_expression` reads."""
    if isinstance(expression, Compound):
        return {"op": expression.op, "args": [expression_json(each) for each in expression.args]}
    return expression


def symbols_in(expression: Expression) -> frozenset[str]:
    """Return the names of the symbols that an expression depends on."""
    if isinstance(expression, Compound):
        return frozenset[str]().union(*(symbols_in(each) for each in expression.args))
    return frozenset({expression}) if isinstance(expression, str) else frozenset()


def evaluate(expression: Expression, values: Mapping[str, int]) -> int:
    """Return an expression's value; a division by a symbol that is 0 gives -1, which is no size."""
    if isinstance(expression, str):
        return values[expression]
    if isinstance(expression, int):
        return expression
    args = [evaluate(each, values) for each in expression.args]
    match expression.op:
        case "add":
            return sum(args)
        case "mul":
            return math.prod(args)
        case "sub":
            return args[0] - args[1]
        case "neg":
            return -args[0]
        case "max":
            return max(args)
        case "min":
            return min(args)
        case "pow":
            return int(args[0] ** args[1])
        case "mod":
            return args[0] % args[1] if args[1] else -1
        case _:
            return args[0] // args[1] if args[1] else -1


def expression_text(expression: Expression, names: Mapping[str, str]) -> str:
    """Return an expression as a reader would write it, with `names` for the symbols: `2*batch + 1`."""
    if isinstance(expression, str):
        return names.get(expression, expression)
    if isinstance(expression, int):
        return str(expression)
    texts = [expression_text(each, names) for each in expression.args]
    match expression.op:
        case "add" | "sub":
            return texts[0] + "".join(map(partial(_term, expression.op), expression.args[1:], texts[1:]))
        case "max" | "min":
            return f"{expression.op}({', '.join(texts)})"
    grouped = [_grouped(each, text) for each, text in zip(expression.args, texts, strict=True)]
    joints = {"mul": "*", "floordiv": "//", "mod": " % ", "pow": "**"}
    return f"-{grouped[0]}" if expression.op == "neg" else joints[expression.op].join(grouped)


def _degree(expression: Expression) -> int:
    """Return the product of the exponents over the deepest power: what it takes to evaluate grows with it."""
    if not isinstance(expression, Compound):
        return 1
    inner = max(map(_degree, expression.args))
    exponent = expression.args[-1] if expression.op == "pow" else 1
    return inner * max(1, exponent) if isinstance(exponent, int) else inner


def _term(op: str, expression: Expression, text: str) -> str:
    """Return a further term of a sum, with its sign."""
    if op == "add" and isinstance(expression, int) and expression < 0:
        return f" - {-expression}"
    return f"{' + ' if op == 'add' else ' - '}{_grouped(expression, text)}"


def _grouped(expression: Expression, text: str) -> str:
    """Put brackets around what would bind differently."""
    loose = isinstance(expression, Compound) and expression.op not in ("max", "min")
    return f"({text})" if loose or (isinstance(expression, int) and expression < 0) else text
