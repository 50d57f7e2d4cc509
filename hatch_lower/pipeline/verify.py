"""The stage `compare`: load the written files like an installed wheel's, and compare the program with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import Path

import torch

from hatch_lower.cache.store import suspected
from hatch_lower.config.settings import Recipe
from hatch_lower.errors import LowerError, UnavailableError, VerificationError
from hatch_lower.events import Event, stage
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.plan import MethodPlan, Plan
from hatch_lower.format.record import VerifiedMethod, worst
from hatch_lower.format.results import NOT_ASKED
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.check_data import Tensors, named_tensors
from hatch_lower.pipeline.comparison import Verification, verify_method
from hatch_lower.pipeline.eager import random_operators
from hatch_lower.pipeline.emit.constants import write_constants
from hatch_lower.pipeline.exceptions import describe_exception, refuse_out_of_memory, trim_lines
from hatch_lower.pipeline.fresh_process import Packaged, load_written
from hatch_lower.pipeline.model_build import BuildInputs, BuiltRecipe, Services, is_gated, place_of
from hatch_lower.pipeline.module_checks import path_text
from hatch_lower.pipeline.package import Packager
from hatch_lower.pipeline.random_inputs import InputCase, example_case, is_integer
from hatch_lower.pipeline.real_inputs import RealInputs
from hatch_lower.pipeline.recipes import device_of, wheel_requirements
from hatch_lower.runtime.arrays import Arrays
from hatch_lower.runtime.containers import replaced_in, take_apart
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.runtime.executor import Executor
from hatch_lower.runtime.numbers import Tolerance
from hatch_lower.runtime.torch_private import tensors

INTERPRETED = "its kernels were interpreted on the CPU, and the machine code has not run"
EXAMPLES = "examples.safetensors"  # the example inputs and all of eager's outputs; the wheel has a limited selection


class MethodError(VerificationError):
    """A failed comparison; `method` is empty if no method of the program can be called."""

    def __init__(self, error: VerificationError, recipe: Recipe, method: str, *, judged: bool = False) -> None:
        # `judged`: a metric judges the numbers of a recipe in a lower precision
        unjudged = recipe.precision != "float32" and not judged
        judge = "give the model a `metric`, which then judges the numbers of the recipe; " if unjudged else ""
        super().__init__(error.what, where=error.where, found=error.found, hint=judge + error.hint)
        self.recipe = recipe.name
        self.method = method
        self.case: InputCase | None = getattr(error, "case", None)
        # no operation of a quantized recipe is at fault where many roundings add up
        self.is_rounding = recipe.precision == "int8" and getattr(error, "is_rounding", False)


class UncomparableError(VerificationError):
    """This machine lacks the device of a recipe. `reason` is for the recipe's `RecipeEntry`."""

    def __init__(self, error: UnavailableError, where: str) -> None:
        super().__init__(
            "the lowered program cannot be compared with eager: the program does not run on this machine",
            where=where,
            found=": ".join(filter(None, (error.what, error.found))),
            hint=f"{error.hint}, build on a machine that can run the program, or write `verify = true` in the recipe:"
            " the recipe is then built without a comparison, and `hatch-lower check` compares on another machine",
        )
        self.reason = " ".join(error.what.split())


class InterpretedError(VerificationError):
    """The program, whose kernels are interpreted on the CPU, cannot be compared or computes other numbers."""


class Comparison(Frozen):
    """The comparison of some recipes with eager."""

    methods: tuple[VerifiedMethod, ...] = ()
    # by recipe without a comparison, the reason for the recipe's `RecipeEntry`
    reasons: Mapping[str, str] = field(default_factory=dict)


def verify_recipes(inputs: BuildInputs, services: Services, recipes: Sequence[BuiltRecipe]) -> Comparison:
    """Compare each packaged recipe with eager, unless `verify` is false or this machine lacks the recipe's device."""
    verified: list[VerifiedMethod] = []
    reasons: dict[str, str] = {}
    for lowered in recipes:
        name, place = lowered.recipe.name, place_of(inputs.model.name, lowered.recipe)
        if not lowered.recipe.verify:
            reasons[name] = NOT_ASKED
            continue
        with suspected(services.folder, tuple(lowered.keys)):
            try:
                verified += verify_here(inputs, services, lowered, wishes=not verified)
            except UncomparableError as error:
                if lowered.recipe.without_device == "fail":
                    raise
                reasons[name] = error.reason
                if lowered.recipe.without_device == "interpret":
                    verified += compare_interpreted(inputs, services, lowered, error)
                    reasons[name] = INTERPRETED
            else:
                services.packager.refuse_changed(lowered.files, place)
                verify_afresh(inputs, services, lowered)
            services.packager.refuse_changed(lowered.files, place)
    return Comparison(tuple(verified), reasons)


