"""How graphs of instructions are read: every reference, number of arguments and level of nesting is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hatch_lower.format.arguments import Argument, ConstantName, Value, read_argument, references_in
from hatch_lower.format.graph import (
    PYTHON_OPS,
    Cond,
    DelegateCall,
    Graph,
    Instruction,
    Map,
    OpCall,
    PythonCall,
    Scan,
    While,
    arguments_of,
)
from hatch_lower.format.inputs import Symbol, TensorInput, read_input
from hatch_lower.format.reading import read_fields, read_list, read_natural, read_object, read_text, refuse

DEPTH_LIMIT = 16
OP_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
KEYWORD_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


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
        case "map":
            return _read_map(value, scope, where, depth)
        case "scan":
            return _read_scan(value, scope, where, depth)
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
    if op == "getitem" and not isinstance(args[0], Value | ConstantName | tuple):
        refuse(where, f"an item of {args[0]!r:.40}")
    return PythonCall(op, args, read_natural(fields["out"], where))


def _read_delegate(value: Any, scope: Scope, where: str) -> DelegateCall:
    fields = read_fields(value, frozenset({"kind", "delegate", "args", "inputs", "outputs", "out"}), where)
    index = read_natural(fields["delegate"], where)
    args = _read_arguments(fields["args"], where)
    inputs = tuple(
        read_input(each, scope.symbols, f"{where}.inputs[{position}]")
        for position, each in enumerate(read_list(fields["inputs"], where))
    )
    outputs = tuple(
        _read_output(each, scope, f"{where}.outputs[{position}]")
        for position, each in enumerate(read_list(fields["outputs"], where))
    )
    if index >= scope.delegates:
        refuse(where, f"delegate {index} of {scope.delegates}")
    if len(args) != len(inputs):
        refuse(where, f"{len(args)} arguments for {len(inputs)} inputs")
    return DelegateCall(index, args, inputs, outputs, read_natural(fields["out"], where))


def _read_output(value: Any, scope: Scope, where: str) -> TensorInput | None:
    """Return what a delegate returns: a tensor, or `None` for a number."""
    if value is None:
        return None
    output = read_input(value, scope.symbols, where)
    if not isinstance(output, TensorInput):
        refuse(where, "an output that is neither a tensor nor null")
    return output


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


def _read_map(value: Any, scope: Scope, where: str, depth: int) -> Map:
    fields = read_fields(value, frozenset({"kind", "body", "args", "extra", "out"}), where)
    body = read_graph(fields["body"], scope, f"{where}.body", depth + 1)
    args = _read_arguments(fields["args"], where)
    extra = _read_arguments(fields["extra"], where)
    if not _are_references(args):
        refuse(where, "a map over something else than tensors")
    if len(body.inputs) != len(args) + len(extra):
        refuse(where, "a map whose graph takes another number of values than it is given")
    _check_stacked(body.outputs, where)
    return Map(body, args, extra, read_natural(fields["out"], where))


def _read_scan(value: Any, scope: Scope, where: str, depth: int) -> Scan:
    fields = read_fields(value, frozenset({"kind", "body", "args", "rows", "extra", "out"}), where)
    body = read_graph(fields["body"], scope, f"{where}.body", depth + 1)
    args, rows, extra = (_read_arguments(fields[name], where) for name in ("args", "rows", "extra"))
    if not _are_references(rows):
        refuse(where, "a scan over something else than tensors")
    if len(body.inputs) != len(args) + len(rows) + len(extra):
        refuse(where, "a scan whose graph takes another number of values than it is given")
    if len(body.outputs) < len(args):
        refuse(where, "a scan whose graph gives fewer values than it carries")
    _check_stacked(body.outputs[len(args) :], where)
    return Scan(body, args, rows, extra, read_natural(fields["out"], where))


def _are_references(arguments: tuple[Argument, ...]) -> bool:
    """Return whether there are arguments, and each stands for a value."""
    return bool(arguments) and all(isinstance(each, Value | ConstantName) for each in arguments)


def _check_stacked(outputs: tuple[Argument, ...], where: str) -> None:
    """Refuse outputs of a row that cannot be stacked, whatever the row."""
    for each in outputs:
        if not (each is None or isinstance(each, Value | ConstantName)):
            refuse(where, f"an output {each!r:.40}, which is no tensor, of each row")


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
