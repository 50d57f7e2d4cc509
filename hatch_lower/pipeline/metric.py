"""The metric of a model: the number that the function of the setting `metric` returns for a callable model.

The function belongs to the project, and gets an object that behaves as an installed model. In the build's process the
methods are eager's, of the exported module or of ready programs, and every read of the function is an input of the
export. Each call of the function begins with the same random numbers.
"""

from __future__ import annotations

import math
import numbers
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from types import MappingProxyType
from typing import NoReturn

import torch

from hatch_lower.canonical import digest_of
from hatch_lower.errors import EntryPointError, LowerError, ProgramError, by_hand_hint
from hatch_lower.exir.graph.tensors import is_readable, storage_checksums, storage_key
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.discover import EntryPoint, find_value, raised_error
from hatch_lower.pipeline.eager import eager_modules
from hatch_lower.pipeline.exceptions import trim_lines
from hatch_lower.pipeline.model_build import BuildInputs
from hatch_lower.pipeline.module_checks import tensor_versions
from hatch_lower.runtime.eager import EagerModel
from hatch_lower.runtime.loaded import LoadedModel, Provenance
from hatch_lower.runtime.torch_private import tensors

RETURN = "return a number that is higher for a better model: a float, an int, or a tensor or array without dimensions"
SHOWN = 5  # names in an error


def metric_of(inputs: BuildInputs, source: CapturedModel) -> float:
    """Return the metric of a model that runs as eager in this process: `inputs.source`, or a converted model."""
    entry = metric_entry(inputs)
    with process_restored(), unchanged_model(inputs.source, entry), unchanged_model(source, entry):
        examples = {method.name: (method.args, method.kwargs) for method in source.methods}
        model = LoadedModel(
            EagerModel(eager_modules(source), examples), provenance_of(source.name, "eager", ("eager",))
        )
        return measure_metric(entry, model)


def metric_entry(inputs: BuildInputs) -> EntryPoint:
    return EntryPoint(inputs.model.name, inputs.model.metric, inputs.settings.root, setting="metric")


def find_metric(entry: EntryPoint, seed: int = 0) -> Callable[[LoadedModel], object]:
    """Import the function of a metric; raise `EntryPointError` if the function is missing or not callable.

    The import begins with the same random numbers in each process: a module may draw its inputs.
    """
    seed_random_numbers(seed)
    function = find_value(entry)
    if not callable(function):
        raise EntryPointError(
            "a metric must be a function",
            where=entry.where(),
            found=f"a value of type `{type(function).__name__}`",
            hint=f"name a function that takes a callable model; {RETURN}",
        )
    return function


def measure_metric(entry: EntryPoint, model: LoadedModel) -> float:
    """Return the number that a metric returns for a model; raise `EntryPointError` for any other value."""
    function = find_metric(entry)
    seed_random_numbers()
    try:
        value = function(model)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        refused = raised_error(error, entry, "the metric failed")
        if isinstance(error, LowerError):
            text = ": ".join(filter(None, (type(error).__name__, error.what, error.found)))
            refused = EntryPointError(refused.what, where=refused.where, found=text, hint=error.hint)
        raise with_steps(refused, error, entry, model.recipe) from error
    return metric_number(value, entry)


def with_steps(refused: EntryPointError, error: BaseException, entry: EntryPoint, recipe: str) -> EntryPointError:
    """Return the error of a metric with the next steps, if nothing better is known about the exception."""
    steps = [by_hand_hint(entry.export, entry.model, "" if recipe == "eager" else recipe)]
    if isinstance(error, SystemExit):
        steps.insert(0, f"let `{entry.export}` return a number, and not end the process")
    elif isinstance(error, TypeError):
        steps.insert(0, f"the build calls `{entry.export}` with the model as the only argument")
    return EntryPointError(
        refused.what, where=refused.where, found=refused.found, hint=refused.hint or "; ".join(steps)
    )


def metric_number(value: object, entry: EntryPoint) -> float:
    """Return the number in a metric's result: a Python or NumPy number, or a tensor or array without dimensions."""
    # a tensor, or an array or number of NumPy
    item = getattr(value, "item", None) if getattr(value, "ndim", None) == 0 else None
    number = value if item is None else item()
    if isinstance(number, numbers.Real) and not isinstance(number, bool):
        with suppress(OverflowError):  # of an integer
            if math.isfinite(number):
                dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
                return shortest(float(number), dtype) or 0.0  # no negative zero, of a negated error
        what, found = "a metric must return a finite number", trim_lines(repr(number))
    else:
        what, found = "a metric must return a number", describe_result(value)
    raise EntryPointError(what, where=entry.where(), found=found, hint=RETURN)


