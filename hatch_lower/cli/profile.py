"""`hatch-lower profile`: the time of a call by source line, in each engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cli.arguments import (
    OUTPUT,
    choose_model,
    choose_recipe,
    json_option,
    model_option,
    target_of,
)
from hatch_lower.cli.bench import Seconds, check_folders, open_target, progress
from hatch_lower.cli.output import count, page, show_json, write_output_file
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.hatch.terminal import table_lines

if TYPE_CHECKING:
    from hatch_lower.cli.measure.profile.rows import Profile, ProfileRow, RecipeProfile
    from hatch_lower.driver.contents import WheelModels
    from hatch_lower.format.manifest import ModelEntry

HOUR = 60 * 60
SHORT = 0.001  # the share of a call below which operations are added up in a single line

Key = tuple[str, str, str]  # source, module, operation


@click.command()
@click.argument("target", metavar="NAME|PATH")
@click.argument("method", default="forward")
@model_option
@click.option("--recipe", "recipes", multiple=True, help="A recipe. Repeatable. Default: all recipes.")
@click.option("--inputs", type=OUTPUT, metavar="FILE", help="A sample file. Default: the packaged check inputs.")
@click.option("--seconds", type=Seconds(0.1, HOUR), default=5.0, help="Time for each recipe.", show_default=True)
@click.option(
    "--export",
    type=OUTPUT,
    metavar="FILE",
    help="Write the profile into a file: `x.trace.json` for Perfetto, `x.speedscope.json`, or other JSON.",
)
@json_option
def profile(
    target: str,
    method: str,
    model: str | None,
    recipes: tuple[str, ...],
    inputs: Path | None,
    seconds: float,
    export: Path | None,
    as_json: bool,
) -> None:
    """Show the time of a call by source line.

    NAME is an installed model or distribution; PATH is a wheel, a folder with lowered models, or a project, which is
    built. In each recipe METHOD (default: `forward`) is called with and without the timers of its engines. The project
    in this folder is built again for engines that need timers in their code (`aoti`).
    """
    from hatch_lower.cli.measure.profile.profile import ProfileTask, find_profiled_project, make_profile, needs_timers
    from hatch_lower.cli.measure.profile.rows import export_text
    from hatch_lower.driver.signals import ending_on_signals
    from hatch_lower.runtime.selection import physical_cores

    check_folders(export)
    place = target_of(target)
    with ending_on_signals(), progress() as tell, open_target(place, tell) as side:
        contents, name, entry = choose_model(list(side.contents), model)
        chosen = tuple(choose_recipe(name, entry, recipe) for recipe in recipes)
        has_use = any(needs_timers(entry, recipe) for recipe in chosen or entry.order)
        project = find_profiled_project(place, contents.manifest) if has_use else None
        task = ProfileTask(
            side=side,
            model=name,
            method=check_method_name(name, entry, method),
            recipes=chosen,
            inputs=inputs,
            threads=physical_cores(),
            seconds=seconds,
            project=project,
            environment=os.environ,
        )
        found, refused = make_profile(task, tell)
        if not found.notes:  # notes of an editable install name changed sources already
            root = None if project is None else project.settings.root
            found = replace(found, notes=tuple(changed_lines(place, contents, entry, found, root)))
    if export is not None:
        write_output_file(export, export_text(found, export), "report")
    if as_json:
        show_json(found.to_json())
    else:
        page(profile_lines(found, refused))


def changed_lines(
    place: str | Path, contents: WheelModels, entry: ModelEntry, found: Profile, project: Path | None
) -> Iterator[str]:
    """Yield a line for each source file that has changed since the build."""
    from hatch_lower.cli.page.data import looks_for, texts_of

    digests: dict[str, str] = {}
    for recipe in found.recipes:
        digests |= contents.debug(entry.recipes[recipe]).files
    rows = [row for recipe in found.recipes.values() for row in recipe.rows]
    named: dict[str, list[int]] = {path: [] for row in rows if (path := row.source.rpartition(":")[0]) in digests}
    for path, text in texts_of(named, digests, list(looks_for(place, [contents], project))).items():
        if text.state == "changed":
            yield f"{path} in {text.place} has changed since the build: line numbers are those of the build"


def check_method_name(model: str, entry: ModelEntry, method: str) -> str:
    known = {name for recipe in entry.recipes.values() for name in recipe.methods}
    if method not in known:
        raise ProgramError(f"the model `{model}` has no such method", found=nearest(method, known))
    return method


def profile_lines(profile: Profile, refused: Mapping[str, str]) -> Iterator[str]:
    calls, threads = count(profile.calls, "call"), count(profile.threads, "thread")
    yield f"{profile.model}.{profile.method}, {calls} of each recipe, {threads}"
    yield from profile.notes
    yield ""
    recipes = profile.recipes.items()
    rows = [
        (name, call_time_text(each.seconds), share(each.attributed), overhead_text(each.overhead))
        for name, each in recipes
    ]
    yield from table_lines([("recipe", "call", "attributed", "overhead"), *rows])
    yield from (f"{name}: {note}" for name, each in recipes for note in each.notes)
    yield from (f"{name} cannot run here: {reason}" for name, reason in refused.items())
    yield ""
    yield from table_lines([("source", "module", "operation", *profile.recipes), *profile_table_rows(profile)])
    yield ""
    yield from table_lines([("sum of a source line", *profile.recipes), *sums_of_lines(profile)])


def sums_of_lines(profile: Profile) -> Iterator[tuple[str, ...]]:
    """Yield the time of all operations of each source line, the longest first."""
    times: dict[str, dict[str, float]] = {}
    for name, recipe in profile.recipes.items():
        for row in recipe.rows:
            if row.source:
                own = times.setdefault(row.source, {})
                own[name] = own.get(name, 0.0) + row.seconds
    for source in sorted(times, key=lambda source: -max(times[source].values())):
        yield source, *cells(profile.recipes, times[source])


def overhead_text(part: float) -> str:
    # calls with and without timers take turns: a difference below the variation of calls is chance
    return share(part) if part > 0 else "within noise"


def profile_table_rows(profile: Profile) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table: the longest time in any recipe first, unattributed time last."""
    times: dict[Key, dict[str, float]] = {}
    for name, recipe in profile.recipes.items():
        for row in recipe.rows:
            own = times.setdefault(row_key(row), {})
            own[name] = own.get(name, 0.0) + row.seconds
    others: list[Mapping[str, float]] = []
    for key in sorted(times, key=lambda key: (not key[0], -max(times[key].values()))):
        if key[0] and all(seconds < SHORT * profile.recipes[name].seconds for name, seconds in times[key].items()):
            others.append(times[key])
        else:
            yield *key, *cells(profile.recipes, times[key])
    if others:
        added = {name: sum(each.get(name, 0.0) for each in others) for name in profile.recipes}
        yield "", "", count(len(others), "operation") + f" of less than {share(SHORT)}", *cells(profile.recipes, added)
    rest = {name: recipe.unattributed for name, recipe in profile.recipes.items()}
    yield "", "", "not attributed", *cells(profile.recipes, rest)


def cells(recipes: Mapping[str, RecipeProfile], seconds: Mapping[str, float]) -> Sequence[str]:
    return [
        f"{call_time_text(seconds[name])} {share(seconds[name] / recipe.seconds):>7}" if name in seconds else ""
        for name, recipe in recipes.items()
    ]


def row_key(row: ProfileRow) -> Key:
    return (row.source, row.module, row.op) if row.source else ("", "", f"{row.op} ({row.engine})")


def call_time_text(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(seconds) * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def share(part: float) -> str:
    return f"{part:.1%}"
