"""Recipes of a model that are made one by one: a build of all joins them, and compares nothing again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.backends import Versioned
from support.exports import Workshop, files_of, key_of, settings_of
from support.kept_events import Events

from hatch_lower.cache.recipes import RecipeRecord, find_recipe, put_recipe, recipe_key
from hatch_lower.cache.store import Store, open_store
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import CacheError
from hatch_lower.events import Event
from hatch_lower.format.record import ModelReport
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.export_key import recipe_exports
from hatch_lower.pipeline.lower_model import make_recipes, start_build
from hatch_lower.pipeline.model_build import BuildInputs
from hatch_lower.pipeline.random_inputs import InputCase
from hatch_lower.pipeline.real_inputs import RealInputs

pytestmark = pytest.mark.torch

REFERENCE, PORTABLE = Recipe("default", (BackendChoice("reference"),)), Recipe("portable")
ONE, BOTH = settings_of(REFERENCE), settings_of(REFERENCE, PORTABLE)


def narrowed(settings: Settings, *recipes: str) -> Settings:
    return replace(settings, models=tuple(replace(model, recipes=recipes) for model in settings.models))


def inputs_of(source: CapturedModel, settings: Settings) -> BuildInputs:
    return BuildInputs(settings, settings.models[0], source)


def store_here(events: Events) -> Store:
    return open_store(os.environ, lambda line: events.report(Event("cache", "note", "net", detail=line)))


def make(
    shop: Workshop, source: CapturedModel, *recipes: str, settings: Settings = BOTH
) -> tuple[ModelReport, Mapping[str, str], Events]:
    """Make some recipes of the model, as a child process does in the mode `recipe`."""
    shop.count += 1
    events, used = Events(), narrowed(settings, *recipes)
    folder = shop.folder / f"build-{shop.count}"
    folder.mkdir()
    return *make_recipes(*start_build(used, used.models[0], source, folder, events, store_here(events))), events


def uncached(shop: Workshop, source: CapturedModel, settings: Settings) -> ModelReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HATCH_LOWER_CACHE", "off")
        return shop.build(source, settings)[0]


@pytest.mark.parametrize("order", [("default", "portable"), ("portable", "default")])
def test_recipes_that_were_made_one_by_one_are_joined_in_a_frozen_cache(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    for recipe in order:
        report, records, events = make(shop, plain, recipe)
        assert events.stages() >= {"lookup", "decompose", "package", "compare"}
        assert events.notes() == [], "nothing is said to be lost"
        assert (report.files, list(records)) == ((), [recipe])
    monkeypatch.setenv("HATCH_LOWER_CACHE", "frozen")
    joined, events = shop.build(plain, BOTH)
    assert "compare" not in events.stages()
    fresh = uncached(shop, plain, BOTH)
    assert files_of(joined) == files_of(fresh)
    assert (joined.manifest, joined.verified) == (fresh.manifest, fresh.verified)
    assert {method.recipe for method in joined.verified} == {"default", "portable"}


@pytest.mark.parametrize("weights", [(), ("file",)], ids=["inside", "beside"])
def test_a_recipe_alone_comes_to_the_program_that_it_comes_to_among_others(
    shop: Workshop, plain: CapturedModel, weights: tuple[str, ...]
) -> None:
    # recipes with the same constants, with others, and with delegates that hold some
    recipes = (REFERENCE, PORTABLE, Recipe("weightless", (BackendChoice("null"),), verify=False))
    settings = settings_of(*recipes, weights=weights)
    every = files_of(uncached(shop, plain, settings))
    for recipe in recipes:
        alone = files_of(uncached(shop, plain, narrowed(settings, recipe.name)))
        # constants and weights are one file of the whole model, whose storages are named by their contents
        programs = {path for path in alone if path.startswith((f"net/{recipe.name}.", "net/delegates/", "net/data/"))}
        assert programs >= {f"net/{recipe.name}.json", f"net/{recipe.name}.debug.json"}
        assert {path: alone[path] for path in programs} == {path: every[path] for path in programs}


def test_the_key_of_a_recipe_is_that_of_the_model_with_this_recipe_alone(plain: CapturedModel) -> None:
    real = {"embed": RealInputs("samples.safetensors", (InputCase("a sample", (torch.ones(3, 4),), {}, ("image",)),))}
    for check in (True, False):
        settings = settings_of(REFERENCE, replace(PORTABLE, verify=False), check=check)
        exports = recipe_exports(key_of(plain, settings, real=real), inputs_of(plain, settings))
        for recipe in settings.recipes:
            alone = settings_of(recipe, check=check)
            # real inputs are read where something is compared
            assert exports[recipe.name] == key_of(plain, alone, real=real if recipe.verify else {})


def test_what_a_recipe_was_made_of_is_in_its_key(plain: CapturedModel) -> None:
    changed = [
        settings_of(replace(REFERENCE, rtol=1.0), PORTABLE),
        settings_of(replace(REFERENCE, verify=False), PORTABLE),
        settings_of(replace(REFERENCE, backends=(BackendChoice("null"),)), PORTABLE),
    ]
    keys = [recipe_exports(key_of(plain, used), inputs_of(plain, used))["default"] for used in [BOTH, *changed]]
    assert len({recipe_key(key.components()) for key in keys}) == len(keys)


def test_a_model_that_lacks_a_recipe_is_refused_by_a_frozen_cache_and_the_recipe_named(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(shop, plain, "default")
    monkeypatch.setenv("HATCH_LOWER_CACHE", "frozen")
    with pytest.raises(CacheError, match="the cache is frozen") as caught:
        shop.build(plain, BOTH)
    assert caught.value.where == "model `net`"
    assert caught.value.found.endswith("; missing: `net/portable`")
    assert caught.value.hint.startswith("lower with `hatch-lower lower --only net/portable`, or build once with")


def test_a_recipe_is_not_verified_again_when_another_one_is_added(shop: Workshop, plain: CapturedModel) -> None:
    shop.build(plain, ONE)
    report, events = shop.build(plain, BOTH)
    compared = {event.recipe for event in events.seen if event.stage == "compare"}
    assert compared == {"portable"}
    assert report.verified == uncached(shop, plain, BOTH).verified


def test_a_program_that_is_not_the_one_of_the_record_is_verified(shop: Workshop, plain: CapturedModel) -> None:
    _, records, _ = make(shop, plain, "default")
    store = store_here(Events())
    record = find_recipe(store, records["default"])
    assert record is not None
    elsewhere = tuple(replace(method, recipe="portable") for method in record.verified)
    others = [{"plan": "0" * 64}, {"files": ()}, {"requirements": ("numpy",)}, {"verified": elsewhere}]
    for wrong in (replace(record, **other) for other in others):
        replace_record(store, records["default"], plain, wrong)
        assert "compare" in shop.build(plain, ONE)[1].stages()
        clear_reports(shop)


def replace_record(store: Store, key: str, source: CapturedModel, record: RecipeRecord) -> None:
    export = recipe_exports(key_of(source, ONE), inputs_of(source, ONE))["default"].components()
    assert recipe_key(export) == key
    put_recipe(store, key, "net/default", export, record)


def clear_reports(shop: Workshop) -> None:
    for path in (shop.folder / "cache").rglob("records/*/*.json"):
        if '"kind":"export"' in path.read_text():
            path.unlink()


def test_a_record_of_another_backend_version_does_not_count(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = settings_of(Recipe("default", (BackendChoice("Versioned"),), verify=False))
    make(shop, plain, "default", settings=used)
    assert make(shop, plain, "default", settings=used)[2].stages() == {"lookup"}
    monkeypatch.setattr(Versioned, "library", "2.0")
    assert "package" in make(shop, plain, "default", settings=used)[2].stages()


def test_a_recipe_whose_partition_is_lost_is_made_again(shop: Workshop, plain: CapturedModel) -> None:
    make(shop, plain, "default", "portable")
    assert make(shop, plain, "default", "portable")[2].stages() == {"lookup"}
    partition = partitions(shop)[0]
    partition.unlink()
    made = {
        event.recipe
        for event in make(shop, plain, "default", "portable")[2].seen
        if event.stage == "package" and event.recipe
    }
    assert made == {"default"}
    assert partition.exists()


def partitions(shop: Workshop) -> list[Path]:
    paths = (shop.folder / "cache").rglob("records/*/*.json")
    return [path for path in paths if '"compile_specs":' in path.read_text()]


def test_what_cannot_be_found_again_is_no_record_and_said(shop: Workshop) -> None:
    with torch.library._scoped_library("hatch_lower_records", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        edits = {"torch.relu(self.linear(x))": "torch.ops.hatch_lower_records.twice(self.linear(x))"}
        report, records, events = make(shop, shop.capture(edits=edits), "portable")
    assert records == {}
    assert [row.recipe for row in report.rows] == ["portable", "portable"]
    assert [note for note in events.notes() if note.startswith("only partitions are kept in the cache: ")]


def test_a_cache_that_is_refreshed_keeps_what_was_made_again(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first, _ = make(shop, plain, "default")
    monkeypatch.setenv("HATCH_LOWER_CACHE", "refresh")
    _, records, events = make(shop, plain, "default")
    assert (records, events.notes()) == (first, [])
    assert "compare" in events.stages()
