"""The search of mixed precision: the layers that must stay in float32 for the metric to hold.

Each layer alone goes back to float32, and the error of the outputs on a few inputs gives the layer's effect. Then the
metric decides how many layers go back, the layer with the largest effect first: with none, with all, and by bisection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import torch

from hatch_lower.config.settings import Recipe
from hatch_lower.errors import VerificationError
from hatch_lower.events import Reporter, stage
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.eager import eager_factory
from hatch_lower.pipeline.metric import is_too_low, metric_of
from hatch_lower.pipeline.model_build import BuildInputs
from hatch_lower.pipeline.precision.convert import (
    Cases,
    Conversion,
    calibration_cases,
    is_quantizable,
    program_calls,
)
from hatch_lower.pipeline.precision.finding import LayerEffect, PrecisionFinding, PrecisionSearch
from hatch_lower.pipeline.precision.halves import innermost_module
from hatch_lower.pipeline.precision.state import InitialState
from hatch_lower.pipeline.random_inputs import InputCase, example_case
from hatch_lower.runtime.torch_private import tensors

MOST_CASES = 4  # inputs of a method for the effects of layers


def search_precision(inputs: BuildInputs, reporter: Reporter, wanted: PrecisionSearch) -> PrecisionFinding:
    """Return the layers of a model that must stay in float32 in a recipe.

    Raises `VerificationError` if the metric drops too much even with all layers in float32.
    """
    model = inputs.model
    (recipe,) = (each for each in inputs.recipes if each.name == wanted.recipe)
    limit = model.max_drop if recipe.max_drop is None else recipe.max_drop
    cases = calibration_cases(model, [recipe], inputs.source, inputs.settings.root, reporter)
    conversion = Conversion(inputs.source, model, cases)
    with stage(reporter, "metric", model.name) as describe:
        eager = metric_of(inputs, inputs.source)
        describe(f"{model.metric} of eager: {eager:.6g}")
    tried: dict[int, float] = {}
    order: list[str] = []

    def holds(count: int) -> bool:
        if count not in tried:
            with stage(reporter, "metric", model.name, recipe.name) as describe:
                tried[count] = metric_of(inputs, conversion.converted(recipe, tuple(sorted(order[:count]))))
                describe(f"{model.metric} with {count} layer{'' if count == 1 else 's'} in float32: {tried[count]:.6g}")
        return not is_too_low(tried[count], eager, limit)

    effects: tuple[LayerEffect, ...] = ()
    count = 0
    if not holds(0):
        with stage(reporter, "effects", model.name, recipe.name) as describe:
            effects = layer_effects(inputs.source, conversion, recipe, cases)
            describe(f"{len(effects)} layer{'' if len(effects) == 1 else 's'}")
        order += [effect.path for effect in effects]
        count = least_count(len(order) - 1, holds)  # with all layers in float32 no precision is left
        if not count:
            raise VerificationError(
                "no choice of layers in float32 keeps the metric",
                where=f"model `{model.name}`, recipe `{recipe.name}`, `metric = {model.metric}`",
                found="; ".join(f"{number} in float32: {value:.6g}" for number, value in sorted(tried.items()))
                + f"; eager {eager:.6g}, `max-drop` {limit:g}",
                hint="name more, or more typical, inputs in `calibrate`, write a higher precision, or raise `max-drop`",
            )
    kept = tuple(sorted(order[:count]))
    numbers = tuple(sorted(tried.items()))
    return PrecisionFinding(model.name, recipe.name, recipe.precision, eager, limit, effects, kept, numbers)


def least_count(most: int, holds: Callable[[int], bool]) -> int:
    """Return the least number from 1 to `most` that holds, by bisection, or 0."""
    if most < 1 or not holds(most):
        return 0
    least = 1
    while least < most:
        middle = (least + most) // 2
        if holds(middle):
            most = middle
        else:
            least = middle + 1
    return most


def layer_effects(
    source: CapturedModel, conversion: Conversion, recipe: Recipe, cases: Cases
) -> tuple[LayerEffect, ...]:
    """Return the layers of all methods that the precision changes, the layer with the largest effect first."""
    errors: dict[str, float] = {}
    for method in source.methods:
        paths = list(dict.fromkeys(filter(None, map(innermost_module, filter(is_quantizable, program_calls(method))))))
        given = list(itertools.islice(cases.get(method.name, ()), MOST_CASES)) or [example_case(method)]
        state = conversion.state_of(method)
        with process_restored():
            new_eager = eager_factory(source, method)
            expected = [compared_leaves(new_eager(), case) for case in given]
            trial = conversion.trial(method, recipe)
            converted = trial(())
            whole = error_of(module_outputs(converted, given, state), expected)
            for path in paths:
                exact = trial((path,))
                if exact.code == converted.code:  # in float32 in any case, as a small weight
                    continue
                left = error_of(module_outputs(exact, given, state), expected) / whole if whole else 1.0
                errors[path] = min(errors.get(path, left), left)
    return tuple(LayerEffect(path, errors[path]) for path in sorted(errors, key=lambda path: (errors[path], path)))


def module_outputs(
    module: torch.nn.Module, cases: Iterable[InputCase], state: Collection[str]
) -> Iterator[list[torch.Tensor]]:
    """Yield the outputs of a module for each case, called with its initial state."""
    initial = InitialState(module, state)
    for case in cases:
        yield compared_leaves(module, case)
        initial.restore()


def compared_leaves(call: Callable[..., object], case: InputCase) -> list[torch.Tensor]:
    """Return the floating-point outputs of a call, or all outputs of a method without such outputs, such as labels."""
    args, kwargs = case.copied()
    with torch.no_grad():
        leaves = [leaf for leaf in tensors.tree_leaves(call(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    return [leaf.double() for leaf in leaves if leaf.dtype.is_floating_point] or leaves


def error_of(given: Iterable[Sequence[torch.Tensor]], expected: Iterable[Sequence[torch.Tensor]]) -> float:
    """Return the squared error of floating-point outputs, relative to their squares; any NaN counts as 1.

    Of other outputs, the share of elements that differ.
    """
    wrong = total = 0.0
    for ours, theirs in zip(given, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            if not other.dtype.is_floating_point:
                wrong += float((one != other).sum()) if one.shape == other.shape else other.numel()
                total += other.numel()
                continue
            wrong += float((one - other).square().nan_to_num(nan=1.0).sum())
            total += float(other.square().nan_to_num().sum())
    return wrong / total if total else wrong
