"""`map` and `scan`: a graph's function, called for one row of tensors after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from hatch_lower.errors import InputError
from hatch_lower.runtime.arrays import Array, Arrays

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
