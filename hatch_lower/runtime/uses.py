"""What the graphs of a plan use: slots to their last use, and symbols of the delegates inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hatch_lower.format.arguments import Argument, Value, references_in
from hatch_lower.format.expression import symbols_in
from hatch_lower.format.graph import DelegateCall, Graph, arguments_of, nested_graphs
from hatch_lower.runtime.inputs import expressions_of


def last_uses(graph: Graph, kept: frozenset[int]) -> dict[int, list[int]]:
    """Return for each instruction's index the slots that nothing reads after it, but for outputs and `kept`."""
    needed = {each.slot for each in references_to_values(graph.outputs)} | kept
    last: dict[int, int] = {}
    for index, instruction in enumerate(graph.instructions):
        last[instruction.out] = index
        for each in references_to_values(arguments_of(instruction)):
            last[each.slot] = index
    uses: dict[int, list[int]] = {}
    for slot, index in last.items():
        if slot not in needed:
            uses.setdefault(index, []).append(slot)
    return uses


def references_to_values(arguments: Iterable[Argument]) -> Iterator[Value]:
    """Yield the slots that arguments mention."""
    for argument in arguments:
        for each in references_in(argument):
            if isinstance(each, Value):
                yield each


def symbols_of(graph: Graph) -> frozenset[str]:
    """Return the symbols that a graph's delegate calls mention, at any depth."""
    symbols: frozenset[str] = frozenset()
    for instruction in graph.instructions:
        if isinstance(instruction, DelegateCall):
            tensors = [*instruction.inputs, *filter(None, instruction.outputs)]
            symbols = symbols.union(*(symbols_in(size) for each in tensors for size in expressions_of(each)))
        symbols = symbols.union(*map(symbols_of, nested_graphs(instruction)))
    return symbols
