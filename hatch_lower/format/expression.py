"""Symbolic sizes: `int | float | bool | "s0" | {"op": …, "args": […]}`, evaluated by the rules of Python. A size is
an integer. Its expression may contain real numbers, of double precision, and conditions. Each operation declares
the kinds of its arguments, so that every error of kind is found while the file is read. Errors of Python become
values: a division by 0, a root of a negative number or an overflow is -1 as an integer, which is never a valid
size, and NaN as a real number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial, reduce
from types import MappingProxyType
from typing import Annotated, Any

from hatch_lower.format.codec import Damage, encode, read_float, read_integer, read_list

EXPONENT_LIMIT = 64
BITS_LIMIT = 4096  # of the result of a power whose exponent is not a literal
NO_SIZE = -1


class NumberKind(Enum):
    # the values are for messages
    INTEGER = "an integer"
    REAL = "a real number"
    CONDITION = "a condition"


NUMBERS = (NumberKind.INTEGER, NumberKind.REAL)
ROUNDED = (NumberKind.REAL, NumberKind.INTEGER)  # a number and its number of digits


@dataclass(frozen=True, slots=True)
class SizeOperation:
    arity: int | None  # `None`: any number from 1
    # kinds of the arguments to kind of the result; `None` if the arguments do not fit
    kind: Callable[..., NumberKind | None]
    compute: Callable[..., Any]
    sign: str = ""  # Python's operator sign, written between the arguments


def only(given: NumberKind, result: NumberKind) -> Callable[..., NumberKind | None]:
    return lambda *kinds: result if all(kind is given for kind in kinds) else None


def any_number(result: NumberKind) -> Callable[..., NumberKind | None]:
    return lambda *kinds: result if len(set(kinds)) == 1 and kinds[0] in NUMBERS else None


def same(*kinds: NumberKind) -> NumberKind | None:
    return kinds[0] if len(set(kinds)) == 1 and kinds[0] in NUMBERS else None


def chosen(condition: NumberKind, yes: NumberKind, no: NumberKind) -> NumberKind | None:
    return same(yes, no) if condition is NumberKind.CONDITION else None


def power(base: int, exponent: int) -> int:
    if exponent < 0 or (abs(base) > 1 and exponent * base.bit_length() > BITS_LIMIT):
        return NO_SIZE
    return int(base**exponent)


def real(function: Callable[..., Any], *numbers: Any) -> float:
    """Return the value of a function of real numbers; NaN if Python raises an error or returns a complex number."""
    try:
        value = function(*numbers)
    except (ArithmeticError, ValueError):
        return math.nan
    return value if isinstance(value, float) else math.nan


def whole(function: Callable[[float], int], number: Any) -> int:
    """Round a real number to an integer; -1 for NaN and infinities."""
    return function(number) if math.isfinite(number) else NO_SIZE


INTEGERS, REALS = only(NumberKind.INTEGER, NumberKind.INTEGER), only(NumberKind.REAL, NumberKind.REAL)
CONDITIONS, COMPARED = only(NumberKind.CONDITION, NumberKind.CONDITION), any_number(NumberKind.CONDITION)
REAL_FUNCTIONS = (*("acos", "asin", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),)
OPERATIONS: Mapping[str, SizeOperation] = MappingProxyType(
    {
        "abs": SizeOperation(1, same, abs),
        # not `sum`: `sum` rounds real numbers less than `+` does
        "add": SizeOperation(None, same, lambda *numbers: reduce(operator.add, numbers), " + "),
        "and": SizeOperation(None, CONDITIONS, lambda *conditions: all(conditions), " and "),
        "bitand": SizeOperation(2, INTEGERS, operator.and_, " & "),
        "bitor": SizeOperation(2, INTEGERS, operator.or_, " | "),
        "bitxor": SizeOperation(2, INTEGERS, operator.xor, " ^ "),
        "ceil": SizeOperation(1, only(NumberKind.REAL, NumberKind.INTEGER), partial(whole, math.ceil)),
        "eq": SizeOperation(2, COMPARED, operator.eq, " == "),
        "float": SizeOperation(1, only(NumberKind.INTEGER, NumberKind.REAL), partial(real, float)),
        "floor": SizeOperation(1, only(NumberKind.REAL, NumberKind.INTEGER), partial(whole, math.floor)),
        "floordiv": SizeOperation(2, INTEGERS, lambda one, other: one // other if other else NO_SIZE, "//"),
        "le": SizeOperation(2, COMPARED, operator.le, " <= "),
        "lt": SizeOperation(2, COMPARED, operator.lt, " < "),
        "max": SizeOperation(None, same, lambda *numbers: max(numbers)),
        "min": SizeOperation(None, same, lambda *numbers: min(numbers)),
        "mod": SizeOperation(2, INTEGERS, lambda one, other: one % other if other else NO_SIZE, " % "),
        "mul": SizeOperation(None, same, lambda *numbers: reduce(operator.mul, numbers), "*"),
        "ne": SizeOperation(2, COMPARED, operator.ne, " != "),
        "neg": SizeOperation(1, same, operator.neg, "-"),
        "not": SizeOperation(1, CONDITIONS, operator.not_, "not "),
        "or": SizeOperation(None, CONDITIONS, lambda *conditions: any(conditions), " or "),
        "pow": SizeOperation(2, INTEGERS, power, "**"),
        "realpow": SizeOperation(2, REALS, partial(real, operator.pow), "**"),
        "round": SizeOperation(1, only(NumberKind.REAL, NumberKind.INTEGER), partial(whole, round)),
        "rounddecimal": SizeOperation(2, lambda *kinds: kinds[0] if kinds == ROUNDED else None, partial(real, round)),
        "sub": SizeOperation(2, same, operator.sub, " - "),
        "truediv": SizeOperation(2, any_number(NumberKind.REAL), partial(real, operator.truediv), " / "),
        "trunc": SizeOperation(1, only(NumberKind.REAL, NumberKind.INTEGER), partial(whole, math.trunc)),
        "where": SizeOperation(3, chosen, lambda condition, yes, no: yes if condition else no),
        **{name: SizeOperation(1, REALS, partial(real, getattr(math, name))) for name in REAL_FUNCTIONS},
    }
)


DEPTH_LIMIT = 32


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


def read_expression(value: object) -> Any:
    expression = read_part(value, 0)
    if (kind := find_number_kind(expression)) is not NumberKind.INTEGER:
        raise Damage(f"{kind.value} instead of a size")
    return expression


def read_part(value: object, depth: int) -> Any:
    if isinstance(value, str):
        return read_symbol(value)
    if isinstance(value, float) and depth:
        return read_float(value)
    if isinstance(value, bool) and depth:
        return value
    if not isinstance(value, dict):
        return read_integer(value)
    if value.keys() != {"op", "args"}:
        raise Damage("an object with other keys than `op` and `args` instead of a size")
    op = value["op"]
    if not isinstance(op, str) or op not in OPERATIONS:
        raise Damage(f"unknown operation {op!r:.40}")
    if depth >= DEPTH_LIMIT:
        raise Damage(f"an expression of more than {DEPTH_LIMIT} levels")
    args = tuple(read_part(part, depth + 1) for part in read_list(value["args"]))
    operation = OPERATIONS[op]
    if len(args) != operation.arity if operation.arity is not None else not args:
        raise Damage(f"`{op}` of {len(args)} arguments")
    if operation.kind(*map(find_number_kind, args)) is None:
        raise Damage(f"`{op}` of {', '.join(find_number_kind(part).value for part in args[:4])}")
    if op in ("floordiv", "mod") and args[1] == 0:
        raise Damage("a division by 0")
    # reading a file must not compute huge numbers
    if op == "pow" and isinstance(args[1], int) and not 0 <= args[1] <= EXPONENT_LIMIT:
        raise Damage("an exponent that is not from 0 to 64")
    compound = Compound(op, args)
    if op == "pow" and _degree(compound) > EXPONENT_LIMIT:
        raise Damage("a power of a power beyond 64")
    return compound


SymbolName = Annotated[str, read_symbol]
Expression = Annotated[int | float | str | Compound, read_expression]


def find_number_kind(expression: Expression) -> NumberKind:
    if isinstance(expression, Compound):
        kind = OPERATIONS[expression.op].kind(*map(find_number_kind, expression.args))
        if kind is None:
            raise ValueError(f"`{expression.op}` of arguments of other kinds")
        return kind
    if isinstance(expression, bool):
        return NumberKind.CONDITION
    return NumberKind.REAL if isinstance(expression, float) else NumberKind.INTEGER


def symbols_in(expression: Expression) -> frozenset[str]:
    if isinstance(expression, Compound):
        return frozenset[str]().union(*(symbols_in(part) for part in expression.args))
    return frozenset({expression}) if isinstance(expression, str) else frozenset()


def evaluate_size(expression: Expression, values: Mapping[str, int]) -> int:
    number: int = _value(expression, values)
    return number


def expression_text(expression: Expression, names: Mapping[str, str]) -> str:
    """Return an expression in Python's notation, with `names` for the symbols: `2*batch + 1`."""
    if isinstance(expression, str):
        return names.get(expression, expression)
    if not isinstance(expression, Compound):
        return str(expression)
    texts = [expression_text(part, names) for part in expression.args]
    match expression.op:
        case "add" | "sub":
            return texts[0] + "".join(map(partial(_term, expression.op), expression.args[1:], texts[1:]))
        case "float":  # an implicit conversion of Python or torch, which a reader need not see
            return texts[0]
        case "where":
            condition, yes, no = texts
            return f"{yes} if {condition} else {no}"
    operation = OPERATIONS[expression.op]
    if len(texts) == 1 and operation.arity is None:
        return texts[0]
    if operation.sign:
        grouped = [_grouped(part, text) for part, text in zip(expression.args, texts, strict=True)]
        return operation.sign.join(grouped) if len(grouped) > 1 else f"{operation.sign}{grouped[0]}"
    return f"{expression.op}({', '.join(texts)})"


