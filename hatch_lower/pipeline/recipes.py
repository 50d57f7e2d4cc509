"""A recipe before and after lowering: its backends' partitioners, and the requirements of the program."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from packaging.requirements import Requirement

from hatch_lower.config.requirements import names_torch, requirements_to_add
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.format.debug_map import NO_DEBUG, DebugMap
from hatch_lower.format.manifest import Device, RecipeEntry
from hatch_lower.format.plan import Plan
from hatch_lower.pipeline.exceptions import trim_lines
from hatch_lower.pipeline.sandbox import backend_guard
from hatch_lower.runtime.installed import normal_name
from hatch_lower.runtime.selection import DelegateKinds, build_here, requirement_reason
from hatch_lower.runtime.torch_reasons import NUMPY, PLAN_READER, TORCH, TorchReason, array_requirements, torch_reasons

if TYPE_CHECKING:
    from hatch_lower.pipeline.model_build import BuiltRecipe

SHOWN = 20  # number of reasons in an error
DEVICES: tuple[Device, ...] = get_args(Device)


def partitioner_of(choice: BackendChoice, recipe: Recipe) -> Partitioner:
    where = f"recipe `{recipe.name}`, backend `{choice.name}`"
    try:
        with backend_guard(choice.name, where):
            backend = find_backend(choice.name)
            refuse_other_versions(choice.name, backend.requirements(choice.options))
            partitioner: object = backend.partitioner(choice.options)
    except BackendError as error:
        raise BackendError(error.what, where=error.where or where, found=error.found, hint=error.hint) from error
    if not isinstance(partitioner, Partitioner):
        raise BackendError(
            f"the backend `{choice.name}` returned a value that is not a `Partitioner`",
            where=where,
            found=trim_lines(repr(partitioner)),
            hint="return a `Partitioner` from the classmethod `partitioner(options)`",
        )
    return partitioner


def device_of(choices: Iterable[BackendChoice], where: str) -> Device:
    """Return the type of the device on which a recipe's program computes, which all its backends must have."""
    found: dict[Device, str] = {}
    for choice in choices:
        with backend_guard(choice.name, where):
            device: Any = find_backend(choice.name).device(choice.options)
        if device not in DEVICES:
            raise BackendError(
                f"the backend `{choice.name}` computes on an unknown device",
                where=where,
                found=trim_lines(repr(device)),
                hint=f"return one of {', '.join(map(repr, DEVICES))} from the classmethod `device(options)`",
            )
        found.setdefault(device, choice.name)
    if len(found) > 1:
        raise BackendError(
            "the backends of a recipe compute on different devices",
            where=where,
            found=", ".join(f"`{backend}` on {device}" for device, backend in found.items()),
            hint="give each device its own recipe; operations outside of partitions run on the recipe's device",
        )
    return next(iter(found), "cpu")


def refuse_other_versions(backend: str, requirements: Iterable[str]) -> None:
    """Refuse an installed version of a library with which the backend's programs could not run."""
    for text in requirements:
        name = Requirement(text).name
        if build_here(name) is None:
            continue  # the backend reports a missing library, or finds the library under another name
        if reason := requirement_reason(text, f"backend `{backend}`"):
            raise BackendError(
                f"the backend `{backend}` needs another version of `{name}`",
                found=reason,
                hint="name the needed version in `[build-system] requires`",
            )


def refuse_unmet(settings: Settings, recipes: Iterable[Recipe]) -> None:
    """Refuse unmet requirements before the build, as far as recipes determine the requirements of their programs."""
    if settings.dependencies is None:
        return
    required = {}
    for recipe in recipes:
        names = [choice.name for choice in recipe.backends]
        known = [PLAN_READER]
        on_numpy = DelegateKinds().on_numpy(names)
        if recipe.imports or (names and not on_numpy):
            known.append(TORCH)
        elif on_numpy.issuperset(names) and names:
            known.append(NUMPY)  # only lowering shows whether the program needs torch, which rarely comes without NumPy
        for choice in recipe.backends:
            with backend_guard(choice.name, f"recipe `{recipe.name}`"):
                known += find_backend(choice.name).requirements(choice.options)
        required[recipe.name] = with_one_torch(known)
    requirements_to_add(settings.runtime_requirements, required, settings.dependencies, settings.extras)


