"""What a graph's values may share memory with: inputs and constants of the method, its roots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hatch_lower.format.arguments import Argument, Value, references_in
from hatch_lower.format.constants import Constant
from hatch_lower.format.graph import Graph, Instruction, Map, OpCall, PythonCall, arguments_of, nested_graphs
from hatch_lower.runtime.operators import Operators, may_return_alias


@dataclass(frozen=True, slots=True)
class Root:
    """A storage of the plan, or an input of the method, by its index."""

    is_constant: bool
    index: int


Roots: TypeAlias = frozenset[Root]
NOTHING: Roots = frozenset()


class Aliasing:
    """Follows memory through a method's top graph.

    It may name too many roots (a branch's or a loop's values: all that goes in), never too few.
    """

    def __init__(self, graph: Graph, constants: Mapping[str, Constant], operators: Operators) -> None:
        self._constants = constants
        self._operators = operators
        self._slots: dict[int, Roots] = {
            slot: frozenset({Root(False, index)}) for index, slot in enumerate(graph.inputs)
        }
        for instruction in graph.instructions:
            self._slots[instruction.out] = self._roots_of_instruction(instruction)

    def roots_of(self, *arguments: Argument) -> Roots:
        """Return what arguments may share memory with."""
        return NOTHING.union(*(self._roots_of_references(each) for each in arguments))

    def constant_root(self, name: str) -> Root:
        """Return the root of a constant; tied constants have the same."""
        return Root(True, self._constants[name].storage)

    def _roots_of_references(self, argument: Argument) -> Roots:
        roots: Roots = NOTHING
        for each in references_in(argument):
            roots |= self._slots[each.slot] if isinstance(each, Value) else {self.constant_root(each.name)}
        return roots

    def _roots_of_instruction(self, instruction: Instruction) -> Roots:
        if isinstance(instruction, OpCall) and not may_return_alias(self._operators[instruction.op]):
            return NOTHING
        if isinstance(instruction, PythonCall) and instruction.op != "getitem":
            return NOTHING
        if isinstance(instruction, Map):  # what it returns is stacked, and so copied
            return NOTHING
        mentioned = {self.constant_root(name) for name in _constants_in(nested_graphs(instruction))}
        return self.roots_of(*arguments_of(instruction)) | mentioned


def _constants_in(graphs: Sequence[Graph]) -> Iterable[str]:
    """Yield the names of the constants that graphs mention, at any depth."""
    for graph in graphs:
        arguments = [argument for each in graph.instructions for argument in arguments_of(each)]
        for argument in (*arguments, *graph.outputs):
            yield from (each.name for each in references_in(argument) if not isinstance(each, Value))
        for instruction in graph.instructions:
            yield from _constants_in(nested_graphs(instruction))
