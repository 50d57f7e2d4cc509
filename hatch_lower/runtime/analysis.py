"""Analysis of a method before its code is written: sources of symbols, last uses, shared memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hatch_lower.format.arguments import (
    Argument,
    Input,
    SymbolInput,
    TensorInput,
    Value,
    constants_in,
    expressions_in,
    references_in,
)
from hatch_lower.format.constants import Constant
from hatch_lower.format.expression import Compound, Expression, symbols_in
from hatch_lower.format.graph import (
    DelegateCall,
    Graph,
    Instruction,
    Map,
    OpCall,
    PythonCall,
    arguments_in,
    list_arguments,
    nested_graphs,
    walk_instructions,
)
from hatch_lower.runtime.arrays import ArrayOperator

SIZE = "<size>"  # the size found at run time; not a valid name of a symbol


@dataclass(frozen=True, slots=True)
class Binding:
    """A symbol's value."""

    symbol: str
    input: int  # index of the input that determines the symbol
    dimension: int | None  # of the tensor; `None` if the input is an integer
    expression: Expression  # over `SIZE`, the size found there, and earlier symbols


def bind_symbols(inputs: Sequence[Input]) -> tuple[Binding, ...]:
    """Return a binding for each symbol that the inputs determine, in order of computation."""
    bindings: dict[str, Binding] = {}
    sizes = list(list_input_sizes(inputs))
    unknown = [set(symbols_in(expression)) for *_, expression in sizes]
    users: dict[str, list[int]] = {}
    for number, symbols in enumerate(unknown):
        for symbol in symbols:
            users.setdefault(symbol, []).append(number)
    # first sizes that are plain symbols, which need no arithmetic
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


def list_input_sizes(inputs: Sequence[Input]) -> Iterator[tuple[int, int | None, Expression]]:
    for index, entry in enumerate(inputs):
        if isinstance(entry, TensorInput):
            for dimension, expression in enumerate(entry.shape):
                yield index, dimension, expression
        elif isinstance(entry, SymbolInput):
            yield index, None, entry.expr


def solve(expression: Expression, symbol: str, result: Expression) -> Expression | None:
    """Return `symbol` as an expression of `result`, or `None` if the expression cannot be inverted."""
    # the caller still compares the expression with the result, because division loses the remainder
    if expression == symbol:
        return result
    if not isinstance(expression, Compound):
        return None
    holders = [index for index, arg in enumerate(expression.args) if symbol in symbols_in(arg)]
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


def last_uses(graph: Graph, kept: frozenset[int]) -> dict[int, list[int]]:
    """Return the slots to free after each instruction, by index: not read later, no output, and not in `kept`."""
    needed = {value.slot for value in references_to_values(graph.outputs)} | kept
    last: dict[int, int] = {}
    for index, instruction in enumerate(graph.instructions):
        last[instruction.out] = index
        for reference in references_to_values(list_arguments(instruction)):
            last[reference.slot] = index
    uses: dict[int, list[int]] = {}
    for slot, index in last.items():
        if slot not in needed:
            uses.setdefault(index, []).append(slot)
    return uses


def references_to_values(arguments: Iterable[Argument]) -> Iterator[Value]:
    for argument in arguments:
        for reference in references_in(argument):
            if isinstance(reference, Value):
                yield reference


def symbols_of(graph: Graph) -> frozenset[str]:
    calls = [instruction for _, instruction in walk_instructions(graph) if isinstance(instruction, DelegateCall)]
    tensors = [tensor for call in calls for tensor in (*call.inputs, *filter(None, call.outputs))]
    return frozenset[str]().union(*(symbols_in(size) for tensor in tensors for size in expressions_in(tensor)))


@dataclass(frozen=True, slots=True)
class Root:
    """A storage of the plan, or an input of the method, by its index."""

    is_constant: bool
    index: int


Roots: TypeAlias = frozenset[Root]
NOTHING: Roots = frozenset()


class Aliasing:
    # may return too many roots, never too few: for branches and loops, the roots of all arguments

    def __init__(self, graph: Graph, constants: Mapping[str, Constant], operators: Mapping[str, ArrayOperator]) -> None:
        self._constants = constants
        self._operators = operators
        self._slots: dict[int, Roots] = {
            slot: frozenset({Root(False, index)}) for index, slot in enumerate(graph.inputs)
        }
        for instruction in graph.instructions:
            self._slots[instruction.out] = self._roots_of_instruction(instruction)

    def roots_of(self, *arguments: Argument) -> Roots:
        slots = [self._slots[value.slot] for value in references_to_values(arguments)]
        return NOTHING.union(*slots, map(self.constant_root, constants_in(arguments)))

    def constant_root(self, name: str) -> Root:
        return Root(True, self._constants[name].storage)

    def _roots_of_instruction(self, instruction: Instruction) -> Roots:
        if isinstance(instruction, OpCall) and not self._operators[instruction.op].may_alias:
            return NOTHING
        if isinstance(instruction, PythonCall) and instruction.op != "getitem":
            return NOTHING
        if isinstance(instruction, Map):  # results are stacked, and so copied
            return NOTHING
        nested = [argument for graph in nested_graphs(instruction) for argument in arguments_in(graph)]
        return self.roots_of(*list_arguments(instruction)) | set(map(self.constant_root, constants_in(nested)))