def verify_afresh(inputs: BuildInputs, services: Services, lowered: BuiltRecipe) -> None:
    source, recipe, packager = inputs.source_of(lowered.recipe), lowered.recipe, services.packager
    given = inputs.examples_of(recipe)
    if services.fresh is None or given is None:
        return
    examples = write_examples(inputs, services, lowered, given[0])
    required = wheel_requirements(inputs.settings, lowered)
    with stage(services.reporter, "compare", source.name, recipe.name) as describe:
        packaged = Packaged(
            folder=packager.folder,
            plan=packager.source(lowered.files.plan.path),
            constants=constants_path(packager, lowered),
            outside=packager.outside,
            imports=recipe.imports,
            device=device_of(recipe.backends, place_of(source.name, recipe)),
            examples=examples,
            methods=tuple(method.name for method in source.methods),
            tolerance=tolerance_in(recipe),
            requirements=None if required is None else (*required, inputs.settings.name),  # the wheel's own modules
        )
        asked = services.fresh.check(packaged, place_of(source.name, recipe))
        describe("in a fresh process" if asked else "not in a fresh process: a backend or the model closed the pipes")


def write_examples(inputs: BuildInputs, services: Services, lowered: BuiltRecipe, found: Tensors) -> Path:
    """Write the inputs and outputs of the fresh process's comparison; return the file.

    `found` are eager's, in the precision of the recipe; a gated recipe, which may compute other numbers, is compared
    with the outputs of the program in this process.
    """
    recipe = lowered.recipe
    source, place = inputs.source_of(recipe), place_of(inputs.model.name, recipe)
    if recipe.name not in inputs.converted:
        path = services.folder / EXAMPLES
        if not path.exists():
            write_constants(path, found)
        return path
    if is_gated(inputs.model, recipe):
        with process_restored():
            plan, executor = load_program(services.packager, lowered, place, None)
            found = {}
            for method in source.methods:
                if method.has_examples and not random_operators(method.program):
                    call = on_device(executor.methods[method.name], executor.arrays)
                    case = example_case(method)
                    args, kwargs = case.copied()
                    outputs = as_exported(call, plan.methods[method.name], method)(*args, **kwargs)
                    found |= named_tensors(method, case, outputs)
    path = services.folder / f"{recipe.name}-{EXAMPLES}"
    write_constants(path, found)
    return path


def compare_interpreted(
    inputs: BuildInputs, services: Services, lowered: BuiltRecipe, missing: UncomparableError
) -> list[VerifiedMethod]:
    """Compare a program on the CPU, with stand-ins for the run halves of its backends."""
    with stand_ins_of(lowered, missing) as kinds:
        try:
            methods = list(verify_here(inputs, services, lowered, wishes=False, stand_ins=kinds))
        except UncomparableError:
            raise
        except VerificationError as error:
            raise InterpretedError(
                f"by interpretation of its kernels: {error.what}", where=error.where, found=error.found, hint=error.hint
            ) from error
    return [replace(method, compared=f"interpreted: {method.compared}") for method in methods]


@contextmanager
def stand_ins_of(lowered: BuiltRecipe, missing: UncomparableError) -> Iterator[Mapping[str, type[Delegate]]]:
    with ExitStack() as stack:
        kinds: dict[str, type[Delegate]] = {}
        for used in lowered.used:
            opened = find_backend(used.backend).stand_in()
            if opened is None:
                raise missing
            kinds[used.backend] = stack.enter_context(opened)
        yield kinds


def verify_here(
    inputs: BuildInputs,
    services: Services,
    lowered: BuiltRecipe,
    *,
    wishes: bool,
    stand_ins: Mapping[str, type[Delegate]] | None = None,
) -> Iterator[VerifiedMethod]:
    # `wishes`: report which real inputs are advisable; only for the first recipe, as the advice is the same for all
    source, recipe, reporter = inputs.source_of(lowered.recipe), lowered.recipe, services.reporter
    gated = stand_ins is None and is_gated(inputs.model, recipe)
    loaded: tuple[Plan, Executor] | None = None
    missing: UncomparableError | None = None
    for method in source.methods:
        with process_restored(), stage(reporter, "compare", source.name, recipe.name, method.name) as describe:
            if loaded is None:  # inside the stage, so that a crash while loading a library is reported with the stage
                try:
                    loaded = load_program(services.packager, lowered, place_of(source.name, recipe), stand_ins)
                except UncomparableError as error:
                    missing = error
                    describe(f"not compared: {error.found}")
                    break
            plan, executor = loaded
            replaced = dict(replaced_in(plan.methods[method.name].outputs))
            call = on_device(executor.methods[method.name], executor.arrays)
            real = inputs.real.get(method.name)
            try:
                result = verify_method(
                    source,
                    method,
                    as_exported(call, plan.methods[method.name], method) if replaced else call,
                    executor.reset,
                    recipe=recipe.name,
                    tolerance=tolerance_in(recipe),
                    real=() if real is None else real.cases,
                    gated=gated,
                )
            except VerificationError as error:
                raise MethodError(error, recipe, method.name, judged=gated) from error
            verified = VerifiedMethod(
                recipe=recipe.name,
                method=method.name,
                compared=compared_text(result.cases, real),
                calls=len(result.cases),
                left_out=result.notes,
                outputs=result.outputs,
            )
            total = worst(list(result.outputs.values()))
            found = "equal" if total is None else f"{total.text()}; allowed: {result.allowed}"
            describe(f"{verified.compared}: {found}")
        stands = [f"the output `{name}` becomes a plain mapping: {reason}" for name, reason in replaced.items()]
        for note in (*result.notes, *stands):
            reporter.report(Event("compare", "note", source.name, recipe.name, method.name, detail=note))
        asked = (wishes_for_real_inputs(method, result) if real is None else real.notes()) if wishes else ()
        for note in asked:
            reporter.report(Event("compare", "note", source.name, method=method.name, detail=note))
        yield verified
    if missing is not None:
        raise missing


