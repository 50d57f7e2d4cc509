"""Units of this machine: a child process for each model lowers, verifies and keeps the recipes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hatch_lower.config.settings import Settings
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.executor import UnitExport, export_models
from hatch_lower.driver.protocol import Answer
from hatch_lower.driver.sources import urls_of
from hatch_lower.driver.units import Unit, find_units, unit_name
from hatch_lower.driver.weight_sources import obtain_sources
from hatch_lower.errors import CacheError
from hatch_lower.format.results import MethodRow
from hatch_lower.pipeline.checkpoint import LocalSource


def make_missing(context: BuildContext, names: Collection[str], *, shared: bool) -> tuple[MethodRow, ...]:
    """Make the named units that are not cached; return a row for each lowered method."""
    units = missing_units(context, names, shared=shared)
    sources: dict[str, LocalSource] = {}
    # the keys have the digests of the weights, which are certain after the download only
    while urls := [url for url in urls_of(narrowed(context.settings, units).models) if url not in sources]:
        sources |= obtain_sources(context, urls)
        units = missing_units(context, names, shared=shared)
    if not units:
        return ()
    answers = make_units(context, units, sources)
    kept = {unit_name(answer.report.model, recipe): key for answer in answers for recipe, key in answer.recipes.items()}
    refuse_lost(context, [unit.name for unit in units], kept, shared=shared)
    return tuple(row for answer in answers for row in answer.report.rows)


def missing_units(context: BuildContext, names: Collection[str], *, shared: bool) -> list[Unit]:
    return [unit for unit in find_units(context, shared=shared) if unit.name in names and not unit.cached]


def make_units(
    context: BuildContext,
    units: Sequence[Unit],
    sources: Mapping[str, LocalSource] = {},
    outbox: Path | None = None,
    poll: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Export each model of some units once, and make the units; each answer has the keys of the kept records."""
    keys: dict[str, dict[str, Mapping[str, object]]] = {}
    for unit in units:
        keys.setdefault(unit.model, {})[unit.recipe] = unit.components
    settings = narrowed(context.settings, units)
    export = UnitExport(keys, outbox, poll)
    return export_models(replace(context, settings=settings), settings.models, {}, "recipe", sources, units=export)


def narrowed(settings: Settings, units: Sequence[Unit]) -> Settings:
    wanted = {unit.name for unit in units}
    models = [
        replace(model, recipes=tuple(recipe for recipe in model.recipes if unit_name(model.name, recipe) in wanted))
        for model in settings.models
    ]
    return replace(settings, models=tuple(model for model in models if model.recipes))


def refuse_lost(context: BuildContext, names: Sequence[str], kept: Mapping[str, str], *, shared: bool) -> None:
    store = context.store
    is_there = store.is_shared if shared else store.is_stored
    lost = [name for name in names if name not in kept or not is_there(kept[name])]
    if not lost:
        return
    what, found = "the made units are not in the cache", f"no record in {store.directory}"
    hint = "the lines above say why"
    if shared:
        what, found = "the made units are not in the shared cache", "no record with a trusted signature"
        hint = (
            "the lines above may say why; records must be signed (`HATCH_LOWER_SIGNING_KEY`), or taken without a"
            " signature (`HATCH_LOWER_PUBLIC_KEYS=any`)"
        )
    raise CacheError(what, where=", ".join(f"`{name}`" for name in lost), found=found, hint=hint)
