"""Graphs of instructions: ATen ops, arithmetic on sizes, delegate calls, and control flow with nested graphs."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, TypeAlias

from hatch_lower.format.arguments import (
    Argument,
    ConstantName,
    Input,
    Symbol,
    TensorInput,
    Value,
    check_symbols_declared,
    references_in,
)
from hatch_lower.format.codec import Damage, reader_of, within
from hatch_lower.format.constants import Constant
from hatch_lower.format.values import Natural, Text, read_text
from hatch_lower.frozen import Frozen

DEPTH_LIMIT = 16
OP_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
KEYWORD_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Operations on sizes and sequences. `item_*` turn the size that a delegate returned (a number or a 0-d tensor) into a
# Python number; `round` takes the number of digits, or null. Operations with an operator in Python's syntax:
PYTHON_TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "add": "{0} + {1}",
        "and_": "{0} & {1}",
        "eq": "{0} == {1}",
        "floordiv": "{0} // {1}",
        "ge": "{0} >= {1}",
        "getitem": "{0}[{1}]",
        "gt": "{0} > {1}",
        "le": "{0} <= {1}",
        "lshift": "{0} << {1}",
        "lt": "{0} < {1}",
        "mod": "{0} % {1}",
        "mul": "{0} * {1}",
        "ne": "{0} != {1}",
        "neg": "-{0}",
        "not_": "not {0}",
        "or_": "{0} | {1}",
        "pos": "+{0}",
        "pow": "{0} ** {1}",
        "rshift": "{0} >> {1}",
        "sub": "{0} - {1}",
        "sym_ite": "{1} if {0} else {2}",
        "sym_not": "not {0}",
        "truediv": "{0} / {1}",
        "xor": "{0} ^ {1}",
    }
)

# other operations
MATH_FUNCTIONS = (
    *("acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "floor"),
    *("log", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
PYTHON_FUNCTIONS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        **{name: getattr(math, name) for name in MATH_FUNCTIONS},
        "abs": abs,
        "item_bool": bool,
        "item_float": float,
        "item_int": int,
        "max": max,
        "min": min,
        "round": round,
        "sym_bool": bool,
        "sym_float": float,
        "sym_int": int,
        "sym_max": max,
        "sym_min": min,
        "sym_sum": sum,
    }
)
# operation to its number of arguments
PYTHON_OPS: Mapping[str, int] = MappingProxyType(
    {
        **{name: template.count("{") for name, template in PYTHON_TEMPLATES.items()},
        **dict.fromkeys(PYTHON_FUNCTIONS, 1),
        **dict.fromkeys(("max", "min", "round", "sym_max", "sym_min"), 2),
    }
)


def read_op_name(value: object) -> str:
    op = read_text(value)
    if not OP_NAME.fullmatch(op):
        raise Damage(f"{op[:80]!r} instead of an operator `namespace.name.overload`")
    return op


def read_keyword(value: str) -> str:
    if not KEYWORD_NAME.fullmatch(value):
        raise Damage(f"a keyword argument {value[:40]!r}")
    return value


def read_graph(value: object) -> "Graph":
    graph: Graph = reader_of(Graph)(value)
    return graph


InnerGraph = Annotated["Graph", read_graph]


@dataclass(frozen=True, slots=True)
class OpCall:
    kind: ClassVar[str] = "op"
    op: Annotated[str, read_op_name]
    args: tuple[Argument, ...]
    kwargs: Mapping[Annotated[str, read_keyword], Argument]
    out: Natural


@dataclass(frozen=True, slots=True)
class PythonCall:
    kind: ClassVar[str] = "python"
    op: Text
    args: tuple[Argument, ...]
    out: Natural

    def validate(self) -> None:
        if PYTHON_OPS.get(self.op) != len(self.args):
            raise Damage(f"the operation {self.op[:40]!r} of {len(self.args)} arguments")
        if self.op == "getitem" and not isinstance(self.args[1], int | Value):
            raise Damage(f"an item {self.args[1]!r:.40}")
        if self.op == "getitem" and not isinstance(self.args[0], Value | ConstantName | tuple):
            raise Damage(f"an item of {self.args[0]!r:.40}")


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """A call of a delegate of the plan; its result is a sequence."""

    kind: ClassVar[str] = "delegate"
    delegate: Natural  # index into the plan's delegates
    args: tuple[Argument, ...]
    inputs: tuple[Input, ...]  # dtypes, shapes and literals that the partition was lowered for
    outputs: tuple[TensorInput | None, ...]  # `None` for a number
    out: Natural

    def validate(self) -> None:
        if len(self.args) != len(self.inputs):
            raise Damage(f"{len(self.args)} arguments for {len(self.inputs)} inputs")


class Cond(Frozen):
    """A call of `true` or `false` with `args`; the result is the sequence of the called graph's outputs."""

    kind: ClassVar[str] = "cond"
    predicate: Argument
    true: InnerGraph
    false: InnerGraph
    args: tuple[Argument, ...]
    out: Natural

    def validate(self) -> None:
        if not len(self.true.inputs) == len(self.false.inputs) == len(self.args):
            raise Damage("branches with more or fewer inputs than arguments")
        if len(self.true.outputs) != len(self.false.outputs):
            raise Damage("branches with different numbers of outputs")


