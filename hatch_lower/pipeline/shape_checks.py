"""Checks of dynamic shapes against the example's sizes, for clearer errors than torch's, which name torch's symbols."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import Dim

from hatch_lower.errors import CaptureError
from hatch_lower.frozen import Frozen

FIXED_SIZES = (0, 1)  # sizes that torch.export treats as fixed


class DeclaredSize(Frozen):
    path: str  # of the tensor: `image`, `pair[0]`
    dimension: int
    declared: Any  # a `Dim`, or a hint, for example `Dim.AUTO`
    size: int  # the example's

    @property
    def name(self) -> str:
        return self.declared.__name__ if isinstance(self.declared, Dim) else str(self.declared)

    def text(self) -> str:
        return f"dimension {self.dimension} of `{self.path}` is {self.size} in the example"


def declared_sizes(
    signature: inspect.Signature, dynamic_shapes: Any, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[DeclaredSize]:
    """Return the example's dimensions that are declared dynamic; empty if the arguments do not fit the signature."""
    if not isinstance(dynamic_shapes, Mapping | tuple | list):
        return []
    try:
        given = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:
        return []
    shapes = dynamic_shapes if isinstance(dynamic_shapes, Mapping) else dict(zip(given, dynamic_shapes, strict=False))
    return [size for name, value in given.items() for size in sizes_of(name, value, shapes.get(name))]


def sizes_of(path: str, value: object, shape: Any) -> Iterator[DeclaredSize]:
    if isinstance(value, torch.Tensor):
        pairs = shape.items() if isinstance(shape, Mapping) else enumerate(shape or ())
        for dimension, declared in pairs:
            if isinstance(dimension, int) and declared is not None and not isinstance(declared, int):
                size = value.shape[dimension] if -value.dim() <= dimension < value.dim() else -1
                yield DeclaredSize(path, dimension, declared, size)
    elif isinstance(value, Mapping) and isinstance(shape, Mapping):
        for key, each in value.items():
            yield from sizes_of(f"{path}[{key!r}]", each, shape.get(key))
    elif isinstance(value, (tuple, list)) and isinstance(shape, (tuple, list)):
        for index, (each, inner) in enumerate(zip(value, shape, strict=False)):
            yield from sizes_of(f"{path}[{index}]", each, inner)


def check_declared(where: str, what: str, sizes: list[DeclaredSize]) -> None:
    """Refuse dimensions that tensors lack, and ranges without the example's size."""
    for declared in sizes:
        if declared.size < 0:
            raise CaptureError(
                what,
                where=where,
                found=f"`{declared.path}` has no dimension {declared.dimension}",
                hint="count the dimensions from 0",
            )
        if type(declared.declared) is not Dim:  # a multiple of another dimension, or a hint
            continue
        low, high = declared.declared.min, declared.declared.max
        bound = f"below min = {low}" if declared.size < low else f"above max = {high}" if declared.size > high else ""
        if bound:
            raise CaptureError(
                what,
                where=where,
                found=f"{declared.text()}, which is {bound} of `{declared.name}`",
                hint="use an example within the range, or widen the range of the `Dim`",
            )


def fixed_size(reason: str, sizes: list[DeclaredSize]) -> DeclaredSize | None:
    """Return the dimension whose example size of 0 or 1 made torch.export fail, or `None` for other failures."""
    if not any(text in reason for text in ("specialized", "Constraints violated", "not all values")):
        return None
    fixed = (size for size in sizes if size.size in FIXED_SIZES and size.declared is not Dim.AUTO)
    return next(fixed, None)
