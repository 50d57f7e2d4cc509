"""The check data of a wheel: example inputs and eager's outputs, up to a limit in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hatch_lower.errors import size_text
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.eager import eager_outputs, random_operators
from hatch_lower.pipeline.generated_inputs import MethodSizes
from hatch_lower.pipeline.parameters import user_input_values
from hatch_lower.pipeline.random_inputs import InputCase, case_of, example_case
from hatch_lower.pipeline.rounding import rounding_of
from hatch_lower.runtime.check import mark_name, recipe_method
from hatch_lower.runtime.torch_private import tensors

Tensors = Mapping[str, torch.Tensor]


def example_tensors(
    model: CapturedModel, tell: Callable[[str, object], object] = lambda method, outputs: None
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors among the example inputs and eager's outputs, and a note if eager fails."""
    # `tell` receives each method's name and eager's unchanged outputs.
    # The names are `<method>/input/<i>` and `<method>/output/<i>`, where `i` counts all leaves, not only tensors; the
    # tensors are contiguous and share no memory. An output that was rounded on the way, to a half or to integers, has
    # a mark for each kind of rounding: `hatch-lower check` allows that output a larger difference.
    found: dict[str, torch.Tensor] = {}
    for method in model.methods:
        if not method.has_examples or random_operators(method.program):
            continue
        try:
            case = example_case(method)
            outputs = eager_outputs(model, method, case)
            tell(method.name, outputs)
            found |= named_tensors(method, case, outputs)
        except Exception as error:
            return {}, f"no check data: eager fails on the example inputs of `{method.name}`: {error}"
    return found, ""


def named_tensors(method: CapturedMethod, case: InputCase, outputs: object) -> dict[str, torch.Tensor]:
    # names as in `example_tensors`
    found: dict[str, torch.Tensor] = {}
    for i, marks in enumerate(rounding_of(method.program).outputs):
        found |= {mark_name(method.name, mark, i): torch.tensor(True) for mark in sorted(marks)}
    for part, tree in (("input", (case.args, case.kwargs)), ("output", outputs)):
        for i, leaf in enumerate(tensors.tree_leaves(tree)):
            if isinstance(leaf, torch.Tensor):
                found[f"{method.name}/{part}/{i}"] = leaf.detach().clone(memory_format=torch.contiguous_format)
    return found


def limited(model: CapturedModel, found: Tensors, limit: int) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the check data that fit into `limit` bytes, and a line for each method with fewer rows or no data."""
    kept: dict[str, torch.Tensor] = {}
    lines = []
    for method in model.methods:
        own = {name: tensor for name, tensor in found.items() if name.startswith(f"{method.name}/")}
        size, room = count_bytes(own), limit - count_bytes(kept)
        if size <= room:
            kept |= own
            continue
        taken = f"its example inputs and outputs take {size_text(size)}"
        reason = f"{taken}, and the limit for a model's check data is {size_text(limit)}"
        fewer = next(smaller(model, method, size, room), None)
        if fewer is not None:
            kept |= fewer[1]
            lines.append(f"check data of `{method.name}` have {fewer[0]}: {reason} (`check-megabytes`)")
        else:
            lines.append(f"no check data of `{method.name}`: {reason}; raise `check-megabytes`")
    return kept, lines


def outputs_in_precision(
    model: CapturedModel, recipe: str, kept: Tensors, room: int
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the outputs of a recipe's model for the kept check inputs, and a line if these take more than `room`."""
    found: dict[str, torch.Tensor] = {}
    for method in model.methods:
        leaves = list(example_case(method).leaves())
        if not any(name.startswith(f"{method.name}/output/") for name in kept):
            continue
        given = [kept.get(f"{method.name}/input/{i}", leaf) for i, leaf in enumerate(leaves)]
        case = case_of(method, "the check inputs", given)
        own = named_tensors(method, case, eager_outputs(model, method, case))
        prefix, name = f"{method.name}/", recipe_method(method.name, recipe)
        found |= {f"{name}/{key.removeprefix(prefix)}": own[key] for key in own if "/input/" not in key}
    if (size := count_bytes(found)) > room:
        reason = f"its outputs take {size_text(size)} more than `check-megabytes` leaves room for"
        return {}, f"no check data of the recipe `{recipe}`: {reason}"
    return found, ""


def count_bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def smaller(model: CapturedModel, method: CapturedMethod, size: int, room: int) -> Iterator[tuple[str, Tensors]]:
    """Yield check data that fit, from the first rows of the example inputs, with a text for the number of rows."""
    case = example_case(method)
    sizes = MethodSizes(method, case.named(case.args, case.kwargs))
    symbol = row_symbol(sizes)
    if symbol is None:
        return
    rows = sizes.example[symbol]
    count = min(rows - 1, rows * room // size)
    while count >= max(1, sizes.ranges[symbol][0]):
        case = first_rows(method, symbol, count)
        tensors = named_tensors(method, case, eager_outputs(model, method, case))
        if count_bytes(tensors) <= room:
            yield f"{count} of {rows} rows", tensors
        count //= 2


def row_symbol(sizes: MethodSizes) -> Any:
    """Return the symbol of an input's first dimension, if no size is an expression over that symbol (`2 * batch`)."""
    shapes: list[Any] = [value.shape for value in sizes.values if isinstance(value, torch.Tensor)]
    found = [size.node.expr for shape in shapes for size in shape if isinstance(size, torch.SymInt)]
    firsts = [shape[0].node.expr for shape in shapes if shape and isinstance(shape[0], torch.SymInt)]
    if not firsts or not firsts[0].is_Symbol or firsts[0] not in sizes.example:
        return None
    plain = all(size == firsts[0] or firsts[0] not in size.free_symbols for size in found)
    return firsts[0] if plain else None


def first_rows(method: CapturedMethod, symbol: object, count: int) -> InputCase:
    leaves = []
    for leaf, value in zip(example_case(method).leaves(), user_input_values(method.program), strict=True):
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            leaf = count
        for place, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol and isinstance(leaf, torch.Tensor):
                leaf = leaf.narrow(place, 0, count)
        leaves.append(leaf)
    return case_of(method, f"the first {count} rows", leaves)