def recipe_entry(lowered: BuiltRecipe, project: str) -> RecipeEntry:
    plan = lowered.emitted.plan
    return RecipeEntry(
        plan=lowered.files.plan,
        debug=lowered.files.debug,
        delegates=lowered.files.delegates,
        backends=plan.backends,
        requirements=recipe_requirements(lowered, project),
        target=plan.target,
        methods=lowered.methods,
        imports=lowered.recipe.imports,
        device=device_of(lowered.recipe.backends, f"recipe `{lowered.recipe.name}`"),
        precision=lowered.recipe.precision,
    )


def recipe_requirements(lowered: BuiltRecipe, project: str) -> tuple[str, ...]:
    plan = lowered.emitted.plan
    reasons = torch_reasons(plan, DelegateKinds().on_numpy(plan.backends), lowered.recipe.imports)
    arrays = array_requirements(plan, needs_torch=bool(reasons))
    return with_one_torch([PLAN_READER, *lowered.emitted.requirements(), *owners_of(lowered.recipe, project), *arrays])


def with_one_torch(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return sorted requirements; without `torch>=2.11` if a backend requires certain versions of torch."""
    found = set(requirements)
    named = any(map(names_torch, found - {TORCH}))
    return tuple(sorted(found - {TORCH} if named else found))


def refuse_torch(place: str, plan: Plan, debug: DebugMap, imports: Sequence[str], requirements: Iterable[str]) -> None:
    """Refuse a program that needs torch, for a recipe with the setting `torch-free`."""
    # `requirements` include at least the backends'
    reasons = torch_reasons(plan, DelegateKinds().on_numpy(plan.backends), imports)
    lines = list(dict.fromkeys(reason_line(reason, debug) for reason in reasons))
    lines = lines or [f"a backend requires `{text}`" for text in requirements if names_torch(text)]
    if lines:
        more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        raise BackendError(
            "the recipe is `torch-free`, but its program needs torch",
            where=place,
            found="\n".join([*lines[:SHOWN], *more]),
            hint="write the model without these operations, or in a form that a backend takes; or set `torch-free` of"
            " the recipe to false",
        )


def reason_line(reason: TorchReason, debug: DebugMap) -> str:
    """Format a reason for torch: the operation, its source line, and the reason why no backend took the operation."""
    method = debug.methods.get(reason.method, NO_DEBUG)
    handles = method.instructions.get(reason.path, ()) if reason.path else ()
    sources = dict.fromkeys(method.handles[handle].source for handle in handles if method.handles[handle].source)
    left = dict.fromkeys(node.reason for node in method.undelegated if node.handle in handles)
    words = [reason.what]
    words += [f"in method `{reason.method}`"] if reason.method else []
    words += [f"at {', '.join(sources)}"] if sources else []
    return " ".join(words) + (f": {'; '.join(left)}" if left else "")


def owners_of(recipe: Recipe, project: str) -> set[str]:
    if not recipe.imports:
        return set()
    owners = importlib.metadata.packages_distributions()
    names = {normal_name(owner) for module in recipe.imports for owner in owners.get(module.partition(".")[0], ())}
    return names - {normal_name(project)}


def wheel_requirements(settings: Settings, lowered: BuiltRecipe) -> tuple[str, ...] | None:
    """Return the wheel's requirements for a recipe; `None` if the build does not manage requirements."""
    if settings.dependencies is None or settings.runtime_requirements == "off":
        return None
    extra = settings.extras.get(lowered.recipe.name)
    own = extra.dependencies if extra is not None else ()
    return (*settings.dependencies, *own, *recipe_entry(lowered, settings.name).requirements)
