"""What a method or a delegate was lowered for: tensors of a dtype, symbolic shape and strides; literals; sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hatch_lower.format.arguments import Literal, argument_json, literal_text, read_literal
from hatch_lower.format.dtypes import DTYPES
from hatch_lower.format.expression import (
    Expression,
    evaluate,
    expression_json,
    expression_text,
    read_expression,
    read_symbol,
    symbols_in,
)
from hatch_lower.format.reading import (
    read_fields,
    read_list,
    read_natural,
    read_object,
    read_text,
    refuse,
)

RANK_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that varies: from `minimum` to `maximum` (`None`: no limit), shown to people as `label`."""

    minimum: int
    maximum: int | None
    label: str


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor on the CPU; shape and strides in elements."""

    dtype: str
    shape: tuple[Expression, ...]
    stride: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class LiteralInput:
    """A value that the graph was specialised for."""

    value: Literal


@dataclass(frozen=True, slots=True)
class SymbolInput:
    """An integer that the graph did not specialise for."""

    expression: Expression


Input: TypeAlias = TensorInput | LiteralInput | SymbolInput


def read_input(value: Any, symbols: Mapping[str, Symbol], where: str) -> Input:
    """Return the input that `value` describes; all of its symbols must be declared in `symbols`."""
    kind = read_object(value, where).get("kind")
    if kind == "literal":
        return LiteralInput(read_literal(read_fields(value, frozenset({"kind", "value"}), where)["value"], where))
    if kind == "symbol":
        fields = read_fields(value, frozenset({"kind", "expr"}), where)
        return SymbolInput(_read_declared(fields["expr"], symbols, where))
    if kind != "tensor":
        refuse(where, f"an input of kind {kind!r:.40}")
    fields = read_fields(value, frozenset({"kind", "dtype", "shape", "stride", "device"}), where)
    if not isinstance(fields["dtype"], str) or fields["dtype"] not in DTYPES or fields["device"] != "cpu":
        refuse(where, f"a tensor of dtype {fields['dtype']!r:.40} on {fields['device']!r:.40}")
    shape = tuple(_read_declared(each, symbols, where) for each in read_list(fields["shape"], where))
    stride = tuple(_read_declared(each, symbols, where) for each in read_list(fields["stride"], where))
    if len(shape) != len(stride) or len(shape) > RANK_LIMIT:
        refuse(where, f"{len(shape)} sizes and {len(stride)} strides")
    if any(isinstance(each, int) and each < 0 for each in (*shape, *stride)):
        refuse(where, "a negative size or stride")
    return TensorInput(fields["dtype"], shape, stride)


def input_json(entry: Input) -> Any:
    """Return the JSON value that `read_input` reads."""
    if isinstance(entry, LiteralInput):
        return {"kind": "literal", "value": argument_json(entry.value)}
    if isinstance(entry, SymbolInput):
        return {"kind": "symbol", "expr": expression_json(entry.expression)}
    return {
        "kind": "tensor",
        "dtype": entry.dtype,
        "shape": [expression_json(each) for each in entry.shape],
        "stride": [expression_json(each) for each in entry.stride],
        "device": "cpu",
    }


def read_symbols(value: Any, where: str) -> dict[str, Symbol]:
    """Return the declared symbols by name."""
    symbols = {}
    for name, each in read_object(value, where).items():
        fields = read_fields(each, frozenset({"min", "max"}), f"{where}.{name}", frozenset({"name"}))
        minimum = read_natural(fields["min"], f"{where}.{name}")
        maximum = None if fields["max"] is None else read_natural(fields["max"], f"{where}.{name}")
        if maximum is not None and maximum < minimum:
            refuse(f"{where}.{name}", f"a range from {minimum} to {maximum}")
        label = read_text(fields["name"], f"{where}.{name}") if "name" in fields else name
        symbols[read_symbol(name, where)] = Symbol(minimum, maximum, label)
    return symbols


def symbols_json(symbols: Mapping[str, Symbol]) -> Any:
    """Return the JSON value that `read_symbols` reads."""
    return {
        name: {"min": each.minimum, "max": each.maximum} | ({"name": each.label} if each.label != name else {})
        for name, each in symbols.items()
    }


def input_text(entry: Input, symbols: Mapping[str, Symbol]) -> str:
    """Return what is expected, in words: `float32[batch, 1, 8, 8]`, `the value 2`, `an integer (length)`."""
    if isinstance(entry, LiteralInput):
        return f"the value {literal_text(entry.value)}"
    labels = {name: each.label for name, each in symbols.items()}
    if isinstance(entry, SymbolInput):
        return f"an integer ({expression_text(entry.expression, labels)})"
    return f"{entry.dtype}[{', '.join(expression_text(each, labels) for each in entry.shape)}]"


def symbols_text(entry: Input, symbols: Mapping[str, Symbol]) -> str:
    """Return the ranges of the symbols in an input: `batch from 1 to 1024`; empty without symbols."""
    if isinstance(entry, LiteralInput):
        return ""
    expressions = entry.shape if isinstance(entry, TensorInput) else (entry.expression,)
    names = sorted(frozenset[str]().union(*(symbols_in(each) for each in expressions)))
    ranges = [(symbols[name].label, symbols[name].minimum, symbols[name].maximum) for name in names]
    return ", ".join(
        f"{label} from {low} to {high}" if high is not None else f"{label} from {low}" for label, low, high in ranges
    )


def is_contiguous(entry: TensorInput) -> bool:
    """Return whether the strides are those of a contiguous tensor, whatever the symbols' values.

    Expressions are compared by their values at three points: `8*s0` and `s0*8` are the same strides.
    """
    names = sorted(frozenset[str]().union(*(symbols_in(each) for each in (*entry.shape, *entry.stride))))
    for start in (1009, 10007, 100003):
        values = {name: start + 8 * 27 * position for position, name in enumerate(names)}
        step = 1
        for size, stride in zip(reversed(entry.shape), reversed(entry.stride), strict=True):
            if size != 1 and evaluate(stride, values) != step:
                return False
            step *= max(1, evaluate(size, values))
    return True


def _read_declared(value: Any, symbols: Mapping[str, Symbol], where: str) -> Expression:
    """Return an expression over declared symbols."""
    expression = read_expression(value, where)
    unknown = sorted(symbols_in(expression) - symbols.keys())
    if unknown:
        refuse(where, f"the symbol `{unknown[0]}` is not declared")
    return expression
