"""Graphs of instructions: ATen ops, arithmetic on sizes, delegate calls, and control flow with graphs inside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from hatch_lower.format.arguments import Argument, ConstantName, Value, argument_json, read_argument, references_in
from hatch_lower.format.inputs import Input, Symbol, input_json, read_input
from hatch_lower.format.reading import read_fields, read_list, read_natural, read_object, read_text, refuse

__all__ = [
    "PYTHON_OPS",
    "Cond",
    "DelegateCall",
    "Graph",
    "Instruction",
    "OpCall",
    "PythonCall",
    "Scope",
    "While",
    "arguments_of",
    "graph_json",
    "nested_graphs",
    "read_graph",
]

DEPTH_LIMIT = 16
OP_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
KEYWORD_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)

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
    """A call of the plan's delegate number `delegate`, lowered for `inputs`; its result is a sequence."""

    delegate: int
    args: tuple[Argument, ...]
    inputs: tuple[Input, ...]
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


Instruction: TypeAlias = OpCall | PythonCall | DelegateCall | Cond | While


@dataclass(frozen=True, slots=True)
class Graph:
    """Instructions in order; slots are local to the graph, and each is written once."""

    inputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """What the graphs of a method may refer to."""

    constants: Mapping[str, Any]
    delegates: int
    symbols: Mapping[str, Symbol]


def read_graph(value: Any, scope: Scope, where: str, depth: int = 0) -> Graph:
    """Return the graph that `value` describes.

    Raises:
        ProgramError: for anything malformed, a slot that is written twice or read before, an unknown constant,
            delegate or symbol, or more than 16 levels of nesting.
    """
    fields = read_fields(value, frozenset({"inputs", "instructions", "outputs"}), where)
    if depth > DEPTH_LIMIT:
        refuse(where, f"graphs of more than {DEPTH_LIMIT} levels")
    inputs = tuple(read_natural(each, where) for each in read_list(fields["inputs"], where))
    known = set(inputs)
    if len(known) != len(inputs):
        refuse(where, "two inputs with one slot")
    instructions = []
    for index, each in enumerate(read_list(fields["instructions"], where)):
        place = f"{where}.instructions[{index}]"
        instruction = _read_instruction(each, scope, place, depth)
        for argument in arguments_of(instruction):
            _check_references(argument, known, scope, place)
        if instruction.out in known:
            refuse(place, f"the slot {instruction.out} is written twice")
        known.add(instruction.out)
        instructions.append(instruction)
    outputs = tuple(read_argument(each, f"{where}.outputs") for each in read_list(fields["outputs"], where))
    for argument in outputs:
        _check_references(argument, known, scope, f"{where}.outputs")
    return Graph(inputs, tuple(instructions), outputs)


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
    elif isinstance(instruction, While):
        yield from instruction.extra


def nested_graphs(instruction: Instruction) -> tuple[Graph, ...]:
    """Return the graphs inside an instruction."""
    if isinstance(instruction, Cond):
        return (instruction.true_graph, instruction.false_graph)
    return (instruction.condition, instruction.body) if isinstance(instruction, While) else ()


def _read_instruction(value: Any, scope: Scope, where: str, depth: int) -> Instruction:
    match read_object(value, where).get("kind"):
        case "op":
            return _read_op(value, where)
        case "python":
            return _read_python(value, where)
        case "delegate":
            return _read_delegate(value, scope, where)
        case "cond":
            return _read_cond(value, scope, where, depth)
        case "while":
            return _read_while(value, scope, where, depth)
        case kind:
            refuse(where, f"an instruction of kind {kind!r:.40}")


def _read_op(value: Any, where: str) -> OpCall:
    fields = read_fields(value, frozenset({"kind", "op", "args", "kwargs", "out"}), where)
    op = read_text(fields["op"], where)
    if not OP_NAME.fullmatch(op):
        refuse(where, f"{op[:80]!r} instead of an operator `namespace.name.overload`")
    kwargs = read_object(fields["kwargs"], where)
    for name in kwargs:
        if not KEYWORD_NAME.fullmatch(name):
            refuse(where, f"a keyword argument {name[:40]!r}")
    pairs = tuple((name, read_argument(kwargs[name], where)) for name in sorted(kwargs))
    return OpCall(op, _read_arguments(fields["args"], where), pairs, read_natural(fields["out"], where))


