"""Level 2: reuse of an earlier result for equal exported graphs, and records of recipes that were verified before;
runs in the child process.

The store has the results that the same code lowered from equal graphs, weights, example inputs and settings. Only
debug maps are written anew, with the source lines of this export.

A model whose recipes were lowered separately, for example by other machines, is assembled from the recipes'
partitions. Recipes with a record are not verified again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import PurePath

from hatch_lower.cache.key import ExportKey, NoKeyError
from hatch_lower.cache.recipes import (
    RecipeRecord,
    UsedVersions,
    find_recipe,
    has_partitions,
    put_recipe,
    recipe_key,
    share_recipe,
)
from hatch_lower.cache.reports import read_report, report_blobs, report_value
from hatch_lower.cache.store import Store
from hatch_lower.errors import CacheError, ProgramError
from hatch_lower.events import stage
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.debug_map import DebugMap, read_debug, write_debug
from hatch_lower.format.plan import read_plan
from hatch_lower.format.record import ModelReport, VerifiedMethod
from hatch_lower.format.results import lacks_device
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.emit.sources import Anchors, anchors_of, re_anchor
from hatch_lower.pipeline.export_key import Export, describe_export, recipe_exports
from hatch_lower.pipeline.model_build import BuildInputs, BuiltRecipe, Services, UsedBackend, place_of
from hatch_lower.pipeline.package import Packager
from hatch_lower.pipeline.recipes import refuse_torch

Versions = Mapping[UsedBackend, UsedVersions]


class KnownRecipes(Frozen):
    exports: Mapping[str, ExportKey] = field(default_factory=dict)  # of every recipe
    records: Mapping[str, RecipeRecord] = field(default_factory=dict)

    def key(self, recipe: str) -> str:
        return recipe_key(self.exports[recipe].components())

    def is_known(self, lowered: BuiltRecipe) -> bool:
        # whether the assembled files are the files that a record says were verified
        record = self.records.get(lowered.recipe.name)
        if record is None or lacks_device(record.not_compared):  # this machine may have the device
            return False
        return (record.plan, record.files, record.requirements) == recipe_digests(lowered)

    def verified(self, recipes: Iterable[BuiltRecipe]) -> Iterator[VerifiedMethod]:
        """Yield the results of earlier comparisons of the same files."""
        for lowered in filter(self.is_known, recipes):
            yield from self.records[lowered.recipe.name].verified

    def reasons(self, recipes: Iterable[BuiltRecipe]) -> dict[str, str]:
        """Return, by known recipe, the reason why no earlier build compared the recipe; empty for a compared recipe."""
        names = [lowered.recipe.name for lowered in filter(self.is_known, recipes)]
        return {name: self.records[name].not_compared for name in names}

    def missing(self) -> list[str]:
        return [name for name in self.exports if name not in self.records]


def known_recipes(inputs: BuildInputs, store: Store, export: ExportKey) -> KnownRecipes:
    exports = recipe_exports(export, inputs)
    found = {name: find_recipe(store, recipe_key(key.components())) for name, key in exports.items()}
    records = {name: record for name, record in found.items() if record is not None and is_usable(name, record)}
    return KnownRecipes(exports, records)


def whole_recipes(inputs: BuildInputs, store: Store, export: ExportKey) -> KnownRecipes:
    """Return the known recipes that another machine can assemble: all their partitions are still stored.

    Recipes without a comparison for want of a device are left out: this machine may have the device.
    """
    known = known_recipes(inputs, store, export)
    whole = {
        name: record
        for name, record in known.records.items()
        if not lacks_device(record.not_compared) and has_partitions(store, record)
    }
    return KnownRecipes(known.exports, whole)


def keep_recipe(
    store: Store, known: KnownRecipes, lowered: BuiltRecipe, report: ModelReport, versions: Versions
) -> str:
    """Store the record of a lowered and verified recipe; return the reason if a later build cannot use the record."""
    name = lowered.recipe.name
    own = tuple(method for method in report.verified if method.recipe == name)
    used = tuple(versions[backend] for backend in lowered.used)
    partitions, missing = tuple(sorted(lowered.keys)), report.manifest.recipes[name].not_compared
    record = RecipeRecord(*recipe_digests(lowered), partitions, used, own, lowered.left_out, missing)
    export = known.exports[name]
    put_recipe(store, known.key(name), f"{export.model}/{name}", export.components(), record)
    stored = all(store.is_stored(partition) for partition in record.partitions)
    return "" if stored else "the results of some of its partitions cannot be stored"


def recipe_digests(lowered: BuiltRecipe) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the verified contents: digests of the plan and the delegates' files, and the delegates' requirements."""
    files = lowered.files
    return files.plan.sha256, tuple(file.sha256 for file in files.delegates), lowered.emitted.requirements()


