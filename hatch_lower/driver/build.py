"""The build in the parent process: look up each model, start a child for each unknown model, write a manifest for each
package.

torch is imported in the children only. The code that starts children is imported only if a model is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower import __version__
from hatch_lower.cache.directory import history_path
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.settings import Settings
from hatch_lower.driver.checkpoints import obtain_checkpoints
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.lookup import LookupResult, keeps_promises, lookup_of
from hatch_lower.driver.sources import find_assets, urls_of, with_assets
from hatch_lower.format.results import BuildResult, ModelResult, PayloadFile, package_manifest, payload_folder

if TYPE_CHECKING:
    from hatch_lower.pipeline.checkpoint import LocalSource


def build(context: BuildContext) -> BuildResult:
    """Lower every model of a project without a valid earlier result."""
    settings, store = context.settings, context.store
    store.mark()
    obtain_checkpoints(settings.root, settings.models, store, context.reporter)
    assets = find_assets(settings)
    add_measured = read_measured(settings)
    sources: dict[str, LocalSource] = {}
    while True:
        known = look_up(context)
        results = results_that_hold(settings, known)
        missing = [model for model in settings.models if model.name not in results]
        urls = [url for url in urls_of(missing) if url not in sources]
        if not urls:
            break
        from hatch_lower.driver.weight_sources import obtain_sources

        # then by the digests that are known now; other models may have a result under earlier digests
        sources |= obtain_sources(context, urls)
    # a copied or moved project has no history here yet, but `explain` needs one
    moved = store.writes and not history_path(store.directory, settings.root).exists()
    if missing or moved:
        # a build of known models starts no process
        from hatch_lower.driver.executor import export_models, last_build, record_results

        before = last_build(context)
        if missing:
            context.check_early(context)
        if missing and context.executor != "local":
            from hatch_lower.driver.spread.spread import make_elsewhere

            make_elsewhere(context, missing)
        answers = export_models(context, missing, known, sources=sources) if missing else []
        results |= record_results(context, known, answers, before)
    return build_result(settings, add_measured(results), assets, context.work)


def read_measured(settings: Settings) -> Callable[[Mapping[str, ModelResult]], Mapping[str, ModelResult]]:
    """Return a function that adds measured times to results, if the settings order recipes by measurements."""
    if settings.order == "written":
        return lambda results: results
    from hatch_lower.driver.measured import find_measured, with_measured  # few projects have measurements

    measured = find_measured(settings)
    return lambda results: {name: with_measured(result, measured[name]) for name, result in results.items()}


def results_that_hold(settings: Settings, known: Mapping[str, LookupResult]) -> dict[str, ModelResult]:
    return {
        name: lookup.result
        for name, lookup in known.items()
        if lookup.result is not None and keeps_promises(settings, lookup.result)
    }


def look_up(context: BuildContext) -> dict[str, LookupResult]:
    """Compare the recorded inputs of each model, and return the earlier results; empty if the cache is off."""
    settings, store = context.settings, context.store
    if store.mode == "off":
        return {}
    lookup = lookup_of(context)
    keys = [lookup.key_of(settings, model, context.view) for model in settings.models]
    results = {key.model: lookup.look_up(key.components()) for key in keys}
    lookup.save()
    return results


def build_result(
    settings: Settings, models: Mapping[str, ModelResult], assets: Mapping[str, Mapping[str, Path]], work: Path
) -> BuildResult:
    results = [with_assets(models[model.name], assets[model.name]) for model in settings.models]
    required: dict[str, set[str]] = {}
    for result in results:
        for name, recipe in result.entry["recipes"].items():
            required.setdefault(name, set()).update(recipe["requirements"])
    return BuildResult(
        payload=collect_payload(settings, results, work),
        rows=tuple(row for result in results for row in result.rows),
        requirements={name: tuple(sorted(texts)) for name, texts in required.items()},
        native=tuple(path for result in results for path in result.native),
        models=tuple(results),
    )


def collect_payload(settings: Settings, results: Sequence[ModelResult], work: Path) -> tuple[PayloadFile, ...]:
    packages: dict[str, list[ModelResult]] = {}
    for model, result in zip(settings.models, results, strict=True):
        packages.setdefault(model.package, []).append(result)
    payload = []
    for package, members in packages.items():
        prefix = payload_folder(package)
        payload.append(write_package_manifest(settings, members, f"{prefix}/manifest.json", work))
        payload += [replace(file, path=f"{prefix}/{file.path}") for result in members for file in result.files]
    return tuple(sorted(payload, key=lambda file: file.path))


def write_package_manifest(settings: Settings, results: Sequence[ModelResult], path: str, work: Path) -> PayloadFile:
    data = package_manifest(
        settings.name,
        settings.version,
        __version__,
        results[0].torch,
        {name: version for result in results for name, version in result.tools.items()},
        {result.model: result.entry for result in results},
    )
    return write_payload_file(path, data, work / "payload")


def write_payload_file(path: str, data: bytes, work: Path) -> PayloadFile:
    source = work / path
    source.parent.mkdir(parents=True)
    source.write_bytes(data)
    return PayloadFile(path, source, len(data), sha256_bytes(data))
