"""The export of a method for its declared ranges of dynamic sizes, or for narrower ranges."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from hatch_lower.model import Method, Model
from hatch_lower.pipeline.parameters import DeclaredSize
from hatch_lower.runtime.torch_private.any_size import for_any_size

VIOLATED = re.compile(r"Constraints violated \(([^)]*)\)")  # of torch's error
SMALLEST = (2, 3)  # torch.export treats smaller sizes as fixed, also of a text without a token


def export_method(
    whole: Model, exported: torch.nn.Module, args: Any, kwargs: Any, shapes: Any, declared: Method
) -> ExportedProgram:
    """Export a method for its ranges; if torch refuses the ranges, as the method's `any_size` and `narrow` allow."""

    def export(shapes: Any, *, any_size: bool) -> ExportedProgram:
        with whole.exporting(), for_any_size() if any_size else nullcontext():
            return torch.export.export(
                exported,
                args,
                kwargs,
                dynamic_shapes=shapes,
                strict=declared.strict,
                prefer_deferred_runtime_asserts_over_guards=declared.defer_guards,
            )

    try:
        return export(shapes, any_size=declared.defer_guards)
    except Exception as error:
        if not (declared.any_size or declared.narrow) or not violated(error):
            raise
        refused = error
    try:
        return export(shapes, any_size=True)
    except Exception as error:
        names = set(violated(error))
        if not names or not names <= set(declared.narrow):
            raise refused from None
    for smallest in SMALLEST:
        with suppress(Exception):
            return export(narrower(shapes, names, smallest), any_size=True)
    raise refused from None


def violated(error: Exception) -> list[str]:
    """Return the names of the dynamic sizes whose ranges torch.export refuses."""
    found = VIOLATED.search(str(error))
    return found[1].split(", ") if found else []


def narrower(shapes: Any, names: Collection[str], smallest: int) -> Any:
    """Return dynamic shapes in which the ranges of some names begin at a size."""
    if isinstance(shapes, Mapping):
        return {key: narrower(each, names, smallest) for key, each in shapes.items()}
    if isinstance(shapes, tuple | list):
        return type(shapes)(narrower(each, names, smallest) for each in shapes)
    if type(shapes) is Dim and shapes.__name__ in names:
        return Dim(shapes.__name__, min=max(smallest, shapes.min), max=shapes.max)
    return shapes


def narrowed_ranges(
    program: ExportedProgram, dimensions: Mapping[str, str], sizes: Sequence[DeclaredSize]
) -> Iterator[str]:
    """Yield a line for each dynamic size whose range in a program begins later than declared.

    Args:
        program: an exported method.
        dimensions: symbol of the program to the name of its `Dim`.
        sizes: the declared sizes.
    """
    declared = {size.name: size.declared for size in sizes if type(size.declared) is Dim}
    for symbol, allowed in program.range_constraints.items():
        dimension = declared.get(dimensions.get(str(symbol), ""))
        if dimension is not None and allowed.lower > dimension.min:
            yield (
                f"`{dimension.__name__}` has the range {allowed.lower} to {allowed.upper}: torch.export refuses a"
                f" range from {dimension.min} on"
            )