def _value(expression: Expression, values: Mapping[str, int]) -> Any:
    if isinstance(expression, str):
        return values[expression]
    if not isinstance(expression, Compound):
        return expression
    return OPERATIONS[expression.op].compute(*[_value(part, values) for part in expression.args])


def _degree(expression: Expression) -> int:
    # number of factors in the expanded product, an upper bound of the effort to evaluate the expression
    if not isinstance(expression, Compound):
        return 1
    inner = (sum if expression.op == "mul" else max)(map(_degree, expression.args))
    exponent = expression.args[-1] if expression.op == "pow" else 1
    return inner * max(1, exponent) if isinstance(exponent, int) else inner


def _term(op: str, expression: Expression, text: str) -> str:
    if op == "add" and isinstance(expression, int | float) and expression < 0:
        return f" - {-expression}"
    return f"{' + ' if op == 'add' else ' - '}{_grouped(expression, text)}"


def _grouped(expression: Expression, text: str) -> str:
    while isinstance(expression, Compound) and expression.op == "float":
        expression = expression.args[0]
    if isinstance(expression, Compound):
        loose = expression.op == "where" or bool(OPERATIONS[expression.op].sign)
    else:
        loose = isinstance(expression, int | float) and expression < 0
    return f"({text})" if loose else text