def shortest(number: float, dtype: str) -> float:
    """Return the number of fewest digits that is equal in the dtype: 0.97 for 0.9700000286 of float32."""
    if dtype in ("float32", "float16", "bfloat16"):
        for digits in range(1, 10):
            rounded = float(f"{number:.{digits}g}")
            if float(torch.tensor(rounded, dtype=getattr(torch, dtype))) == number:
                return rounded
    return number


def describe_result(value: object) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None and getattr(value, "ndim", None):
        return f"a value of type `{type(value).__name__}` with the shape {list(shape)}"
    return trim_lines(f"a value of type `{type(value).__name__}`: {value!r}")


def seed_random_numbers(seed: int = 0) -> None:
    """Give each import and call of a metric the same random numbers."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def random_states() -> dict[str, str]:
    """Return digests of the generators, which differ where an import has drawn other numbers from the same seed."""
    states: dict[str, object] = {"random": random.getstate(), "torch": torch.get_rng_state().tolist()}
    if "numpy" in sys.modules:
        _, words, place, *_ = sys.modules["numpy"].random.get_state()
        states["numpy"] = (words.tolist(), place)
    return {library: digest_of(repr(state)) for library, state in states.items()}


def refuse_drawn_inputs(entry: EntryPoint, libraries: Iterable[str]) -> NoReturn:
    raise EntryPointError(
        "the import of the metric draws random numbers, and eager has got other numbers than a recipe",
        where=entry.where(),
        found=f"numbers of {', '.join(f'`{library}`' for library in libraries)}, drawn at the import of a module that"
        " the model's code has imported before the metric",
        hint="draw in the function, or from a generator with a seed: `torch.Generator().manual_seed(1)`",
    )


@contextmanager
def unchanged_model(source: CapturedModel, entry: EntryPoint) -> Iterator[None]:
    """Refuse a metric that changes the tensors of a model outside of the model's calls, which run on copies."""
    before = tensor_states(source)
    yield
    changed = [name for name, state in tensor_states(source).items() if state != before.get(name)]
    if changed:
        raise EntryPointError(
            "the metric changes the model",
            where=entry.where(),
            found=", ".join(f"`{name}`" for name in changed[:SHOWN])
            + (f" and {len(changed) - SHOWN} more" if changed[SHOWN:] else ""),
            hint="let the metric only call the model's methods, and copy tensors before a change",
        )


def tensor_states(source: CapturedModel) -> dict[str, tuple[int, int]]:
    """Return, by name, the number of in-place changes of each tensor of a model, and a checksum of its memory.

    The number does not count changes by way of `data` or NumPy. A checksum of 3 GB takes a second.
    """
    stores = [store for method in source.methods for store in (method.program.state_dict, method.program.constants)]
    held = {name: value for store in stores for name, value in store.items()}
    if source.eager is not None:
        held |= {name: tensor for name, (tensor, _) in tensor_versions(source.eager).items()}
    known = {name: each for name, each in held.items() if isinstance(each, torch.Tensor) and not each.is_inference()}
    readable = {storage_key(tensor): tensor for tensor in known.values() if is_readable(tensor)}
    sums = dict(zip(readable, storage_checksums(readable.values()), strict=True))
    return {
        name: (tensors.read_change_counter(tensor), sums[storage_key(tensor)] if is_readable(tensor) else 0)
        for name, tensor in known.items()
    }


def provenance_of(model: str, recipe: str, recipes: tuple[str, ...]) -> Provenance:
    def refuse_debug() -> NoReturn:
        raise refused("debug map")

    def refuse_recipe(recipe: str) -> NoReturn:
        raise refused(f"recipe `{recipe}`")

    def refused(what: str) -> ProgramError:
        return ProgramError(
            f"a metric cannot ask model `{model}` for a {what}",
            hint="let the metric call the methods of the model that the build hands over: the build calls the metric"
            " once with eager and once for each recipe",
        )

    return Provenance(model, recipe, recipes, refuse_debug, refuse_recipe, MappingProxyType({}), model, "torch")


def is_too_low(value: float, eager: float, max_drop: float) -> bool:
    """Return whether a metric is lower than eager's by more than a limit."""
    return drop_of(value, eager) > Decimal(repr(max_drop))


def drop_of(value: float, eager: float) -> Decimal:
    """Return the difference from eager's metric, exact for the decimal numbers that people read and write."""
    return Decimal(repr(eager)) - Decimal(repr(value))