class While(Frozen):
    """A loop: `body(*args, *extra)` returns the next carried values while `condition(*args, *extra)` holds."""

    kind: ClassVar[str] = "while"
    condition: InnerGraph
    body: InnerGraph
    args: tuple[Argument, ...]
    extra: tuple[Argument, ...]
    out: Natural

    def validate(self) -> None:
        if not len(self.condition.inputs) == len(self.body.inputs) == len(self.args) + len(self.extra):
            raise Damage("a loop whose graphs have more or fewer inputs than arguments")
        if len(self.condition.outputs) != 1 or len(self.body.outputs) != len(self.args):
            raise Damage("a loop whose graphs have more or fewer outputs than expected")


class Map(Frozen):
    """`body(*row, *extra)` for each row of `args`; the result is the sequence of the body's outputs, each stacked."""

    kind: ClassVar[str] = "map"
    body: InnerGraph
    args: tuple[Argument, ...]  # tensors with the same leading size, at least 1
    extra: tuple[Argument, ...]
    out: Natural

    def validate(self) -> None:
        if not _are_references(self.args):
            raise Damage("a map whose arguments are not tensors")
        if len(self.body.inputs) != len(self.args) + len(self.extra):
            raise Damage("a map whose graph has more or fewer inputs than arguments")
        _check_stacked(self.body.outputs)


class Scan(Frozen):
    """A loop over rows: `body(*carried, *row, *extra)` returns the next carried values, then the row's outputs.

    The result is the sequence of the last carried values, then of the outputs, each stacked over the rows.
    """

    kind: ClassVar[str] = "scan"
    body: InnerGraph
    args: tuple[Argument, ...]  # the first carried values
    rows: tuple[Argument, ...]  # tensors with the same leading size, at least 1
    extra: tuple[Argument, ...]
    out: Natural

    def validate(self) -> None:
        if not _are_references(self.rows):
            raise Damage("a scan whose rows are not tensors")
        if len(self.body.inputs) != len(self.args) + len(self.rows) + len(self.extra):
            raise Damage("a scan whose graph has more or fewer inputs than arguments")
        if len(self.body.outputs) < len(self.args):
            raise Damage("a scan whose graph has fewer outputs than carried values")
        _check_stacked(self.body.outputs[len(self.args) :])


Instruction: TypeAlias = OpCall | PythonCall | DelegateCall | Cond | While | Map | Scan

# names of the nested graphs of control flow, as fields and in the paths of debug maps
PARTS: Mapping[type, tuple[str, ...]] = {
    Cond: ("true", "false"),
    While: ("condition", "body"),
    Map: ("body",),
    Scan: ("body",),
}


