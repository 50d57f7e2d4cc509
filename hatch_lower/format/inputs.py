"""Declared inputs of methods and delegates: tensors with dtype, symbolic shape and strides; literals; sizes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from hatch_lower.format.arguments import Literal, literal_text
from hatch_lower.format.codec import Damage
from hatch_lower.format.expression import Expression, evaluate, expression_text, symbols_in
from hatch_lower.format.values import Dtype, Natural, Text
from hatch_lower.frozen import Frozen

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


def check_declared(entry: Input, symbols: Mapping[str, Symbol]) -> None:
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
            if size != 1 and evaluate(stride, values) != step:
                return False
            step *= max(1, evaluate(size, values))
    return True
