"""Records of a model's recipes that were lowered and verified before, on this machine or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from hatch_lower.cache.key import ExportKey
from hatch_lower.cache.recipes import RecipeRecord, UsedVersions, find_recipe, has_partitions, put_recipe, recipe_key
from hatch_lower.cache.store import Store
from hatch_lower.format.metrics import VerifiedMethod
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.export_key import recipe_exports
from hatch_lower.pipeline.model_build import BuildInputs, LoweredRecipe, UsedBackend

Versions = Mapping[UsedBackend, UsedVersions]


class KnownRecipes(Frozen):
    exports: Mapping[str, ExportKey] = field(default_factory=dict)  # of every recipe
    records: Mapping[str, RecipeRecord] = field(default_factory=dict)

    def key(self, recipe: str) -> str:
        return recipe_key(self.exports[recipe].components())

    def is_known(self, lowered: LoweredRecipe) -> bool:
        # whether the assembled files are the files that a record says were verified
        record = self.records.get(lowered.recipe.name)
        return record is not None and (record.plan, record.files, record.requirements) == contents_of(lowered)

    def verified(self, recipes: Iterable[LoweredRecipe]) -> Iterator[VerifiedMethod]:
        """Yield the results of earlier comparisons of the same files."""
        for lowered in filter(self.is_known, recipes):
            yield from self.records[lowered.recipe.name].verified

    def missing(self) -> list[str]:
        return [name for name in self.exports if name not in self.records]


def known_recipes(inputs: BuildInputs, store: Store, export: ExportKey) -> KnownRecipes:
    exports = recipe_exports(export, inputs.recipes, inputs.source)
    found = {name: find_recipe(store, recipe_key(key.components())) for name, key in exports.items()}
    records = {name: record for name, record in found.items() if record is not None and is_usable(name, record)}
    return KnownRecipes(exports, records)


def whole_recipes(inputs: BuildInputs, store: Store, export: ExportKey) -> KnownRecipes:
    """Return the known recipes that another machine can assemble: all their partitions are still stored."""
    known = known_recipes(inputs, store, export)
    whole = {name: record for name, record in known.records.items() if has_partitions(store, record)}
    return KnownRecipes(known.exports, whole)


def keep_recipe(
    store: Store, known: KnownRecipes, lowered: LoweredRecipe, verified: Iterable[VerifiedMethod], versions: Versions
) -> str:
    """Store the record of a lowered and verified recipe; return the reason if a later build cannot use the record."""
    name = lowered.recipe.name
    own = tuple(method for method in verified if method.recipe == name)
    used = tuple(versions[backend] for backend in lowered.used)
    record = RecipeRecord(*contents_of(lowered), tuple(sorted(lowered.keys)), used, own, lowered.left_out)
    export = known.exports[name]
    put_recipe(store, known.key(name), f"{export.model}/{name}", export.components(), record)
    stored = all(store.is_stored(partition) for partition in record.partitions)
    return "" if stored else "the results of some of its partitions cannot be stored"


def contents_of(lowered: LoweredRecipe) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the verified contents: digests of the plan and the delegates' files, and the delegates' requirements."""
    files = lowered.files
    return files.plan.sha256, tuple(file.sha256 for file in files.delegates), lowered.emitted.requirements()


def versions_of(recipes: Iterable[LoweredRecipe]) -> Versions:
    """Return the current versions of recipes' backends, which is slow; raise `NoKeyError` if a version is unknown."""
    used = dict.fromkeys(backend for lowered in recipes for backend in lowered.used)
    return {each: UsedVersions(each.backend, each.specs, each.versions()) for each in used}


def is_usable(name: str, record: RecipeRecord) -> bool:
    # the verified methods of a shared record go into the wheel, so the record must name this recipe
    return all(method.recipe == name for method in record.verified) and is_current(record.used)


def is_current(used: Iterable[UsedVersions]) -> bool:
    try:
        return all(UsedBackend(each.backend, each.specs).versions() == each.versions for each in used)
    except Exception:  # lowering reports the broken backend
        return False