def versions_of(recipes: Iterable[BuiltRecipe]) -> Versions:
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


class Found(Frozen):
    """Results of earlier builds for an export."""

    export: Export | None = None  # `None` if the export has no key
    report: ModelReport | None = None
    known: KnownRecipes = field(default_factory=KnownRecipes)


@contextmanager
def find_export(inputs: BuildInputs, services: Services) -> Iterator[Found]:
    """Find an earlier report of the same export; if there is none, the block holds the lock of the export's key."""
    store, model = services.store, inputs.model.name
    try:
        with stage(services.reporter, "lookup", model) as describe:
            export = describe_export(inputs, store, services.digests)
            report = find_report(store, export, services.packager)
            known = known_recipes(inputs, store, export.key) if report is None else KnownRecipes()
            describe("found" if report else "not found" if known.missing() else "each recipe found, to be joined")
        found = Found(export, report, known)
    except NoKeyError as error:
        refuse_frozen(store, model, str(error))
        services.warn(f"only partitions are looked up in the cache: {error}")
        found = Found()
    with ExitStack() as locks:
        if found.export is not None and found.report is None:
            if missing := found.known.missing():
                refuse_frozen(store, model, "no result for the present export with these settings", missing)
            locks.enter_context(store.locked([found.export.key.digest()], "export"))
            # another build may just have stored a report
            found = replace(found, report=find_report(store, found.export, services.packager))
        if found.report is not None:
            refuse_broken_promises(inputs, found.report)
        yield found


@contextmanager
def find_recipes(inputs: BuildInputs, services: Services) -> Iterator[Found]:
    """Find the records of a model's recipes; the block holds the locks of the recipes without a record."""
    store, model = services.store, inputs.model.name
    try:
        with stage(services.reporter, "lookup", model) as describe:
            export = describe_export(inputs, store, services.digests)
            found = Found(export, known=whole_recipes(inputs, store, export.key))
            describe("not found" if found.known.missing() else "found")
    except NoKeyError as error:
        services.warn(f"only partitions are kept in the cache: {error}")
        found = Found()
    with ExitStack() as locks:
        if found.export is not None and (missing := found.known.missing()):
            locks.enter_context(store.locked([found.known.key(name) for name in missing], "export"))
            # another build may just have stored records
            found = replace(found, known=whole_recipes(inputs, store, found.export.key))
        yield found


def keep_export(services: Services, found: Found, report: ModelReport, recipes: Sequence[BuiltRecipe]) -> ModelReport:
    """Store the result of lowering an export; return the report with the export's digests.

    Without a comparison for want of a device only the recipes are stored, whose next assembly tries the comparison.
    """
    if found.export is None:
        return report
    report = replace(report, methods=found.export.methods, key=encode(found.export.key.components()))
    if services.store.writes:
        try:
            versions = versions_of(recipes)
            keep_recipes(services.store, found.known, report, recipes, versions)
            whole = not any(lacks_device(entry.not_compared) for entry in report.manifest.recipes.values())
            reason = keep_report(services.store, found.export, report, recipes, versions) if whole else ""
        except NoKeyError as error:
            reason = str(error)
        if reason:
            services.warn(f"the model is not kept in the cache as a whole: {reason}")
    return report


def keep_made(services: Services, found: Found, report: ModelReport, recipes: Sequence[BuiltRecipe]) -> list[str]:
    """Store the records of lowered and verified recipes; return the recipes that a later build finds."""
    if found.export is None or not services.store.writes:
        return []
    try:
        reasons = keep_recipes(services.store, found.known, report, recipes, versions_of(recipes))
    except NoKeyError as error:
        reasons = dict.fromkeys((lowered.recipe.name for lowered in recipes), str(error))
    for name, reason in reasons.items():
        if reason:
            services.warn(f"the recipe `{name}` is not kept in the cache as a whole: {reason}")
    return [name for name, reason in reasons.items() if not reason]


def share_recipes(store: Store, known: KnownRecipes, made: Iterable[str]) -> dict[str, str]:
    """Upload the records of known and made recipes; return the records' keys by recipe."""
    there = {name: known.key(name) for name in (*known.records, *made)}
    for key in there.values():  # partitions from before the first upload may not be in the shared cache yet
        share_recipe(store, key)
    return there


