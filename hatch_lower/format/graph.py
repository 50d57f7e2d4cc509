"""Graphs of instructions: ATen ops, arithmetic on sizes, delegate calls, and control flow with graphs inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from hatch_lower.format.arguments import Argument, argument_json
from hatch_lower.format.inputs import Input, TensorInput, input_json

PYTHON_OPS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("abs", "ceil", "floor", "item_bool", "item_float", "item_int", "neg", "not_", "pos", "sqrt"),
                *("sym_bool", "sym_float", "sym_int", "sym_not", "sym_sum", "trunc"),
                *("acos", "asin", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "tan", "tanh"),
            ),
            1,
        ),
        **dict.fromkeys(
            (
                *("add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lshift", "lt", "max", "min", "mod"),
                *("mul", "ne", "or_", "pow", "round", "rshift", "sub", "sym_max", "sym_min", "truediv", "xor"),
            ),
            2,
        ),
        "sym_ite": 3,
    }
)
"""Operations on sizes and sequences, to their number of arguments. `item_*` turn what a delegate returned for a size
(a number or a 0-d tensor) into a Python number; `round` takes the number of digits, or null."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """A call of an overload: `aten.add.Tensor`. Keyword arguments are sorted by name."""

    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    out: int


@dataclass(frozen=True, slots=True)
class PythonCall:
    """An operation of `PYTHON_OPS`."""

    op: str
    args: tuple[Argument, ...]
    out: int


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """A call of the plan's delegate number `delegate`; its result is a sequence.

    Args:
        delegate: its number.
        args: what it is given.
        inputs: what it was lowered for.
        outputs: what it returns: tensors, and `None` in the place of a number.
        out: the slot.
    """

    delegate: int
    args: tuple[Argument, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[TensorInput | None, ...]
    out: int


@dataclass(frozen=True, slots=True)
class Cond:
    """One of two graphs, called with `args`; its result is the sequence of that graph's outputs."""

    predicate: Argument
    true_graph: Graph
    false_graph: Graph
    args: tuple[Argument, ...]
    out: int


@dataclass(frozen=True, slots=True)
class While:
    """A loop: `body(*carried, *extra)` gives the next carried values as long as `condition` of the same holds."""

    condition: Graph
    body: Graph
    args: tuple[Argument, ...]
    extra: tuple[Argument, ...]
    out: int


@dataclass(frozen=True, slots=True)
class Map:
    """`body(*row, *extra)` for each row of `args`: tensors of one leading size, which is at least 1.

    Its result is the sequence of the body's outputs, each stacked over the rows: tensors, and null where the body gives
    null.
    """

    body: Graph
    args: tuple[Argument, ...]
    extra: tuple[Argument, ...]
    out: int


@dataclass(frozen=True, slots=True)
class Scan:
    """A loop over rows: `body(*carried, *row, *extra)` gives the next carried values, then the row's outputs.

    Its result is the sequence of the last carried values, then of the outputs, each stacked over the rows.

    Args:
        body: as above.
        args: the carried values to begin with.
        rows: tensors of one leading size, which is at least 1.
        extra: what each row is given beside.
        out: the slot.
    """

    body: Graph
    args: tuple[Argument, ...]
    rows: tuple[Argument, ...]
    extra: tuple[Argument, ...]
    out: int


Instruction: TypeAlias = OpCall | PythonCall | DelegateCall | Cond | While | Map | Scan


@dataclass(frozen=True, slots=True)
class Graph:
    """Instructions in order; slots are local to the graph, and each is written once."""

    inputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Argument, ...]


def graph_json(graph: Graph) -> Any:
    """Return the JSON value that `read_graph` reads."""
    return {
        "inputs": list(graph.inputs),
        "instructions": [_instruction_json(each) for each in graph.instructions],
        "outputs": [argument_json(each) for each in graph.outputs],
    }


def arguments_of(instruction: Instruction) -> Iterator[Argument]:
    """Yield every argument that an instruction takes from its own graph."""
    if isinstance(instruction, Cond):
        yield instruction.predicate
    yield from instruction.args
    if isinstance(instruction, OpCall):
        for _, argument in instruction.kwargs:
            yield argument
    if isinstance(instruction, Scan):
        yield from instruction.rows
    if isinstance(instruction, While | Map | Scan):
        yield from instruction.extra


def nested_graphs(instruction: Instruction) -> tuple[Graph, ...]:
    """Return the graphs inside an instruction."""
    if isinstance(instruction, Cond):
        return (instruction.true_graph, instruction.false_graph)
    if isinstance(instruction, While):
        return (instruction.condition, instruction.body)
    return (instruction.body,) if isinstance(instruction, Map | Scan) else ()


def _instruction_json(instruction: Instruction) -> dict[str, Any]:
    fields: dict[str, Any] = {"args": [argument_json(each) for each in instruction.args], "out": instruction.out}
    match instruction:
        case OpCall():
            kwargs = {name: argument_json(each) for name, each in instruction.kwargs}
            return fields | {"kind": "op", "op": instruction.op, "kwargs": kwargs}
        case PythonCall():
            return fields | {"kind": "python", "op": instruction.op}
        case DelegateCall():
            inputs = [input_json(each) for each in instruction.inputs]
            outputs = [None if each is None else input_json(each) for each in instruction.outputs]
            return fields | {
                "kind": "delegate",
                "delegate": instruction.delegate,
                "inputs": inputs,
                "outputs": outputs,
            }
        case Cond():
            branches = {"true": graph_json(instruction.true_graph), "false": graph_json(instruction.false_graph)}
            return fields | branches | {"kind": "cond", "predicate": argument_json(instruction.predicate)}
    fields |= {"body": graph_json(instruction.body), "extra": [argument_json(each) for each in instruction.extra]}
    match instruction:
        case While():
            return fields | {"kind": "while", "condition": graph_json(instruction.condition)}
        case Map():
            return fields | {"kind": "map"}
    return fields | {"kind": "scan", "rows": [argument_json(each) for each in instruction.rows]}
