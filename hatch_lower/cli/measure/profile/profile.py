"""The profile of a method: calls of each recipe in the measuring process, attributed to source lines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hatch_lower.cli.measure.command import Tell
from hatch_lower.cli.measure.host import Host, RefusedError
from hatch_lower.cli.measure.profile.attribute import attribute
from hatch_lower.cli.measure.profile.instrumented import built_with_timers, needs_timers, refuse_other
from hatch_lower.cli.measure.profile.rows import Profile, RecipeProfile
from hatch_lower.cli.measure.side import Side
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.errors import ProgramError
from hatch_lower.format.debug_map import NO_DEBUG, MethodDebug
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.plan import Plan
from hatch_lower.frozen import Frozen
from hatch_lower.hatch.project import Project
from hatch_lower.runtime.editable import changed_sources, stale_text

LOAD_LIMIT = 600.0  # seconds for two loads and the minimum number of calls


class ProfileTask(Frozen):
    side: Side
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
    refused = {} if task.recipes else refusals(task, entry)
    recipes = task.recipes or tuple(recipe for recipe in entry.order if recipe not in refused)
    if not recipes:
        raise refused_error(task, entry.order[0], refused[entry.order[0]])
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


def refusals(task: ProfileTask, entry: ModelEntry) -> dict[str, str]:
    from hatch_lower.cli.measure.opened import refusal  # imports torch

    path = task.side.folders[task.model].path
    return {recipe: reason for recipe in entry.order if (reason := refusal(path, task.model, recipe)) is not None}


def profile_of(task: ProfileTask, host: Host, recipe: str, timed: Side) -> RecipeProfile:
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
    except RefusedError as error:
        raise refused_error(task, recipe, str(error)) from error
    plan, debug = program_of(timed, task, recipe)
    if timed is not task.side and task.project is not None:
        _, packaged = program_of(task.side, task, recipe)
        refuse_other(debug, packaged, task.project.settings.root)
    notes = ["no packaged inputs: the method was called with random numbers"] if found["made up"] else []
    if debug is NO_DEBUG:
        notes.append("the debug map lacks this method: no time is attributed to source lines")
    profile = attribute(found, plan, debug)
    return replace(profile, notes=(*notes, *profile.notes))


def program_of(side: Side, task: ProfileTask, recipe: str) -> tuple[Plan, MethodDebug]:
    contents = side.contents_of(task.model)
    entry = contents.manifest.models[task.model].recipes[recipe]
    return contents.plan(entry), contents.debug(entry).methods.get(task.method, NO_DEBUG)


def refused_error(task: ProfileTask, recipe: str, reason: str) -> ProgramError:
    return ProgramError(
        f"recipe `{recipe}` of model `{task.model}` cannot run here",
        found=reason,
        hint="install the named packages, or select another recipe with `--recipe`",
    )
