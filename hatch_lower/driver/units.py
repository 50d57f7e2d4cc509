"""The units of the next build: their keys, their presence in the cache, their time, and the child processes that
make units on this machine. A unit is a recipe of a model, which any machine with the project can make. A model
depends on its recipes, and `hatch build` joins the recipes. The search for a wrong operation runs in the same
child process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from hatch_lower.cache.recipes import is_recipe_shared, is_recipe_whole, read_cost
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.driver.checkpoints import obtain_checkpoints
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.executor import UnitExport, export_models
from hatch_lower.driver.lookup import LookupResult, ResultLookup, keeps_promises, lookup_of, unit_components
from hatch_lower.driver.protocol import Answer
from hatch_lower.driver.sources import urls_of
from hatch_lower.driver.weight_sources import obtain_sources
from hatch_lower.errors import CacheError, ConfigError, nearest
from hatch_lower.format.codec import read_record
from hatch_lower.format.results import MethodRow
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.checkpoint import LocalSource
from hatch_lower.pipeline.localize.finding import FINDINGS, Findings, Localization
from hatch_lower.pipeline.precision.finding import PRECISIONS, PrecisionFinding, PrecisionSearch

SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
UNKNOWN_SECONDS = 1.0  # of every unit, without any known time


class Unit(Frozen):
    """A recipe of a model; or a model, which depends on its recipes."""

    model: str
    recipe: str  # empty for the model
    key: str  # of the record of its inputs and result
    cached: bool
    seconds: float | None = None  # of the last time; `None` if unknown
    depends: tuple[str, ...] = ()  # names of units
    components: Mapping[str, object] = field(default_factory=dict)  # of the key

    @property
    def name(self) -> str:
        return unit_name(self.model, self.recipe)


def unit_name(model: str, recipe: str) -> str:
    return f"{model}/{recipe}" if recipe else model


def find_units(context: BuildContext, *, shared: bool) -> tuple[Unit, ...]:
    """Return the recipes and models of a project, each model after its recipes."""
    # `shared`: entries of this machine's cache alone do not count, because another machine joins the units
    lookup = lookup_of(context)
    units = [unit for model in context.settings.models for unit in units_of(context, lookup, model, shared=shared)]
    lookup.save()
    return tuple(units)


def units_of(context: BuildContext, lookup: ResultLookup, model: ModelSettings, *, shared: bool) -> Iterator[Unit]:
    settings, store = context.settings, context.store
    whole = lookup.look_up(lookup.key_of(settings, model, context.view).components())
    known = is_known(context, whole, shared=shared)
    there = is_recipe_shared if shared else is_recipe_whole
    for recipe in model.recipes:
        name = unit_name(model.name, recipe)
        narrowed = replace(model, recipes=(recipe,))
        components = unit_components(lookup.key_of(settings, narrowed, context.view), name)
        yield Unit(
            model.name,
            recipe,
            digest_of(components),
            known or bool(lookup.find_made(components, lambda key: there(store, key))),
            read_cost(store, settings.name, name),
            (),
            components,
        )
    depends = tuple(unit_name(model.name, recipe) for recipe in model.recipes)
    yield Unit(model.name, "", digest_of(whole.key), known, None, depends, whole.key)


def is_known(context: BuildContext, whole: LookupResult, *, shared: bool) -> bool:
    """Return whether a build finds a model's whole result."""
    if whole.result is None or whole.entry is None or not keeps_promises(context.settings, whole.result):
        return False
    return not shared or context.store.is_shared(whole.entry[1])


def recipe_units(units: Iterable[Unit]) -> tuple[Unit, ...]:
    return tuple(sorted((unit for unit in units if unit.recipe), key=lambda unit: unit.name))


