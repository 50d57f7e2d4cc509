"""Arguments of instructions, and declared inputs of methods and delegates. An argument is a value by slot, a
constant by name, or a literal. An input is a tensor with dtype, symbolic shape and strides, a literal, or a size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

from hatch_lower.format.codec import Damage, read_float, read_integer, read_list
from hatch_lower.format.expression import Expression, evaluate_size, expression_text, symbols_in
from hatch_lower.format.values import DTYPES, Dtype, Natural, Text, read_natural, read_text
from hatch_lower.frozen import Frozen

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
        return complex(*map(_read_real, content))
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


def _read_real(value: object) -> float:
    # JSON may also write a float as an integer or as `{"float": …}`
    if not isinstance(value, dict):
        return read_float(value)
    number = read_literal(value)
    if not isinstance(number, float):
        raise Damage("an object instead of a number")
    return number


RANK_LIMIT = 64


class Symbol(Frozen):
    min: Natural
    max: Natural | None  # `None`: no limit
    name: Text  # for people

    def validate(self) -> None:
        if self.max is not None and self.max < self.min:
            raise Damage(f"a range from {self.min} to {self.max}")


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor on the CPU; shape and strides in elements."""

    kind: ClassVar[str] = "tensor"
    dtype: Dtype
    shape: tuple[Expression, ...]
    stride: tuple[Expression, ...]

    def validate(self) -> None:
        if len(self.shape) != len(self.stride) or len(self.shape) > RANK_LIMIT:
            raise Damage(f"{len(self.shape)} sizes and {len(self.stride)} strides")
        if any(isinstance(size, int) and size < 0 for size in (*self.shape, *self.stride)):
            raise Damage("a negative size or stride")


class LiteralInput(Frozen):
    # the graph is specialized for this value
    kind: ClassVar[str] = "literal"
    value: Literal


class SymbolInput(Frozen):
    # an integer for which the graph is not specialized
    kind: ClassVar[str] = "symbol"
    expr: Expression


Input: TypeAlias = TensorInput | LiteralInput | SymbolInput


def expressions_in(entry: Input) -> tuple[Expression, ...]:
    if isinstance(entry, TensorInput):
        return (*entry.shape, *entry.stride)
    return (entry.expr,) if isinstance(entry, SymbolInput) else ()


def check_symbols_declared(entry: Input, symbols: Mapping[str, Symbol]) -> None:
    for expression in expressions_in(entry):
        if unknown := sorted(symbols_in(expression) - symbols.keys()):
            raise Damage(f"the symbol `{unknown[0]}` is not declared")


def input_text(entry: Input, symbols: Mapping[str, Symbol]) -> str:
    """Describe a declared input: `float32[batch, 1, 8, 8]`, `the value 2`, `an integer (length)`."""
    if isinstance(entry, LiteralInput):
        return f"the value {literal_text(entry.value)}"
    names = {key: symbol.name for key, symbol in symbols.items()}
    if isinstance(entry, SymbolInput):
        return f"an integer ({expression_text(entry.expr, names)})"
    return f"{entry.dtype}[{', '.join(expression_text(size, names) for size in entry.shape)}]"


def range_texts(entries: Iterable[Input], symbols: Mapping[str, Symbol]) -> list[str]:
    """Return the ranges of all symbols in inputs, except symbols of strides: `batch from 1 to 1024`."""
    used: set[str] = set()
    for entry in entries:
        sizes = entry.shape if isinstance(entry, TensorInput) else expressions_in(entry)
        used.update(*map(symbols_in, sizes))
    return [
        f"{symbol.name} from {symbol.min}" + (f" to {symbol.max}" if symbol.max is not None else "")
        for symbol in (symbols[key] for key in sorted(used))
    ]


def is_contiguous(entry: TensorInput) -> bool:
    # for all values of the symbols: `8*s0` and `s0*8` are the same stride, so expressions are compared by their values
    # at three points
    names = sorted(frozenset[str]().union(*map(symbols_in, expressions_in(entry))))
    for start in (1009, 10007, 100003):
        values = {name: start + 8 * 27 * position for position, name in enumerate(names)}
        step = 1
        for size, stride in zip(reversed(entry.shape), reversed(entry.stride), strict=True):
            if size != 1 and evaluate_size(stride, values) != step:
                return False
            step *= max(1, evaluate_size(size, values))
    return True
