"""Sizes that depend on symbols: `int | "s0" | {"op": …, "args": […]}`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from hatch_lower.format.codec import Damage, encode, read_integer, read_list

DEPTH_LIMIT = 32
POWER_LIMIT = 64


def divide(numerator: int, denominator: int) -> int:
    # -1 is no size, and so refused where it is compared
    return numerator // denominator if denominator else -1


def modulo(numerator: int, denominator: int) -> int:
    return numerator % denominator if denominator else -1


# operation to its number of arguments (`None`: one or more) and its value; a division by a symbol that is 0 gives -1,
# which is no size
OPERATIONS: Mapping[str, tuple[int | None, Callable[[Sequence[int]], int]]] = MappingProxyType(
    {
        "add": (None, sum),
        "floordiv": (2, lambda args: divide(*args)),
        "max": (None, max),
        "min": (None, min),
        "mod": (2, lambda args: modulo(*args)),
        "mul": (None, math.prod),
        "neg": (1, lambda args: -args[0]),
        "pow": (2, lambda args: int(args[0] ** args[1])),
        "sub": (2, lambda args: args[0] - args[1]),
    }
)


@dataclass(frozen=True, slots=True)
class Compound:
    op: str
    args: tuple[Expression, ...]

    def to_json(self) -> object:
        return {"op": self.op, "args": encode(self.args)}


def read_symbol(value: object) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isidentifier():
        raise Damage(f"{value!r:.40} instead of a symbol")
    return value


def read_expression(value: object, depth: int = 0) -> Any:
    if isinstance(value, str):
        return read_symbol(value)
    if not isinstance(value, dict):
        return read_integer(value)
    if value.keys() != {"op", "args"}:
        raise Damage("an object without just `op` and `args` instead of a size")
    op = value["op"]
    if not isinstance(op, str) or op not in OPERATIONS:
        raise Damage(f"unknown operation {op!r:.40}")
    if depth >= DEPTH_LIMIT:
        raise Damage(f"an expression of more than {DEPTH_LIMIT} levels")
    args = tuple(read_expression(part, depth + 1) for part in read_list(value["args"]))
    arity, _ = OPERATIONS[op]
    if len(args) != arity if arity is not None else not args:
        raise Damage(f"`{op}` of {len(args)} arguments")
    if op in ("floordiv", "mod") and args[1] == 0:
        raise Damage("a division by 0")
    # a file must not make its reader compute huge numbers
    if op == "pow" and not (isinstance(args[1], int) and 0 <= args[1] <= POWER_LIMIT):
        raise Damage("an exponent that is no literal from 0 to 64")
    compound = Compound(op, args)
    if op == "pow" and _degree(compound) > POWER_LIMIT:
        raise Damage("a power of a power beyond 64")
    return compound


SymbolName = Annotated[str, read_symbol]
Expression = Annotated[int | str | Compound, read_expression]


def symbols_in(expression: Expression) -> frozenset[str]:
    if isinstance(expression, Compound):
        return frozenset[str]().union(*(symbols_in(part) for part in expression.args))
    return frozenset({expression}) if isinstance(expression, str) else frozenset()


def evaluate(expression: Expression, values: Mapping[str, int]) -> int:
    if isinstance(expression, str):
        return values[expression]
    if isinstance(expression, int):
        return expression
    _, compute = OPERATIONS[expression.op]
    return compute([evaluate(part, values) for part in expression.args])


def expression_text(expression: Expression, names: Mapping[str, str]) -> str:
    """Return an expression as a reader would write it, with `names` for the symbols: `2*batch + 1`."""
    if isinstance(expression, str):
        return names.get(expression, expression)
    if isinstance(expression, int):
        return str(expression)
    texts = [expression_text(part, names) for part in expression.args]
    match expression.op:
        case "add" | "sub":
            return texts[0] + "".join(map(partial(_term, expression.op), expression.args[1:], texts[1:]))
        case "max" | "min":
            return f"{expression.op}({', '.join(texts)})"
    grouped = [_grouped(part, text) for part, text in zip(expression.args, texts, strict=True)]
    joints = {"mul": "*", "floordiv": "//", "mod": " % ", "pow": "**"}
    return f"-{grouped[0]}" if expression.op == "neg" else joints[expression.op].join(grouped)


def _degree(expression: Expression) -> int:
    # how many factors are multiplied in the end: what it takes to evaluate grows with it
    if not isinstance(expression, Compound):
        return 1
    inner = (sum if expression.op == "mul" else max)(map(_degree, expression.args))
    exponent = expression.args[-1] if expression.op == "pow" else 1
    return inner * max(1, exponent) if isinstance(exponent, int) else inner


def _term(op: str, expression: Expression, text: str) -> str:
    if op == "add" and isinstance(expression, int) and expression < 0:
        return f" - {-expression}"
    return f"{' + ' if op == 'add' else ' - '}{_grouped(expression, text)}"


def _grouped(expression: Expression, text: str) -> str:
    loose = isinstance(expression, Compound) and expression.op not in ("max", "min")
    return f"({text})" if loose or (isinstance(expression, int) and expression < 0) else text
