"""Calls of a delegate with tensors without elements, which bypass the delegate.

Some engines end the process or wait forever if a tensor has no elements. If all outputs of a delegate have no elements,
the call is left out. If only some tensors have no elements, the call goes to engines that compute such a call (the
build tries) and is refused for other engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from hatch_lower.errors import EmptyError
from hatch_lower.format.expression import Compound, Expression, evaluate, symbols_in
from hatch_lower.format.graph import DelegateCall
from hatch_lower.format.inputs import Symbol, TensorInput
from hatch_lower.runtime.arrays import Arrays
from hatch_lower.runtime.names import Names, expression_code, tuple_code

GROWING = frozenset({"add", "floordiv", "max", "min", "mul", "pow"})  # monotonic in their arguments, from 0 on


def lines_for_empty(
    call: DelegateCall,
    out: str,
    given: Sequence[str],
    tests: ZeroTests,
    arrays: Arrays,
    *,
    refuse: partial[NoReturn] | None,
    has_state: bool,
) -> list[str]:
    """Return the lines before `else:` and the call itself; empty if all tensors always have elements."""
    # `refuse`: raises the error for a call with a tensor without elements; `None` if the delegate computes such calls
    lines = []
    if call.outputs and not has_state and all(entry is not None and tests.any_of([entry]) for entry in call.outputs):
        outputs = [entry for entry in call.outputs if entry is not None]
        results = ", ".join(empty_code(entry, tests.symbols, arrays, tests.names) for entry in outputs)
        conditions = dict.fromkeys(tests.any_of([entry]) for entry in outputs)
        lines.append(f"if {' and '.join(f'({each})' for each in conditions)}: {out} = [{results}]")
    # only dynamic sizes: with sizes that are always 0, the build has tried the delegate
    tensors = [entry for entry in (*call.inputs, *call.outputs) if isinstance(entry, TensorInput)]
    if refuse is not None and (some := tests.any_of(tensors, is_dynamic=True)):
        lines.append(f"{'elif' if lines else 'if'} {some}: {tests.names.bind('refuse', refuse)}([{', '.join(given)}])")
    return lines


class ZeroTests:
    """Code that tests for tensors without elements, by the sizes known before the call."""

    def __init__(self, symbols: Mapping[str, str], declared: Mapping[str, Symbol], names: Names) -> None:
        self.symbols = symbols
        self._least = {name: symbol.min for name, symbol in declared.items()}
        self.names = names

    def any_of(self, entries: Iterable[TensorInput], *, is_dynamic: bool = False) -> str:
        every = dict.fromkeys(size for entry in entries for size in entry.shape if self._may_be_zero(size))
        sizes = [size for size in every if not is_dynamic or symbols_in(size)]
        return " or ".join(f"{expression_code(size, self.symbols, self.names)} == 0" for size in sizes)

    def _may_be_zero(self, size: Expression) -> bool:
        if not symbols_in(size) <= self.symbols.keys():
            return False
        return not is_growing(size) or evaluate(size, self._least) == 0


def is_growing(size: Expression) -> bool:
    if isinstance(size, Compound):
        return (
            size.op in GROWING
            and (size.op != "floordiv" or isinstance(size.args[1], int))
            and all(map(is_growing, size.args))
        )
    return not isinstance(size, int) or size >= 0


def empty_code(entry: TensorInput, symbols: Mapping[str, str], arrays: Arrays, names: Names) -> str:
    function = names.bind("empty", partial(arrays.empty, entry.dtype), ("empty", entry.dtype))
    steps = [stride if symbols_in(stride) <= symbols.keys() else 1 for stride in entry.stride]
    codes = (tuple_code([expression_code(size, symbols, names) for size in sizes]) for sizes in (entry.shape, steps))
    return f"{function}({', '.join(codes)})"


def refuse_empty(arrays: Arrays, backend: str, where: str, given: Sequence[Any]) -> NoReturn:
    raise EmptyError(
        f"the delegate `{backend}` takes no tensor without elements",
        where=where,
        found=", ".join(map(arrays.describe, given)),
        hint="call the method with sizes of 1 and more, and write `min=1` in the `Dim` of the size; without this"
        " backend torch computes such calls",
    )