def _read_python(value: Any, where: str) -> PythonCall:
    fields = read_fields(value, frozenset({"kind", "op", "args", "out"}), where)
    op = read_text(fields["op"], where)
    args = _read_arguments(fields["args"], where)
    if PYTHON_OPS.get(op) != len(args):
        refuse(where, f"the operation {op[:40]!r} of {len(args)} arguments")
    if op == "getitem" and not isinstance(args[1], int | Value):
        refuse(where, f"an item {args[1]!r:.40}")
    return PythonCall(op, args, read_natural(fields["out"], where))


def _read_delegate(value: Any, scope: Scope, where: str) -> DelegateCall:
    fields = read_fields(value, frozenset({"kind", "delegate", "args", "inputs", "out"}), where)
    index = read_natural(fields["delegate"], where)
    args = _read_arguments(fields["args"], where)
    inputs = tuple(
        read_input(each, scope.symbols, f"{where}.inputs[{position}]")
        for position, each in enumerate(read_list(fields["inputs"], where))
    )
    if index >= scope.delegates:
        refuse(where, f"delegate {index} of {scope.delegates}")
    if len(args) != len(inputs):
        refuse(where, f"{len(args)} arguments for {len(inputs)} inputs")
    return DelegateCall(index, args, inputs, read_natural(fields["out"], where))


def _read_cond(value: Any, scope: Scope, where: str, depth: int) -> Cond:
    fields = read_fields(value, frozenset({"kind", "predicate", "true", "false", "args", "out"}), where)
    true_graph = read_graph(fields["true"], scope, f"{where}.true", depth + 1)
    false_graph = read_graph(fields["false"], scope, f"{where}.false", depth + 1)
    args = _read_arguments(fields["args"], where)
    if not len(true_graph.inputs) == len(false_graph.inputs) == len(args):
        refuse(where, "branches that take other numbers of values than they are given")
    if len(true_graph.outputs) != len(false_graph.outputs):
        refuse(where, "branches that give different numbers of values")
    predicate = read_argument(fields["predicate"], where)
    return Cond(predicate, true_graph, false_graph, args, read_natural(fields["out"], where))


def _read_while(value: Any, scope: Scope, where: str, depth: int) -> While:
    fields = read_fields(value, frozenset({"kind", "condition", "body", "args", "extra", "out"}), where)
    condition = read_graph(fields["condition"], scope, f"{where}.condition", depth + 1)
    body = read_graph(fields["body"], scope, f"{where}.body", depth + 1)
    args = _read_arguments(fields["args"], where)
    extra = _read_arguments(fields["extra"], where)
    if not len(condition.inputs) == len(body.inputs) == len(args) + len(extra):
        refuse(where, "a loop whose graphs take another number of values than they are given")
    if len(condition.outputs) != 1 or len(body.outputs) != len(args):
        refuse(where, "a loop whose graphs give another number of values than it carries")
    return While(condition, body, args, extra, read_natural(fields["out"], where))


def _read_arguments(value: Any, where: str) -> tuple[Argument, ...]:
    return tuple(read_argument(each, where) for each in read_list(value, where))


def _check_references(argument: Argument, known: set[int], scope: Scope, where: str) -> None:
    """Refuse a slot that holds nothing yet and a constant that the plan does not have."""
    for reference in references_in(argument):
        if isinstance(reference, ConstantName):
            if reference.name not in scope.constants:
                refuse(where, f"the unknown constant `{reference.name[:80]}`")
        elif reference.slot not in known:
            refuse(where, f"the slot {reference.slot} is read before it is written")


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
            return fields | {"kind": "delegate", "delegate": instruction.delegate, "inputs": inputs}
        case Cond():
            branches = {"true": graph_json(instruction.true_graph), "false": graph_json(instruction.false_graph)}
            return fields | branches | {"kind": "cond", "predicate": argument_json(instruction.predicate)}
    graphs = {"condition": graph_json(instruction.condition), "body": graph_json(instruction.body)}
    return fields | graphs | {"kind": "while", "extra": [argument_json(each) for each in instruction.extra]}