def keep_recipes(
    store: Store, known: KnownRecipes, report: ModelReport, recipes: Sequence[BuiltRecipe], versions: Versions
) -> dict[str, str]:
    """Store the records of recipes; return, by recipe, the reason why a later build could not use the record."""
    return {
        lowered.recipe.name: keep_recipe(store, known, lowered, report, versions)
        for lowered in recipes
        if not known.is_known(lowered)
    }


def refuse_frozen(store: Store, model: str, found: str, missing: Sequence[str] = ()) -> None:
    # with a frozen cache no program is lowered, not even a portable program: the recipes must be in the cache
    if store.mode == "frozen":
        made = hint = ""
        if missing:
            units = [f"{model}/{recipe}" for recipe in missing]
            made = f"; missing: {', '.join(f'`{unit}`' for unit in units)}"
            hint = f"lower with `hatch-lower lower {' '.join(f'--only {unit}' for unit in units)}`, or "
        raise CacheError(
            "the cache is frozen and lacks a result that this build needs",
            where=f"model `{model}`",
            found=f"{found}{made}",
            hint=f"{hint}build once with `HATCH_LOWER_CACHE=on`; `hatch-lower explain` lists the changes since the last"
            " build",
        )


def find_report(store: Store, export: Export, packager: Packager) -> ModelReport | None:
    """Return an earlier report with this export's source lines; `None` without report or if a backend has changed."""
    value = store.find(export.key.digest())
    if value is None or not {"used", "report", "anchors"} <= value.keys():
        return None
    try:
        used = decode(tuple[UsedVersions, ...], value["used"], "a report")
        anchors = decode(Mapping[str, Anchors], value["anchors"], "a report")
    except ProgramError:
        return None
    if not is_current(used):
        return None
    report = read_report(store, value["report"], level=2)
    if report is None:
        return None
    recipes = dict(report.manifest.recipes)
    files = {file.path: file for file in report.files}
    for name, recipe in recipes.items():
        path = recipe.debug.path
        try:
            debug = read_debug(files[path].source.read_bytes(), path)
        except (OSError, ProgramError):
            return None
        fresh = re_anchor(debug, anchors[name], export.programs_of(name), export.sources)
        entry = packager.write(PurePath(path).name, write_debug(fresh))
        recipes[name] = replace(recipe, debug=entry)
        files.update((file.path, file) for file in packager.files() if file.path == path)
    return replace(
        report,
        manifest=replace(report.manifest, recipes=recipes),
        files=tuple(files[path] for path in sorted(files)),
        methods=export.methods,
        key=encode(export.key.components()),
    )


def refuse_broken_promises(inputs: BuildInputs, report: ModelReport) -> None:
    # no key contains `torch-free`, which changes no result
    files = {file.path: file.source for file in report.files}
    for recipe in inputs.recipes:
        if recipe.name in inputs.settings.torch_free:
            entry = report.manifest.recipes[recipe.name]
            plan = read_plan(files[entry.plan.path].read_bytes(), entry.plan.path)
            debug = read_debug(files[entry.debug.path].read_bytes(), entry.debug.path)
            refuse_torch(place_of(inputs.model.name, recipe), plan, debug, entry.imports, entry.requirements)


def keep_report(
    store: Store, export: Export, report: ModelReport, recipes: Sequence[BuiltRecipe], versions: Versions
) -> str:
    anchors: dict[str, Anchors] = {}
    for lowered in recipes:
        name, program = lowered.recipe.name, lowered.emitted
        anchors[name] = anchors_of(program.nodes, export.programs_of(name))
        if re_anchor(program.debug, anchors[name], export.programs_of(name), export.sources) != program.debug:
            return f"the source lines of the recipe `{name}` do not follow from its exported graphs"
        if reason := line_in_reasons(program.debug):
            return f"a backend's reason names a source line: {reason}"
    value = report_value(store, report)
    if value is None:
        return ""
    stored = {
        "report": value,
        "anchors": encode(anchors),
        "used": encode(tuple(versions.values())),
    }
    components = {"kind": "export", "subject": report.model, **export.key.components()}
    store.put(export.key.digest(), components, stored, report_blobs(value))
    return ""


def line_in_reasons(debug: DebugMap) -> str:
    # a reason with a source line becomes stale when lines move
    for method in debug.methods.values():
        files = {PurePath(origin.source.rpartition(":")[0]).name for origin in method.handles.values()} - {""}
        for node in method.undelegated:
            if any(name in node.reason for name in files):
                return node.reason
    return ""
