"""Where the values of a method's symbols come from: a size of an input that is the symbol, or can be solved for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hatch_lower.format.expression import Compound, Expression, symbols_in
from hatch_lower.format.inputs import Input, SymbolInput, TensorInput

SIZE = "<size>"
"""Stands for what is found; no symbol has this name."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A symbol's value.

    Args:
        symbol: its name.
        input: the index of the input that it comes from.
        dimension: of the tensor; `None` where the input is an integer.
        expression: over `SIZE` (what is found there) and symbols bound before.
    """

    symbol: str
    input: int
    dimension: int | None
    expression: Expression


def bind_symbols(inputs: Sequence[Input]) -> tuple[Binding, ...]:
    """Return a binding for each symbol whose value the inputs determine, in an order in which they can be computed."""
    bindings: dict[str, Binding] = {}
    sizes = list(sizes_of(inputs))
    unknown = [set(symbols_in(expression)) for *_, expression in sizes]
    users: dict[str, list[int]] = {}
    for number, symbols in enumerate(unknown):
        for symbol in symbols:
            users.setdefault(symbol, []).append(number)
    # a size that is a symbol itself costs nothing
    ready = deque(number for number, (*_, expression) in enumerate(sizes) if isinstance(expression, str))
    ready.extend(number for number, symbols in enumerate(unknown) if len(symbols) == 1)
    while ready:
        number = ready.popleft()
        index, dimension, expression = sizes[number]
        if not unknown[number]:
            continue
        (symbol,) = unknown[number]
        solution = solve(expression, symbol, SIZE)
        if solution is None:
            continue
        bindings[symbol] = Binding(symbol, index, dimension, solution)
        for user in users[symbol]:
            unknown[user].discard(symbol)
            if len(unknown[user]) == 1:
                ready.append(user)
    return tuple(bindings.values())


def sizes_of(inputs: Sequence[Input]) -> Iterator[tuple[int, int | None, Expression]]:
    """Yield every size and integer of the inputs: index of the input, dimension, expression."""
    for index, entry in enumerate(inputs):
        if isinstance(entry, TensorInput):
            for dimension, expression in enumerate(entry.shape):
                yield index, dimension, expression
        elif isinstance(entry, SymbolInput):
            yield index, None, entry.expr


def solve(expression: Expression, symbol: str, result: Expression) -> Expression | None:
    """Return `symbol` in terms of the expression's `result`, or `None` where that cannot be done by inversion.

    The caller still compares the expression with the result: dividing loses a remainder.
    """
    if expression == symbol:
        return result
    if not isinstance(expression, Compound):
        return None
    holders = [index for index, each in enumerate(expression.args) if symbol in symbols_in(each)]
    if len(holders) != 1:
        return None
    (index,) = holders
    inner = expression.args[index]
    others = expression.args[:index] + expression.args[index + 1 :]
    match expression.op:
        case "neg":
            return solve(inner, symbol, Compound("neg", (result,)))
        case "add":
            return solve(inner, symbol, Compound("sub", (result, Compound("add", others))) if others else result)
        case "sub":
            inverse = Compound("add", (result, others[0])) if index == 0 else Compound("sub", (others[0], result))
            return solve(inner, symbol, inverse)
        case "mul" if 0 not in others:
            return solve(inner, symbol, Compound("floordiv", (result, Compound("mul", others))) if others else result)
    return None
