"""The build, as its parent process sees it: what is known of each model, a child for each other one, then one manifest
for each package.

torch is imported in the children only, and what starts them only if there are any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hatch_lower import __version__
from hatch_lower.build.assets import find_assets, with_assets
from hatch_lower.build.environment import child_environment
from hatch_lower.build.inputs.distributions import marks_of_project
from hatch_lower.build.inputs.machine import CPU_INFORMATION, cpu_capability
from hatch_lower.build.lookup import LookupResult, ResultLookup, roots_of
from hatch_lower.build.project_view import ProjectView
from hatch_lower.cache.directory import history_path
from hatch_lower.cache.store import Store, open_store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.settings import Settings
from hatch_lower.events import Event, Reporter
from hatch_lower.format.package import package_manifest
from hatch_lower.format.results import BuildResult, ModelResult, PayloadFile
from hatch_lower.frozen import Frozen

LOWER_MODEL = "hatch_lower.pipeline.lower_model:lower_model"


class Lookup(Frozen):
    """What is known before anything is run.

    Args:
        environment: of the child processes that would export.
        search_path: their `sys.path`, without folders of this build.
        models: what is known of each model; empty if the cache is off.
    """

    environment: Mapping[str, str]
    search_path: tuple[Path, ...]
    models: Mapping[str, LookupResult]


def build(
    settings: Settings,
    work: Path,
    reporter: Reporter,
    *,
    view: ProjectView,
    lower: str = LOWER_MODEL,
) -> BuildResult:
    """Lower every model of a project of which no earlier result holds.

    Args:
        settings: what to build.
        work: an empty folder for the files of this build; it must live until they are in the wheel.
        reporter: is told of the stages; what the models' code and the backends print are notes of the stage `output`.
        view: what the models' code sees of its project.
        lower: `module:function` that lowers one captured model in the child process.

    Raises:
        LowerError: if a model cannot be lowered; no child process is left.
    """

    def warn(line: str) -> None:
        reporter.report(Event("cache", "note", settings.name, detail=line))

    assets = find_assets(settings)
    store = open_cache(settings, warn)
    known = look_up(settings, work, view=view, store=store, lower=lower)
    found = {name: each.result for name, each in known.models.items() if each.result is not None}
    missing = [model for model in settings.models if model.name not in found]
    if not missing:
        if store.writes and not history_path(store.directory, settings.root).exists():
            from hatch_lower.build.executor import (
                explained,  # the project was copied or moved: `explain` is to know it here
            )

            explained(settings, store, known.models, [])
        return result_of(settings, found, assets, work)

    from hatch_lower.build.executor import explained, export_models  # a build of what is known starts no process

    answers = export_models(
        settings,
        missing,
        work,
        reporter,
        view=view,
        lower=lower,
        store=store,
        known=known.models,
        environment=known.environment,
        search_path=known.search_path,
    )
    found |= explained(settings, store, known.models, answers)
    return result_of(settings, found, assets, work)


def look_up(settings: Settings, work: Path, *, view: ProjectView, store: Store, lower: str = LOWER_MODEL) -> Lookup:
    """Return what is known of each model, by looking at what its export read; nothing is run.

    Args:
        settings: of the build.
        work: the folder of this build.
        view: what the models' code sees of its project.
        store: the cache.
        lower: `module:function` that lowers one captured model.
    """
    environment = child_environment(
        os.environ, settings.pass_env, sys.path, work / "temporary", cpu_capability(CPU_INFORMATION)
    )
    search_path = (*view.import_roots, *(Path(entry) for entry in sys.path if entry), settings.root)
    if store.mode == "off":
        return Lookup(environment, search_path, {})
    roots = roots_of(settings.root, search_path, environment, (work, store.directory))
    project = marks_of_project(settings.name, settings.version, view.metadata)
    unchanged = ResultLookup(store, roots, environment, project)
    keys = [unchanged.key_of(settings, model, view, lower) for model in settings.models]
    models = {key.model: unchanged.look_up(key.components()) for key in keys}
    unchanged.save()
    return Lookup(environment, search_path, models)


def open_cache(settings: Settings, warn: Callable[[str], None]) -> Store:
    """Return the cache, with the one that a team shares where there is one."""
    if not settings.cache.remote and "HATCH_LOWER_REMOTE_CACHE" not in os.environ:
        return open_store(os.environ, warn)
    from hatch_lower.cache.remote import open_remote

    return open_store(os.environ, warn, open_remote(os.environ, settings.cache, warn))


def result_of(
    settings: Settings, found: Mapping[str, ModelResult], assets: Mapping[str, Mapping[str, Path]], work: Path
) -> BuildResult:
    """Return what the results and the assets of all models come to."""
    results = [with_assets(found[model.name], assets[model.name]) for model in settings.models]
    recipes = [recipe for result in results for recipe in result.entry["recipes"].values()]
    return BuildResult(
        payload=collect_payload(settings, results, work),
        rows=tuple(row for result in results for row in result.rows),
        requirements=tuple(sorted({requirement for recipe in recipes for requirement in recipe["requirements"]})),
        native=tuple(path for result in results for path in result.native),
        models=tuple(results),
    )


def collect_payload(settings: Settings, results: Sequence[ModelResult], work: Path) -> tuple[PayloadFile, ...]:
    """Return all files under their paths in the wheel, each package's manifest among them."""
    packages: dict[str, list[ModelResult]] = {}
    for model, result in zip(settings.models, results, strict=True):
        packages.setdefault(model.package, []).append(result)
    payload = []
    for package, members in packages.items():
        prefix = f"{package.replace('.', '/')}/_lowered"
        payload.append(write_package_manifest(settings, members, f"{prefix}/manifest.json", work))
        payload += [
            PayloadFile(f"{prefix}/{file.path}", file.source, file.size, file.sha256)
            for result in members
            for file in result.files
        ]
    return tuple(sorted(payload, key=lambda file: file.path))


def write_package_manifest(settings: Settings, results: Sequence[ModelResult], path: str, work: Path) -> PayloadFile:
    """Write the manifest of the models that one package holds."""
    data = package_manifest(
        settings.name,
        settings.version,
        __version__,
        results[0].torch,
        {name: version for result in results for name, version in result.tools.items()},
        {result.model: result.entry for result in results},
    )
    source = work / "payload" / path
    source.parent.mkdir(parents=True)
    source.write_bytes(data)
    return PayloadFile(path, source, len(data), sha256_bytes(data))