class Graph(Frozen):
    """Instructions in order; slots are local to the graph, and each slot is written once."""

    inputs: tuple[Natural, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Argument, ...]


class Scope(Frozen):
    constants: Mapping[str, Constant]
    delegates: int
    symbols: Mapping[str, Symbol]


def list_arguments(instruction: Instruction) -> Iterator[Argument]:
    if isinstance(instruction, Cond):
        yield instruction.predicate
    yield from instruction.args
    if isinstance(instruction, OpCall):
        yield from instruction.kwargs.values()
    if isinstance(instruction, Scan):
        yield from instruction.rows
    if isinstance(instruction, While | Map | Scan):
        yield from instruction.extra


def nested_graphs(instruction: Instruction) -> tuple[Graph, ...]:
    return tuple(getattr(instruction, part) for part in PARTS.get(type(instruction), ()))


def walk_instructions(graph: Graph, path: str = "") -> Iterator[tuple[str, Instruction]]:
    """Yield every instruction, at any depth, with its path in a debug map."""
    for index, instruction in enumerate(graph.instructions):
        yield f"{path}{index}", instruction
        for part in PARTS.get(type(instruction), ()):
            yield from walk_instructions(getattr(instruction, part), f"{path}{index}.{part}.")


def outputs_in(graph: Graph) -> Iterator[Argument]:
    """Yield the outputs of a graph and of all nested graphs."""
    yield from graph.outputs
    for _, instruction in walk_instructions(graph):
        for nested in nested_graphs(instruction):
            yield from nested.outputs


def arguments_in(graph: Graph) -> Iterator[Argument]:
    """Yield the arguments of all instructions and the outputs, of a graph and all nested graphs."""
    for _, instruction in walk_instructions(graph):
        yield from list_arguments(instruction)
    yield from outputs_in(graph)


def check_graph(graph: Graph, scope: Scope, depth: int = 0) -> None:
    """Check the rules that span several instructions: slots, constants, delegates and symbols that exist."""
    if depth > DEPTH_LIMIT:
        raise Damage(f"graphs of more than {DEPTH_LIMIT} levels")
    known = set(graph.inputs)
    if len(known) != len(graph.inputs):
        raise Damage("two inputs with the same slot")
    for index, instruction in enumerate(graph.instructions):
        try:
            _check_instruction(instruction, known, scope, depth)
        except Damage as damage:
            damage.path = f".instructions[{index}]{damage.path}"
            raise
        known.add(instruction.out)
    with within(".outputs"):
        for argument in graph.outputs:
            check_references(argument, known, scope.constants)


def check_references(argument: Argument, known: Collection[int], constants: Collection[str]) -> None:
    for reference in references_in(argument):
        if isinstance(reference, ConstantName):
            if reference.name not in constants:
                raise Damage(f"the unknown constant `{reference.name[:80]}`")
        elif reference.slot not in known:
            raise Damage(f"the slot {reference.slot} is read before it is written")


def _check_instruction(instruction: Instruction, known: set[int], scope: Scope, depth: int) -> None:
    for argument in list_arguments(instruction):
        check_references(argument, known, scope.constants)
    if isinstance(instruction, DelegateCall):
        if instruction.delegate >= scope.delegates:
            raise Damage(f"delegate {instruction.delegate} of {scope.delegates}")
        for entry in (*instruction.inputs, *filter(None, instruction.outputs)):
            check_symbols_declared(entry, scope.symbols)
    for graph in nested_graphs(instruction):
        check_graph(graph, scope, depth + 1)
    if instruction.out in known:
        raise Damage(f"the slot {instruction.out} is written twice")


def _are_references(arguments: tuple[Argument, ...]) -> bool:
    return bool(arguments) and all(isinstance(argument, Value | ConstantName) for argument in arguments)


def _check_stacked(outputs: tuple[Argument, ...]) -> None:
    for output in outputs:
        if not (output is None or isinstance(output, Value | ConstantName)):
            raise Damage(f"the output {output!r:.40} of each row, which is no tensor")
