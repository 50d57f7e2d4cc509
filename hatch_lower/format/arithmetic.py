"""Operations in symbolic sizes: the kinds of their arguments, and their values by the rules of Python.

Errors of Python become values: a division by 0, a root of a negative number or an overflow is -1 as an integer, which
is never a valid size, and NaN as a real number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial, reduce
from types import MappingProxyType
from typing import Any

EXPONENT_LIMIT = 64
BITS_LIMIT = 4096  # of the result of a power whose exponent is not a literal
NO_SIZE = -1


class Kind(Enum):
    INTEGER = "integer"
    REAL = "real"
    CONDITION = "condition"


NUMBERS = (Kind.INTEGER, Kind.REAL)


@dataclass(frozen=True, slots=True)
class Operation:
    arity: int | None  # `None`: any number from 1
    kind: Callable[..., Kind | None]  # kinds of the arguments to kind of the result; `None` if the arguments do not fit
    compute: Callable[..., Any]
    sign: str = ""  # Python's operator sign, written between the arguments


def only(given: Kind, result: Kind) -> Callable[..., Kind | None]:
    return lambda *kinds: result if all(kind is given for kind in kinds) else None


def any_number(result: Kind) -> Callable[..., Kind | None]:
    return lambda *kinds: result if len(set(kinds)) == 1 and kinds[0] in NUMBERS else None


def same(*kinds: Kind) -> Kind | None:
    return kinds[0] if len(set(kinds)) == 1 and kinds[0] in NUMBERS else None


def chosen(condition: Kind, yes: Kind, no: Kind) -> Kind | None:
    return same(yes, no) if condition is Kind.CONDITION else None


def rounded(real: Kind, digits: Kind) -> Kind | None:
    return Kind.REAL if real is Kind.REAL and digits is Kind.INTEGER else None


def divide(numerator: int, denominator: int) -> int:
    return numerator // denominator if denominator else NO_SIZE


def modulo(numerator: int, denominator: int) -> int:
    return numerator % denominator if denominator else NO_SIZE


def power(base: int, exponent: int) -> int:
    if exponent < 0 or (abs(base) > 1 and exponent * base.bit_length() > BITS_LIMIT):
        return NO_SIZE
    return int(base**exponent)


def total(*numbers: Any) -> Any:
    return reduce(operator.add, numbers)  # not `sum`: `sum` rounds real numbers less than `+` does


def product(*numbers: Any) -> Any:
    return reduce(operator.mul, numbers)


def greatest(*numbers: Any) -> Any:
    return max(numbers)


def least(*numbers: Any) -> Any:
    return min(numbers)


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


INTEGERS, REALS = only(Kind.INTEGER, Kind.INTEGER), only(Kind.REAL, Kind.REAL)
CONDITIONS, COMPARED = only(Kind.CONDITION, Kind.CONDITION), any_number(Kind.CONDITION)
REAL_FUNCTIONS = (*("acos", "asin", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),)
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "abs": Operation(1, same, abs),
        "add": Operation(None, same, total, " + "),
        "and": Operation(None, CONDITIONS, lambda *conditions: all(conditions), " and "),
        "bitand": Operation(2, INTEGERS, operator.and_, " & "),
        "bitor": Operation(2, INTEGERS, operator.or_, " | "),
        "bitxor": Operation(2, INTEGERS, operator.xor, " ^ "),
        "ceil": Operation(1, only(Kind.REAL, Kind.INTEGER), partial(whole, math.ceil)),
        "eq": Operation(2, COMPARED, operator.eq, " == "),
        "float": Operation(1, only(Kind.INTEGER, Kind.REAL), partial(real, float)),
        "floor": Operation(1, only(Kind.REAL, Kind.INTEGER), partial(whole, math.floor)),
        "floordiv": Operation(2, INTEGERS, divide, "//"),
        "le": Operation(2, COMPARED, operator.le, " <= "),
        "lt": Operation(2, COMPARED, operator.lt, " < "),
        "max": Operation(None, same, greatest),
        "min": Operation(None, same, least),
        "mod": Operation(2, INTEGERS, modulo, " % "),
        "mul": Operation(None, same, product, "*"),
        "ne": Operation(2, COMPARED, operator.ne, " != "),
        "neg": Operation(1, same, operator.neg, "-"),
        "not": Operation(1, CONDITIONS, operator.not_, "not "),
        "or": Operation(None, CONDITIONS, lambda *conditions: any(conditions), " or "),
        "pow": Operation(2, INTEGERS, power, "**"),
        "realpow": Operation(2, REALS, partial(real, operator.pow), "**"),
        "round": Operation(1, only(Kind.REAL, Kind.INTEGER), partial(whole, round)),
        "rounddecimal": Operation(2, rounded, partial(real, round)),
        "sub": Operation(2, same, operator.sub, " - "),
        "truediv": Operation(2, any_number(Kind.REAL), partial(real, operator.truediv), " / "),
        "trunc": Operation(1, only(Kind.REAL, Kind.INTEGER), partial(whole, math.trunc)),
        "where": Operation(3, chosen, lambda condition, yes, no: yes if condition else no),
        **{name: Operation(1, REALS, partial(real, getattr(math, name))) for name in REAL_FUNCTIONS},
    }
)
