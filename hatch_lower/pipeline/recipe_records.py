"""What of a model is known recipe by recipe: records of those that were lowered and verified, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hatch_lower.cache.key import ExportKey
from hatch_lower.cache.recipes import RecipeRecord, UsedVersions, find_recipe, has_partitions, put_recipe, recipe_key
from hatch_lower.cache.store import Store
from hatch_lower.format.metrics import VerifiedMethod
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.export_key import UsedBackend, recipe_exports
from hatch_lower.pipeline.model_build import LoweredRecipe, ModelBuild

Versions = Mapping[UsedBackend, UsedVersions]


class KnownRecipes(Frozen):
    exports: Mapping[str, ExportKey]  # of every recipe
    records: Mapping[str, RecipeRecord]

    def key(self, recipe: str) -> str:
        return recipe_key(self.exports[recipe].components())

    def is_known(self, lowered: LoweredRecipe) -> bool:
        # whether what was put together is what a record says was verified
        record = self.records.get(lowered.recipe.name)
        return record is not None and (record.plan, record.files, record.requirements) == contents_of(lowered)

    def missing(self) -> list[str]:
        return [name for name in self.exports if name not in self.records]


def known_recipes(build: ModelBuild, export: ExportKey) -> KnownRecipes:
    exports = recipe_exports(export, build.recipes, build.source)
    found = {name: find_recipe(build.store, recipe_key(key.components())) for name, key in exports.items()}
    return KnownRecipes(
        exports, {name: record for name, record in found.items() if record is not None and is_usable(name, record)}
    )


def whole_recipes(build: ModelBuild, export: ExportKey) -> KnownRecipes:
    """Return the recipes that another machine can put together: their partitions are still there, too."""
    known = known_recipes(build, export)
    whole = {name: record for name, record in known.records.items() if has_partitions(build.store, record)}
    return KnownRecipes(known.exports, whole)


def keep_recipe(
    store: Store, known: KnownRecipes, lowered: LoweredRecipe, verified: Iterable[VerifiedMethod], versions: Versions
) -> str:
    """Store that a recipe was lowered and verified; return why a later build could not use that."""
    name = lowered.recipe.name
    own = tuple(method for method in verified if method.recipe == name)
    used = tuple(versions[backend] for backend in lowered.used)
    record = RecipeRecord(*contents_of(lowered), tuple(sorted(lowered.keys)), used, own, lowered.left_out)
    export = known.exports[name]
    put_recipe(store, known.key(name), f"{export.model}/{name}", export.components(), record)
    stored = all(store.is_stored(partition) for partition in record.partitions)
    return "" if stored else "the results of some of its partitions cannot be stored"


def contents_of(lowered: LoweredRecipe) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return what was verified: digests of the plan and of the delegates' files, and what these require."""
    files = lowered.files
    return files.plan.sha256, tuple(file.sha256 for file in files.delegates), lowered.emitted.requirements()


def versions_of(recipes: Iterable[LoweredRecipe]) -> Versions:
    """Return what recipes' backends are now, which takes a while; a `NoKeyError` if that of one cannot be told."""
    used = dict.fromkeys(backend for lowered in recipes for backend in lowered.used)
    return {each: UsedVersions(each.backend, each.specs, each.versions()) for each in used}


def is_usable(name: str, record: RecipeRecord) -> bool:
    # what a shared cache says was compared goes into the wheel
    return all(method.recipe == name for method in record.verified) and is_current(record.used)


def is_current(used: Iterable[UsedVersions]) -> bool:
    try:
        return all(UsedBackend(each.backend, each.specs).versions() == each.versions for each in used)
    except Exception:  # lowering will say what is wrong with the backend
        return False