def wishes_for_real_inputs(method: CapturedMethod, result: Verification) -> Iterator[str]:
    """Yield the reasons for real inputs, for a method that was compared without."""
    case = example_case(method)
    leaves, _ = tensors.tree_flatten_with_path(case.named(case.args, case.kwargs))
    whole = [path_text(path) for path, leaf in leaves if isinstance(leaf, torch.Tensor) and is_integer(leaf)]
    ask = "name real inputs in `verify-inputs`"
    if whole:
        listed = ", ".join(f"`{path}`" for path in whole)
        yield f"{listed}: compared only on integers of the example, zeros and limits; {ask}"
    if 2 * result.left_out > result.generated:
        yield f"{result.left_out} of {result.generated} generated inputs were left out: eager refuses them; {ask}"


def compared_text(cases: Sequence[str], real: RealInputs | None) -> str:
    """Format the compared inputs: `example inputs, random inputs, batch = 3, 12 real inputs of samples.safetensors`."""
    # each name once, without the seed and without second calls
    own = {case.name for case in real.cases} if real is not None else set()
    names = [name.partition(", ")[0] for name in cases if name not in own]
    count = len(own)
    if real is not None:
        names.append(f"{count} real input{'' if count == 1 else 's'} of {real.source}")
    return ", ".join(dict.fromkeys(names))


def tolerance_in(recipe: Recipe) -> Tolerance:
    return Tolerance(recipe.rtol, recipe.atol)


def as_exported(call: Callable[..., object], plan: MethodPlan, method: CapturedMethod) -> Callable[..., object]:
    # restore eager's classes in place of their stand-ins, so that the trees of both sides can be compared
    leaves = take_apart(method.name, plan.outputs, "output")
    spec = method.program.call_spec.out_spec

    def run(*args: object, **kwargs: object) -> object:
        return tensors.tree_unflatten(leaves(call(*args, **kwargs)), spec)

    return run


def on_device(call: Callable[..., object], arrays: Arrays) -> Callable[..., object]:
    """Return a method that takes and returns tensors on the CPU, as eager does."""
    if arrays.device == "cpu":
        return call

    def run(*args: object, **kwargs: object) -> object:
        moved_args, moved_kwargs = tensors.tree_map_only(arrays.kind, arrays.placed, (args, kwargs))
        return tensors.tree_map_only(arrays.kind, arrays.on_host, call(*moved_args, **moved_kwargs))

    return run


def load_program(
    packager: Packager, lowered: BuiltRecipe, place: str, stand_ins: Mapping[str, type[Delegate]] | None
) -> tuple[Plan, Executor]:
    """Load a program like an installed package; raise `VerificationError` for any exception of a run half.

    The error is an `UncomparableError` if this machine lacks the program's device.
    """
    try:
        plan = packager.source(lowered.files.plan.path)
        constants, outside = constants_path(packager, lowered), packager.outside
        device = "cpu" if stand_ins is not None else device_of(lowered.recipe.backends, place)
        return load_written(plan, constants, packager.folder, outside, device=device, stand_ins=stand_ins)
    except UnavailableError as error:
        raise UncomparableError(error, place) from error
    except BaseException as error:
        refuse_out_of_memory(error)
        found = f"{error.what}: {error.found}" if isinstance(error, LowerError) else describe_exception(error)
        refused = VerificationError(
            "the lowered program cannot be loaded",
            where=place,
            found=trim_lines(found),
            hint="leave out backends to find the backend at fault, and report the error there; the next build lowers"
            " the program again",
        )
        raise MethodError(refused, lowered.recipe, "") from error


def constants_path(packager: Packager, lowered: BuiltRecipe) -> Path | None:
    return packager.constants if lowered.emitted.plan.storages else None
