"""Arguments of instructions: values by slot, constants by name, literals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

from hatch_lower.format.codec import Damage, read_float, read_integer, read_list
from hatch_lower.format.values import DTYPES, read_natural, read_text

DEPTH_LIMIT = 8
# kind of torch's own constants to the names that a plan may hold
NAMES = {
    "dtype": frozenset(DTYPES),
    "device": frozenset({"cpu"}),
    "layout": frozenset({"jagged", "sparse_bsc", "sparse_bsr", "sparse_coo", "sparse_csc", "sparse_csr", "strided"}),
    "memory_format": frozenset({"channels_last", "channels_last_3d", "contiguous_format", "preserve_format"}),
}


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a slot, written by an instruction or an input of the same graph."""

    slot: int

    def to_json(self) -> object:
        return {"v": self.slot}


@dataclass(frozen=True, slots=True)
class ConstantName:
    name: str

    def to_json(self) -> object:
        return {"c": self.name}


@dataclass(frozen=True, slots=True)
class Special:
    # a constant of torch itself: a kind and a name of `NAMES`
    kind: str
    name: str

    def to_json(self) -> object:
        return {self.kind: self.name}


def read_argument(value: object, depth: int = 0) -> object:
    if isinstance(value, dict):
        if len(value) != 1:
            raise Damage(f"an object of {len(value)} keys instead of an argument")
        if "v" in value:
            return Value(read_natural(value["v"]))
        if "c" in value:
            return ConstantName(read_text(value["c"]))
    if isinstance(value, list):
        if depth >= DEPTH_LIMIT:  # well before Python's `RecursionError`
            raise Damage(f"lists of more than {DEPTH_LIMIT} levels")
        # a tuple, because a plan is frozen
        return tuple(read_argument(item, depth + 1) for item in value)
    return read_literal(value)


def read_literal(value: object) -> object:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return read_integer(value)
    if isinstance(value, float):
        return read_float(value)
    if not isinstance(value, dict) or len(value) != 1:
        raise Damage("neither a literal nor a reference")
    ((kind, content),) = value.items()
    if kind == "float" and content in ("nan", "inf", "-inf"):
        # always the same NaN object, so that two equal plans compare equal
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
    if kind == "complex" and len(read_list(content)) == 2:
        return complex(*map(_read_number, content))
    if isinstance(content, str) and content in NAMES.get(kind, ()):
        return Special(kind, content)
    raise Damage(f"unknown argument `{kind[:40]}`: {content!r:.40}")


Literal = Annotated[bool | int | float | complex | str | Special | None, read_literal]
if TYPE_CHECKING:
    Argument: TypeAlias = "Literal | Value | ConstantName | tuple[Argument, ...]"
else:  # a type cannot contain itself at run time
    Argument = Annotated[object, read_argument]


def literal_text(literal: Literal) -> str:
    return f"torch.{literal.name}" if isinstance(literal, Special) else repr(literal)


def references_in(argument: Argument) -> Iterator[Value | ConstantName]:
    if isinstance(argument, tuple):
        for item in argument:
            yield from references_in(item)
    elif isinstance(argument, Value | ConstantName):
        yield argument


def constants_in(arguments: Iterable[Argument]) -> Iterator[str]:
    for argument in arguments:
        yield from (each.name for each in references_in(argument) if isinstance(each, ConstantName))


def _read_number(value: object) -> float:
    # JSON may also write a float as an integer or as `{"float": …}`
    if not isinstance(value, dict):
        return read_float(value)
    number = read_literal(value)
    if not isinstance(number, float):
        raise Damage("an object instead of a number")
    return number
