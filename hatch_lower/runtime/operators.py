"""Operators that instructions of a plan call: Python's on sizes and numbers, an array's sizes, `map` and `scan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from hatch_lower.errors import InputError
from hatch_lower.format.graph import PYTHON_FUNCTIONS, PYTHON_TEMPLATES, Graph, OpCall, walk_instructions
from hatch_lower.runtime.arrays import Array, Arrays
from hatch_lower.runtime.names import CodeNames


def python_code(op: str, args: list[str], names: CodeNames) -> str:
    if op in PYTHON_TEMPLATES:
        return PYTHON_TEMPLATES[op].format(*args)
    return f"{names.bind(op, PYTHON_FUNCTIONS[op], op)}({', '.join(args)})"


def size_code(templates: Mapping[str, str], op: str, args: list[str]) -> str | None:
    """Return code for an operator that reads an array's size; `None` for other operators, and for a literal."""
    template = templates.get(op)
    if template is None or template.count("{") != len(args) or not args[0].isidentifier():
        return None
    return template.format(*args)


def calls_in(graph: Graph) -> Iterator[OpCall]:
    return (instruction for _, instruction in walk_instructions(graph) if isinstance(instruction, OpCall))


# `map` and `scan`: call the function of a graph for each row of tensors, in order

Step: TypeAlias = Callable[..., tuple[Array, ...]]


def map_rows(
    arrays: Arrays, where: str, step: Step, tensors: Sequence[Array], extra: Sequence[object]
) -> tuple[Array, ...]:
    # for each row, `step` returns a tuple of tensors or `None`, with the same shapes for all rows
    return stack(arrays, [step(*row, *extra) for row in iterate_rows(arrays, where, tensors)])


def scan_rows(
    arrays: Arrays, where: str, step: Step, carried: Sequence[object], tensors: Sequence[Array], extra: Sequence[object]
) -> tuple[object, ...]:
    count = len(carried)
    outputs = []
    for row in iterate_rows(arrays, where, tensors):
        results = step(*carried, *row, *extra)
        carried = results[:count]
        outputs.append(results[count:])
    return (*carried, *stack(arrays, outputs))


def iterate_rows(arrays: Arrays, where: str, tensors: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    # each row is contiguous, because torch traced the graph with contiguous rows
    lengths = [len(tensor) for tensor in tensors]
    if min(lengths) == 0 or min(lengths) != max(lengths):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise InputError(
            "the method loops over the rows of tensors, which need at least one row and equal numbers of rows",
            where=where,
            found=f"tensor{'s' if len(tensors) > 1 else ''} of shape {shapes}",
            hint="pass larger tensors; the eager module refuses these tensors, too",
        )
    return zip(*map(arrays.rows, tensors), strict=True)


def stack(arrays: Arrays, rows: Sequence[Sequence[Array]]) -> tuple[Array, ...]:
    # the results share no memory with any row
    return tuple(None if column[0] is None else arrays.stack(column) for column in zip(*rows, strict=True))