def select_units(units: Iterable[Unit], only: Collection[str]) -> tuple[Unit, ...]:
    """Return the recipes of the given names (`model` or `model/recipe`), sorted; without names all recipes."""
    every = recipe_units(units)
    if not only:
        return every
    chosen: set[str] = set()
    for name in only:
        model, slash, _ = name.partition("/")
        models = {unit.model for unit in every}
        if model not in models:
            raise ConfigError("the project has no such model", where=f"`{name}`", found=nearest(model, models))
        names = {unit.name for unit in every if unit.model == model}
        if slash and name not in names:
            what = f"the model `{model}` has no such recipe"
            raise ConfigError(what, where=f"`{name}`", found=nearest(name, names))
        chosen |= {name} if slash else names
    return tuple(unit for unit in every if unit.name in chosen)


def read_shard(text: str) -> tuple[int, int]:
    """Read a shard such as `3/8`: its number, and the number of shards."""
    match = SHARD.fullmatch(text)
    number, count = map(int, match.groups()) if match is not None else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(
            "there is no such shard",
            where="`--shard`",
            found=f"`{text}`",
            hint="write `I/N`, the number of this shard and how many there are: `1/3`, `2/3` and `3/3`",
        )
    return number, count


def shard_of(units: Sequence[Unit], number: int, count: int) -> tuple[Unit, ...]:
    """Return one of `count` shards of units: the same on every machine, independent of caches."""
    return tuple(sorted(units, key=lambda unit: unit.name)[number - 1 :: count])


def divide_units(units: Sequence[Unit], count: int) -> list[tuple[Unit, ...]]:
    """Divide units into at most `count` shards of similar time: the longest unit first, into the shortest shard."""
    known = [unit.seconds for unit in units if unit.seconds is not None]
    usual = sum(known) / len(known) if known else UNKNOWN_SECONDS

    def cost(unit: Unit) -> float:
        return usual if unit.seconds is None else unit.seconds

    shards: list[list[Unit]] = [[] for _ in range(min(count, len(units)))]
    for unit in sorted(units, key=lambda unit: (-cost(unit), unit.name)):
        min(shards, key=lambda shard: (sum(map(cost, shard)), len(shard))).append(unit)
    return [tuple(sorted(shard, key=lambda unit: unit.name)) for shard in shards]


def make_missing(context: BuildContext, names: Collection[str], *, shared: bool) -> tuple[MethodRow, ...]:
    """Make the named units that are not cached; return a row for each lowered method."""
    units = missing_units(context, names, shared=shared)
    obtain_checkpoints(context.settings.root, narrowed(context.settings, units).models, context.store, context.reporter)
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


def localize_in_child(context: BuildContext, model: str, wanted: Localization) -> Findings:
    """Return the wrong operations of a model, found by a child process; only partitions are kept."""
    context, chosen, sources = unkept_child(context, model)
    export_models(context, chosen, {}, "localize", sources, wanted)
    found: Findings = read_record(Findings, context.work / "models" / model / FINDINGS)
    return found


def search_in_child(context: BuildContext, model: str, wanted: PrecisionSearch) -> PrecisionFinding:
    """Return the layers of a model that must stay in float32, found by a child process; no result is kept."""
    context, chosen, sources = unkept_child(context, model)
    export_models(context, chosen, {}, "precision", sources, search=wanted)
    found: PrecisionFinding = read_record(PrecisionFinding, context.work / "models" / model / PRECISIONS)
    return found


def unkept_child(
    context: BuildContext, model: str
) -> tuple[BuildContext, Sequence[ModelSettings], Mapping[str, LocalSource]]:
    """Return the context, the model and its sources of weights for a child process whose result is dropped."""
    models = {each.name: each for each in context.settings.models}
    if model not in models:
        raise ConfigError(
            "the project has no such model",
            where=str(context.settings.root),
            found=nearest(model, models),
            hint="run this in the project that the model comes from",
        )
    chosen = [models[model]]
    obtain_checkpoints(context.settings.root, chosen, context.store, context.reporter)
    urls = urls_of(chosen)
    sources = obtain_sources(context, urls) if urls else {}
    # strict mode protects the result of a build
    return replace(context, settings=replace(context.settings, strict=False)), chosen, sources
