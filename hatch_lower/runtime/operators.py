"""What instructions of a plan call: Python's operators on sizes and numbers, a library's, and `map` and `scan`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from hatch_lower.errors import InputError
from hatch_lower.format.graph import Graph, OpCall, walk
from hatch_lower.runtime.arrays import Array, Arrays
from hatch_lower.runtime.names import Names

# operations that are Python's own operators; those that are functions are in `PYTHON_FUNCTIONS`
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


def python_code(op: str, args: list[str], names: Names) -> str:
    if op in PYTHON_TEMPLATES:
        return PYTHON_TEMPLATES[op].format(*args)
    return f"{names.bind(op, PYTHON_FUNCTIONS[op], op)}({', '.join(args)})"


def size_code(templates: Mapping[str, str], op: str, args: list[str]) -> str | None:
    """Return the code of an operator that asks an array for its size; `None` for any other, and for a literal."""
    template = templates.get(op)
    if template is None or template.count("{") != len(args) or not args[0].isidentifier():
        return None
    return template.format(*args)


def calls_in(graph: Graph) -> Iterator[OpCall]:
    return (instruction for _, instruction in walk(graph) if isinstance(instruction, OpCall))


# `map` and `scan`: a graph's function, called for one row of tensors after the other

Step: TypeAlias = Callable[..., tuple[Array, ...]]


def map_rows(
    arrays: Arrays, where: str, step: Step, tensors: Sequence[Array], extra: Sequence[object]
) -> tuple[Array, ...]:
    # `step` returns a tuple of tensors of the same shapes for each row, or `None` in their place
    return stack(arrays, [step(*row, *extra) for row in rows_of(arrays, where, tensors)])


def scan_rows(
    arrays: Arrays, where: str, step: Step, carried: Sequence[object], tensors: Sequence[Array], extra: Sequence[object]
) -> tuple[object, ...]:
    count = len(carried)
    outputs = []
    for row in rows_of(arrays, where, tensors):
        results = step(*carried, *row, *extra)
        carried = results[:count]
        outputs.append(results[count:])
    return (*carried, *stack(arrays, outputs))


def rows_of(arrays: Arrays, where: str, tensors: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    # each row is contiguous, for so torch traced the graph that takes it
    lengths = [len(tensor) for tensor in tensors]
    if min(lengths) == 0 or min(lengths) != max(lengths):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise InputError(
            "the method goes over the rows of tensors, of which there must be at least one, and equally many in each",
            where=where,
            found=f"tensor{'s' if len(tensors) > 1 else ''} of shape {shapes}",
            hint="pass larger tensors; the eager module refuses these too",
        )
    return zip(*map(arrays.rows, tensors), strict=True)


def stack(arrays: Arrays, rows: Sequence[Sequence[Array]]) -> tuple[Array, ...]:
    # what is stacked shares no memory with any row
    return tuple(None if column[0] is None else arrays.stack(column) for column in zip(*rows, strict=True))
