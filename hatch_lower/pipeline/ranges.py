"""The export of a method for its declared ranges of dynamic sizes, or for narrower ranges."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram

from hatch_lower.model import Method, Model
from hatch_lower.pipeline.parameters import DeclaredSize, dimension_names
from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.any_size import for_any_size
from hatch_lower.runtime.torch_private.programs import mode_of_fakes
from hatch_lower.runtime.torch_private.symbols import bound_sympy, compute, is_computable

SMALL_SIZES = 1000  # of which each is tried in a condition on a single size; fewer with several sizes
LARGE_SIZES = tuple(2**exponent for exponent in range(4, 21))
MOST_TRIED = 20_000  # combinations of sizes
VIOLATED = re.compile(r"Constraints violated \(([^)]*)\)")  # of torch's error
SMALLEST = (2, 3)  # torch.export treats smaller sizes as fixed, also of a text without a token


def export_method(
    whole: Model,
    exported: torch.nn.Module,
    signature: inspect.Signature,
    args: Any,
    kwargs: Any,
    shapes: Any,
    declared: Method,
) -> ExportedProgram:
    """Export a method for its ranges; if torch refuses the ranges, as the method's `any_size` and `narrow` allow.

    For the range of a `Dim`, torch refuses code that depends on the size. For a hint (`Dim.AUTO`), torch keeps the
    condition as a guard of `ExportedProgram.module()`, which no lowered program has: the method is exported again with
    a check of the condition in each call.
    """

    def export(shapes: Any, *, any_size: bool, deferred: bool = declared.defer_guards) -> ExportedProgram:
        with whole.exporting(), for_any_size() if any_size else nullcontext():
            return torch.export.export(
                exported,
                args,
                kwargs,
                dynamic_shapes=shapes,
                strict=declared.strict,
                prefer_deferred_runtime_asserts_over_guards=deferred,
            )

    try:
        program = export(shapes, any_size=declared.defer_guards)
        if has_hints(shapes) and not declared.defer_guards:
            named = dimension_names(program, shapes, signature, args, kwargs)
            if any(has_other_symbols(each, named) for each in refuted_conditions(program)):
                program = export(shapes, any_size=True, deferred=True)
        return program
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


def has_hints(shapes: Any) -> bool:
    """Return whether torch chooses the range of a size: the declaration is no `Dim`, but for example `Dim.AUTO`."""
    return not all(isinstance(each, Dim | int | None) for each in tensors.tree_leaves(shapes))


def has_other_symbols(condition: sympy.Basic, known: Collection[str]) -> bool:
    return any(str(symbol) not in known for symbol in condition.free_symbols)


def refuted_conditions(program: ExportedProgram) -> list[sympy.Basic]:
    """Return the conditions with which a program was exported, and which are false for sizes in its ranges."""
    mode = mode_of_fakes([node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")])
    sizes = mode.shape_env if mode is not None else None
    if sizes is None:
        return []
    ranges = {**sizes.var_to_range, **program.range_constraints}
    conditions = dict.fromkeys(sizes.replace(guard.expr) for guard in sizes.guards)
    unproven = (each for each in conditions if not bound_sympy(each, ranges).is_singleton())
    return [each for each in unproven if is_refuted(each, ranges)]


def is_refuted(condition: sympy.Basic, ranges: Mapping[Any, Any]) -> bool:
    """Return whether a condition is false for sizes in the ranges: small sizes, powers of two, or the largest.

    A condition with a function that cannot be computed counts as refuted.
    """
    if not is_computable(condition):
        return True
    names = sorted(condition.free_symbols, key=str)
    count = round(SMALL_SIZES ** (1 / max(len(names), 1)))
    combinations = itertools.product(*(tried_sizes(ranges[name], count) for name in names))
    tried = itertools.islice(combinations, MOST_TRIED)
    return any(is_false(condition, dict(zip(names, sizes, strict=True))) for sizes in tried)


def is_false(condition: sympy.Basic, sizes: Mapping[Any, int]) -> bool:
    try:
        return not compute(condition, sizes)
    except ZeroDivisionError:  # eager fails for these sizes, too
        return False


def tried_sizes(bounds: Any, count: int) -> list[int]:
    least, most = int(max(bounds.lower, -LARGE_SIZES[-1])), int(min(bounds.upper, LARGE_SIZES[-1]))
    large = (size for size in LARGE_SIZES if least < size < most)
    return sorted({*range(least, min(least + count, most)), *large, most})


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
