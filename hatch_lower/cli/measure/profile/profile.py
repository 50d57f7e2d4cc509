"""The profile of a method: a second build of recipes whose engines need timers in their code, calls in the measuring
process, and the attribution of times to source lines.

An engine often computes several operations at once, and knows the total time only. The time is divided equally among
the heaviest kind of operations: first convolutions, products and attention, then elementwise operations, then moves
and views. Other operations have a row with 0 seconds. An operation in several instructions (a product, and the sum
with its bias) is heavy only in its home: the longest of the instructions without other operations of the same weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hatch_lower.cli.measure.command import Host, RecipeRefusedError, Tell
from hatch_lower.cli.measure.lowered_again import lowered_again
from hatch_lower.cli.measure.profile.rows import (
    PLAN,
    REST,
    WHOLE,
    Profile,
    ProfileRow,
    ProfileSpan,
    RecipeProfile,
    merged,
)
from hatch_lower.cli.measure.project import editable_project, is_project
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.cli.measure.timed import fastest_mean
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver.context import open_cache
from hatch_lower.errors import ConfigError, ProgramError
from hatch_lower.format.debug_map import NO_DEBUG, DelegateDebug, MethodDebug, Origin
from hatch_lower.format.manifest import Manifest, ModelEntry
from hatch_lower.format.plan import Plan
from hatch_lower.frozen import Frozen
from hatch_lower.hatch.outside import find_project, open_project
from hatch_lower.hatch.project import Project
from hatch_lower.runtime.load import changed_sources, stale_text

TIMERS: Mapping[str, Mapping[str, object]] = {"aoti": {"timers": True}}  # backend to the option that adds timers


def needs_timers(entry: ModelEntry, recipe: str) -> bool:
    return not TIMERS.keys().isdisjoint(entry.recipes[recipe].backends)


def find_profiled_project(target: str | Path, manifest: Manifest) -> Project | None:
    """Return the project of models: the target, an editable install's, or this folder's if the names are equal."""
    if is_project(target):
        return open_project(Path(target))
    folder = editable_project(manifest.distribution) if isinstance(target, str) else None
    project = find_project(folder or Path())
    return project if project is not None and project.settings.name == manifest.distribution else None


@contextmanager
def built_with_timers(project: Project, model: str, recipes: Sequence[str], tell: Tell) -> Iterator[BenchSide]:
    """Lower some recipes of a model again with timers, and open the result; the history for `explain` stays."""
    settings = settings_with_timers(project.settings, model, recipes)
    if not settings.models or {recipe.name for recipe in settings.recipes} != set(recipes):
        raise ConfigError(
            "the project does not lower this model",
            where=str(settings.root),
            found=f"no model `{model}` with the recipes {', '.join(f'`{name}`' for name in recipes)}",
            hint="run this in the project that the wheel was built from",
        )
    tell(f"building {model} with timers")
    store = open_cache(settings, lambda _: None)
    with lowered_again(settings, project.view, store, "build with timers") as side:
        yield side


def settings_with_timers(settings: Settings, model: str, recipes: Sequence[str]) -> Settings:
    kept = tuple(timed(recipe) for recipe in settings.recipes if recipe.name in recipes)
    models = [replace(each, recipes=tuple(recipes), assets=()) for each in settings.models if each.name == model]
    return replace(settings, models=tuple(models), recipes=kept)


def timed(recipe: Recipe) -> Recipe:
    backends = [
        BackendChoice(choice.name, {**choice.options, **TIMERS.get(choice.name, {})}) for choice in recipe.backends
    ]
    return replace(recipe, backends=tuple(backends), verify=False)


def refuse_changed_project(built: MethodDebug, packaged: MethodDebug, root: Path) -> None:
    """Refuse a build whose program differs from the packaged program in more than line numbers."""
    if computed(built) != computed(packaged):
        raise ProgramError(
            "the project has changed since its models were lowered",
            where=str(root),
            found="other operations than in the packaged program",
            hint="build the wheel again, or leave the engines without timers out: `--recipe`",
        )


def computed(debug: MethodDebug) -> object:
    handles = {handle: (origin.op, origin.module) for handle, origin in debug.handles.items()}
    return handles, debug.instructions, debug.delegates


HEAVIEST = 2
# by the operator's name without namespace and overload
HEAVY = frozenset(
    {
        *("_int_mm", "addbmm", "addmm", "baddbmm", "bilinear", "bmm", "convolution", "einsum", "gru", "linear", "lstm"),
        *("matmul", "mm", "mv", "addmv", "dot", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
        *("conv_transpose3d", "scaled_dot_product_attention", "_scaled_mm"),
    }
)
MOVING = frozenset(
    {
        *("_to_copy", "_unsafe_view", "alias", "alias_copy", "arange", "as_strided", "broadcast_to", "cat", "chunk"),
        *("clone", "constant_pad_nd", "contiguous", "detach", "detach_", "dropout", "expand", "expand_copy", "flatten"),
        *("full", "full_like", "getitem", "lift_fresh_copy", "narrow", "ones", "permute", "permute_copy", "repeat"),
        *("reshape", "scalar_tensor", "select", "select_copy", "slice", "slice_copy", "split", "split_copy"),
        *("split_with_sizes", "split_with_sizes_copy", "squeeze", "squeeze_copy", "stack", "sym_size", "t", "t_copy"),
        *("transpose", "transpose_copy", "unbind", "unflatten", "unsqueeze", "unsqueeze_copy", "view", "view_copy"),
        "zeros",
    }
)


class TimedInstruction(NamedTuple):
    """An instruction of the plan or of a delegate, with the seconds of a call."""

    name: str
    handles: tuple[int, ...]
    seconds: float
    times: int  # number of runs


def attribute(found: Mapping[str, Any], plan: Plan, debug: MethodDebug) -> RecipeProfile:
    """Return the profile of a recipe; `found` is the answer of the measuring process."""
    plain, timed = found["times"]["plain"], found["times"]["timed"]
    divided = Attribution(debug)
    for step in found["steps"]:
        path, per_call = step["path"], 1e9 * len(timed)
        part = TimedInstruction(
            step["op"], debug.instructions.get(path, ()), step["nanoseconds"] / per_call, step["count"]
        )
        if "delegate" not in step:
            divided.add_instruction(part)
            continue
        entry = debug.delegates.get(path) or DelegateDebug(plan.delegates[step["delegate"]].backend)
        inside = [
            TimedInstruction(", ".join(ids), handles_of(entry, ids), nanoseconds / per_call, count)
            for ids, nanoseconds, count in step["parts"]
        ]
        divided.add_delegate(part._replace(name=f"{entry.backend} {path}"), entry.backend, inside)
        if entry.map is None:
            divided.notes[f"the debug map has no operations for instructions inside `{entry.backend}`"] = None
        elif str(step["delegate"]) in found["untimed"]:
            reason = found["untimed"][str(step["delegate"])]
            divided.notes[f"`{entry.backend}` is not measured inside: {reason}"] = None
    return RecipeProfile(
        len(timed),
        sum(timed) / len(timed) / 1e9,
        fastest_mean(timed) / fastest_mean(plain) - 1,
        divided.rows(),
        tuple(divided.spans),
        tuple(divided.notes),
    )


def handles_of(delegate: DelegateDebug, ids: Collection[str]) -> tuple[int, ...]:
    known = delegate.map or {}
    return tuple(dict.fromkeys(handle for each in ids for handle in known.get(each, ())))


class Attribution:
    """Divides instructions among the operations that they compute."""

    def __init__(self, debug: MethodDebug) -> None:
        self._debug = debug
        self._operations: dict[tuple[int, str], ProfileRow] = {}  # by handle and engine
        self._others: list[ProfileRow] = []  # of which no operation is known
        self.spans: list[ProfileSpan] = []
        self.notes: dict[str, None] = {}

    def add_instruction(self, part: TimedInstruction) -> None:
        self.spans.append(self._span(part, PLAN))
        self._divide(part, PLAN, {})

    def add_delegate(self, whole: TimedInstruction, engine: str, parts: list[TimedInstruction]) -> None:
        spans = [self._span(part, engine) for part in parts]
        self.spans.append(self._span(whole, engine, tuple(spans)))
        if not parts:
            # all work of a delegate with a single source line belongs to the line
            sources = {(origin.source, origin.module) for origin in self._origins(whole.handles)}
            source, module = sources.pop() if len(sources) == 1 else ("", "")
            self._others.append(ProfileRow(source, module, WHOLE, engine, whole.seconds, whole.times))
            return
        homes = self._homes(parts)
        for part in parts:
            self._divide(part, engine, homes)
        rest = whole.seconds - sum(part.seconds for part in parts)
        if rest > 0:
            self._others.append(ProfileRow("", "", REST, engine, rest, whole.times))

    def rows(self) -> tuple[ProfileRow, ...]:
        return merged([*self._operations.values(), *self._others])

    def _divide(self, part: TimedInstruction, engine: str, homes: Mapping[int, TimedInstruction]) -> None:
        known = [handle for handle in part.handles if handle in self._debug.handles]
        own = [handle for handle in known if homes.get(handle, part) is part]
        if not any(map(self._weight, own)):
            own = known
        sharing = self._heaviest(own)
        for handle in known:
            origin = self._debug.handles[handle]
            seconds = part.seconds / len(sharing) if handle in sharing else 0.0
            row = ProfileRow(origin.source, origin.module, origin.op, engine, seconds, part.times, len(known) > 1)
            before = self._operations.get((handle, engine))
            if before is not None:  # several instructions compute the operation in turn
                row = replace(
                    row,
                    seconds=before.seconds + seconds,
                    calls=max(before.calls, row.calls),
                    shared=before.shared or row.shared,
                )
            self._operations[handle, engine] = row
        if not known:
            self._others.append(ProfileRow("", "", part.name, engine, part.seconds, part.times))

    def _homes(self, parts: Sequence[TimedInstruction]) -> dict[int, TimedInstruction]:
        homes: dict[int, TimedInstruction] = {}
        for part in sorted(parts, key=lambda part: -part.seconds):
            heaviest = self._heaviest([handle for handle in part.handles if handle in self._debug.handles])
            if len(heaviest) == 1 and self._weight(heaviest[0]) == HEAVIEST:
                homes.setdefault(heaviest[0], part)
        return homes

    def _heaviest(self, handles: Sequence[int]) -> list[int]:
        most = max(map(self._weight, handles), default=0)
        return [handle for handle in handles if self._weight(handle) == most]

    def _weight(self, handle: int) -> int:
        name = self._debug.handles[handle].op.removeprefix("aten.").partition(".")[0]
        return HEAVIEST if name in HEAVY else 0 if name in MOVING else 1

    def _origins(self, handles: Collection[int]) -> tuple[Origin, ...]:
        return tuple(self._debug.handles[handle] for handle in handles if handle in self._debug.handles)

    def _span(self, part: TimedInstruction, engine: str, parts: tuple[ProfileSpan, ...] = ()) -> ProfileSpan:
        return ProfileSpan(part.name, engine, part.seconds, self._origins(part.handles), parts)


LOAD_LIMIT = 600.0  # seconds for two loads and the minimum number of calls


class ProfileTask(Frozen):
    side: BenchSide
    model: str
    method: str
    recipes: tuple[str, ...]  # empty: all recipes that can run here
    inputs: Path | None  # a sample file
    threads: int
    seconds: float  # seconds of calls for each
    project: Project | None  # the project for builds with timers
    environment: Mapping[str, str]


def make_profile(task: ProfileTask, tell: Tell) -> tuple[Profile, Mapping[str, str]]:
    """Return the profile, and the reasons why unnamed recipes are missing."""
    entry = task.side.folders[task.model].manifest.models[task.model]
    refused = {} if task.recipes else recipe_refusals(task, entry)
    recipes = task.recipes or tuple(recipe for recipe in entry.order if recipe not in refused)
    if not recipes:
        raise refused_recipe_error(task, entry.order[0], refused[entry.order[0]])
    with ExitStack() as stack:
        sides = dict.fromkeys(recipes, task.side)
        again = [recipe for recipe in recipes if needs_timers(entry, recipe)]
        if again and task.project is not None:
            built = stack.enter_context(built_with_timers(task.project, task.model, again, tell))
            sides |= dict.fromkeys(again, built)
        # the process is killed at the end, and cannot remove the engines' files
        written = stack.enter_context(work_folder())
        host = stack.enter_context(Host(task.threads, {**task.environment, "TMPDIR": str(written)}))
        profiles = {}
        for recipe, side in sides.items():
            tell(f"calling {task.model}.{task.method}, recipe {recipe}")
            profiles[recipe] = profile_of(task, host, recipe, side)
    changed = changed_sources(task.side.folders[task.model], task.model)
    notes = (stale_text(task.model, changed),) if changed else ()
    return Profile(task.model, task.method, task.threads, profiles, notes), refused


def recipe_refusals(task: ProfileTask, entry: ModelEntry) -> dict[str, str]:
    from hatch_lower.cli.measure.opened import recipe_refusal  # imports torch

    path = task.side.folders[task.model].path
    return {
        recipe: reason for recipe in entry.order if (reason := recipe_refusal(path, task.model, recipe)) is not None
    }


def profile_of(task: ProfileTask, host: Host, recipe: str, timed: BenchSide) -> RecipeProfile:
    plain = str(task.side.folders[task.model].path)
    request = {
        "kind": "profile",
        "model": task.model,
        "recipe": recipe,
        "method": task.method,
        "threads": task.threads,
        "imports": [],
        "inputs": [plain],
        "samples": None if task.inputs is None else str(task.inputs.absolute()),
        "sides": {"plain": plain, "timed": str(timed.folders[task.model].path)},
        "seconds": task.seconds,
    }
    try:
        found = host.ask(request, f"recipe `{recipe}`", task.seconds + LOAD_LIMIT)
    except RecipeRefusedError as error:
        raise refused_recipe_error(task, recipe, str(error)) from error
    plan, debug = packaged_method(timed, task, recipe)
    if timed is not task.side and task.project is not None:
        _, packaged = packaged_method(task.side, task, recipe)
        refuse_changed_project(debug, packaged, task.project.settings.root)
    notes = ["no packaged inputs: the method was called with random numbers"] if found["made up"] else []
    if debug is NO_DEBUG:
        notes.append("the debug map lacks this method: no time is attributed to source lines")
    profile = attribute(found, plan, debug)
    return replace(profile, notes=(*notes, *profile.notes))


def packaged_method(side: BenchSide, task: ProfileTask, recipe: str) -> tuple[Plan, MethodDebug]:
    contents = side.contents_of(task.model)
    entry = contents.manifest.models[task.model].recipes[recipe]
    return contents.plan(entry), contents.debug(entry).methods.get(task.method, NO_DEBUG)


def refused_recipe_error(task: ProfileTask, recipe: str, reason: str) -> ProgramError:
    return ProgramError(
        f"recipe `{recipe}` of model `{task.model}` cannot run here",
        found=reason,
        hint="install the named packages, or select another recipe with `--recipe`",
    )
