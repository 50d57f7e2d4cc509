"""A second build, through the cache, of recipes whose engines need timers in their code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hatch_lower.cli.measure.command import Tell
from hatch_lower.cli.measure.project import editable_project, is_project
from hatch_lower.cli.measure.side import Side, side_of
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver.build import result_of
from hatch_lower.driver.contents import find_contents
from hatch_lower.driver.context import build_context, open_cache
from hatch_lower.driver.executor import export_models, record_results
from hatch_lower.driver.sources import urls_of
from hatch_lower.driver.unpack import places_in
from hatch_lower.driver.weight_sources import obtain_sources
from hatch_lower.errors import ConfigError, ProgramError
from hatch_lower.events import NullReporter
from hatch_lower.format.debug_map import MethodDebug
from hatch_lower.format.manifest import Manifest, ModelEntry
from hatch_lower.hatch.outside import find_project, open_project
from hatch_lower.hatch.project import Project

TIMERS: Mapping[str, Mapping[str, object]] = {"aoti": {"timers": True}}  # backend to the option that adds timers


def needs_timers(entry: ModelEntry, recipe: str) -> bool:
    return not TIMERS.keys().isdisjoint(entry.recipes[recipe].backends)


def find_sources(target: str | Path, manifest: Manifest) -> Project | None:
    """Return the project of models: the target, an editable install's, or this folder's if the names are equal."""
    if is_project(target):
        return open_project(Path(target))
    folder = editable_project(manifest.distribution) if isinstance(target, str) else None
    project = find_project(folder or Path())
    return project if project is not None and project.settings.name == manifest.distribution else None


@contextmanager
def built_with_timers(project: Project, model: str, recipes: Sequence[str], tell: Tell) -> Iterator[Side]:
    """Lower some recipes of a model again with timers, and open the result; the history for `explain` stays."""
    settings = with_timers(project.settings, model, recipes)
    if not settings.models or {recipe.name for recipe in settings.recipes} != set(recipes):
        raise ConfigError(
            "the project does not lower this model",
            where=str(settings.root),
            found=f"no model `{model}` with the recipes {', '.join(f'`{name}`' for name in recipes)}",
            hint="run this in the project that the wheel was built from",
        )
    with work_folder() as work:
        store = open_cache(settings, lambda _: None)
        (work / "build").mkdir()
        context = build_context(settings, project.view, work / "build", store, NullReporter())
        tell(f"building {model} with timers")
        urls = urls_of(settings.models)
        sources = obtain_sources(context, urls) if urls else {}
        answers = export_models(context, settings.models, {}, sources=sources)
        unrecorded = replace(context, store=replace(store, mode="off"))
        results = record_results(unrecorded, {}, answers)
        for file in result_of(settings, results, {model: {}}, context.work).payload:
            (work / "site" / file.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.source, work / "site" / file.path)
            os.chmod(work / "site" / file.path, 0o600)  # native code that others may write is not loaded
        contents = find_contents(work / "site")
        yield side_of("build with timers", contents, places_in(contents, installed=False))


def with_timers(settings: Settings, model: str, recipes: Sequence[str]) -> Settings:
    kept = tuple(timed(recipe) for recipe in settings.recipes if recipe.name in recipes)
    models = [replace(each, recipes=tuple(recipes), assets=()) for each in settings.models if each.name == model]
    return replace(settings, models=tuple(models), recipes=kept)


def timed(recipe: Recipe) -> Recipe:
    backends = [
        BackendChoice(choice.name, {**choice.options, **TIMERS.get(choice.name, {})}) for choice in recipe.backends
    ]
    return replace(recipe, backends=tuple(backends), verify=False)


def refuse_other(built: MethodDebug, packaged: MethodDebug, root: Path) -> None:
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
