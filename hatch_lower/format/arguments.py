"""Arguments of instructions: values by slot, constants by name, literals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from hatch_lower.format.dtypes import DTYPES
from hatch_lower.format.reading import read_integer, read_natural, read_pair, read_text, refuse

DEPTH_LIMIT = 8
LAYOUTS = frozenset({"jagged", "sparse_bsc", "sparse_bsr", "sparse_coo", "sparse_csc", "sparse_csr", "strided"})
MEMORY_FORMATS = frozenset({"channels_last", "channels_last_3d", "contiguous_format", "preserve_format"})


@dataclass(frozen=True, slots=True)
class Value:
    """What an instruction or an input of the same graph put into a slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class ConstantName:
    """A constant of the plan."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """One of torch's own constants: kind `dtype`, `device`, `layout` or `memory_format`, and its name there."""

    kind: str
    name: str


Literal: TypeAlias = bool | int | float | complex | str | Special | None
Argument: TypeAlias = "Literal | Value | ConstantName | tuple[Argument, ...]"


def read_argument(value: Any, where: str, depth: int = 0) -> Argument:
    """Return the argument that `value` describes; lists become tuples, of at most 8 levels."""
    if isinstance(value, dict):
        if len(value) != 1:
            refuse(where, f"an object of {len(value)} keys instead of an argument")
        if "v" in value:
            return Value(read_natural(value["v"], where))
        if "c" in value:
            return ConstantName(read_text(value["c"], where))
    if isinstance(value, list):
        if depth >= DEPTH_LIMIT:
            refuse(where, f"lists of more than {DEPTH_LIMIT} levels")
        return tuple(read_argument(each, where, depth + 1) for each in value)
    return read_literal(value, where)


def read_literal(value: Any, where: str) -> Literal:
    """Return the literal that `value` describes."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return read_integer(value, where)
    if isinstance(value, float):
        return _read_number(value, where)
    if not isinstance(value, dict) or len(value) != 1:
        refuse(where, "neither a literal nor a reference")
    ((kind, content),) = value.items()
    match kind:
        case "float" if content in ("nan", "inf", "-inf"):
            # always the same NaN object, so that two equal plans compare equal
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[str(content)]
        case "complex":
            real, imaginary = read_pair(content, where)
            return complex(_read_number(real, where), _read_number(imaginary, where))
        case "dtype" if isinstance(content, str) and content in DTYPES:
            return Special("dtype", content)
        case "device" if content == "cpu":
            return Special("device", "cpu")
        case "layout" if isinstance(content, str) and content in LAYOUTS:
            return Special("layout", content)
        case "memory_format" if isinstance(content, str) and content in MEMORY_FORMATS:
            return Special("memory_format", content)
    refuse(where, f"unknown argument `{kind[:40]}`: {content!r:.40}")


def argument_json(argument: Argument) -> Any:
    """Return the JSON value that `read_argument` reads."""
    if isinstance(argument, tuple):
        return [argument_json(each) for each in argument]
    if isinstance(argument, Value):
        return {"v": argument.slot}
    if isinstance(argument, ConstantName):
        return {"c": argument.name}
    if isinstance(argument, Special):
        return {argument.kind: argument.name}
    if isinstance(argument, complex):
        return {"complex": [argument_json(argument.real), argument_json(argument.imag)]}
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    return argument


def literal_text(literal: Literal) -> str:
    """Return a literal as Python shows it."""
    return f"torch.{literal.name}" if isinstance(literal, Special) else repr(literal)


def references_in(argument: Argument) -> Iterator[Value | ConstantName]:
    """Yield every value and constant that an argument mentions, in order."""
    if isinstance(argument, tuple):
        for each in argument:
            yield from references_in(each)
    elif isinstance(argument, Value | ConstantName):
        yield argument


def _read_number(value: Any, where: str) -> float:
    """Return a floating-point number, which JSON may also write as an integer or as `{"float": …}`."""
    if isinstance(value, dict):
        number = read_literal(value, where)
        if not isinstance(number, float):
            refuse(where, "an object instead of a number")
        return number
    if type(value) is int:
        return float(read_integer(value, where))
    if not isinstance(value, float) or not math.isfinite(value):
        refuse(where, f"{value!r:.40} instead of a finite number")
    return value
