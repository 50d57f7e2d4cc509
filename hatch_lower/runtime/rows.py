"""`map` and `scan`: a graph's function, called for one row of tensors after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hatch_lower.errors import InputError

Step: TypeAlias = Callable[..., tuple[Any, ...]]


def map_rows(where: str, step: Step, tensors: Sequence[Tensor], extra: Sequence[object]) -> tuple[Tensor | None, ...]:
    # `step` returns a tuple of tensors of the same shapes for each row, or `None` in their place
    return stack([step(*row, *extra) for row in rows_of(where, tensors)])


def scan_rows(
    where: str, step: Step, carried: Sequence[object], tensors: Sequence[Tensor], extra: Sequence[object]
) -> tuple[object, ...]:
    count = len(carried)
    outputs = []
    for row in rows_of(where, tensors):
        results = step(*carried, *row, *extra)
        carried = results[:count]
        outputs.append(results[count:])
    return (*carried, *stack(outputs))


def rows_of(where: str, tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
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
    return zip(*(map(Tensor.contiguous, tensor.unbind()) for tensor in tensors), strict=True)


def stack(rows: Sequence[Sequence[Tensor | None]]) -> tuple[Tensor | None, ...]:
    # what is stacked shares no memory with any row
    return tuple(None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True))
