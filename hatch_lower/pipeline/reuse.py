"""Level 2: reuse of an earlier result for equal exported graphs, without lowering; runs in the child process.

The store has the results that the same code lowered from equal graphs, weights, example inputs and settings. Only debug
maps are written anew, with the source lines of this export.

A model whose recipes were lowered separately, for example by other machines, is assembled from the recipes' partitions.
Recipes with a record are not verified again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import PurePath

import torch

from hatch_lower.cache.key import NoKeyError
from hatch_lower.cache.recipes import UsedVersions, share_recipe
from hatch_lower.cache.reports import read_report, report_blobs, report_value
from hatch_lower.cache.store import Store
from hatch_lower.errors import CacheError, ProgramError, VerificationError
from hatch_lower.events import stage
from hatch_lower.exir.backend.backend_api import merged_keys
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.debug_map import DebugMap, read_debug, write_debug
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.metrics import VerifiedMethod
from hatch_lower.format.plan import read_plan
from hatch_lower.format.record import ModelReport
from hatch_lower.pipeline.emit.anchors import Anchors, anchors_of, re_anchor
from hatch_lower.pipeline.export_key import Export, describe_export
from hatch_lower.pipeline.heal import count_text, healed
from hatch_lower.pipeline.model_build import LoweredRecipe, ModelBuild
from hatch_lower.pipeline.package import Packager
from hatch_lower.pipeline.recipe_records import (
    KnownRecipes,
    Versions,
    is_current,
    keep_recipe,
    known_recipes,
    versions_of,
    whole_recipes,
)
from hatch_lower.pipeline.recipes import refuse_torch

Lowered = tuple[ModelReport, Sequence[LoweredRecipe]]
Lower = Callable[[ModelBuild], Lowered]
Verify = Callable[[ModelBuild, Sequence[LoweredRecipe]], tuple[VerifiedMethod, ...]]


def reused_or_lowered(build: ModelBuild, lower: Lower, verify: Verify) -> ModelReport:
    """Return an earlier build's report of the same export; if there is none, lower, verify and store the result."""
    store, model = build.store, build.model.name
    try:
        with stage(build.reporter, "lookup", model) as describe:
            export = export_of(build)
            report = find_report(store, export, build.packager)
            known = known_recipes(build, export.key) if report is None else KnownRecipes({}, {})
            describe("found" if report else "not found" if known.missing() else "each recipe found, to be joined")
    except NoKeyError as error:
        refuse_frozen(store, model, str(error))
        build.warn(f"only partitions are looked up in the cache: {error}")
        return lowered_and_verified(build, lower, verify)[0]
    if report is not None:
        refuse_broken_promises(build, report)
        return report
    if known.missing():
        refuse_frozen(store, model, "no result for the present export with these settings", known.missing())
    with store.locked([export.key.digest()], "export"):
        report = find_report(store, export, build.packager)  # another build may just have stored a report
        if report is not None:
            refuse_broken_promises(build, report)
            return report
        report, recipes = lowered_and_verified(build, lower, verify, known)
        report = replace(report, methods=export.methods, key=encode(export.key.components()))
        if store.writes and (reason := keep(build, known, export, report, recipes)):
            build.warn(f"the model is not kept in the cache as a whole: {reason}")
    return report


def made_recipes(build: ModelBuild, lower: Lower, verify: Verify) -> tuple[ModelReport, Mapping[str, str]]:
    """Lower and verify a model's recipes without a record; return the keys of all records afterwards."""
    # the report has no files: the build that joins the recipes writes files
    store, model = build.store, build.model
    report = ModelReport(model.name, ModelEntry((), None, None, {}), files=(), torch=torch.__version__)
    try:
        with stage(build.reporter, "lookup", model.name) as describe:
            export = export_of(build)
            known = whole_recipes(build, export.key)
            describe("not found" if known.missing() else "found")
    except NoKeyError as error:
        build.warn(f"only partitions are kept in the cache: {error}")
        return replace(report, rows=lowered_and_verified(build, lower, verify)[0].rows), {}
    made: list[str] = []
    if known.missing():
        with store.locked([known.key(name) for name in known.missing()], "export"):
            known = whole_recipes(build, export.key)  # another build may just have stored records
            if missing := known.missing():
                lowered, recipes = lowered_and_verified(build.narrowed(missing), lower, verify)
                report = replace(report, rows=lowered.rows, verified=lowered.verified)
                made = keep_made(build, known, lowered, recipes)
    there = {name: known.key(name) for name in (*known.records, *made)}
    for key in there.values():  # partitions from before the first upload may not be in the shared cache yet
        share_recipe(store, key)
    return report, there


def export_of(build: ModelBuild) -> Export:
    return describe_export(
        build.settings, build.model, build.source, build.store, build.digests, build.examples, build.sources, build.real
    )


def keep(
    build: ModelBuild, known: KnownRecipes, export: Export, report: ModelReport, recipes: Sequence[LoweredRecipe]
) -> str:
    """Store the result of lowering an export; return the reason if a later build could not use the result."""
    try:
        versions = versions_of(recipes)
    except NoKeyError as error:
        return str(error)
    keep_recipes(build.store, known, report, recipes, versions)
    return keep_report(build.store, export, report, recipes, versions)


def keep_made(
    build: ModelBuild, known: KnownRecipes, report: ModelReport, recipes: Sequence[LoweredRecipe]
) -> list[str]:
    """Store the records of lowered and verified recipes; return the recipes that a later build finds."""
    if not build.store.writes:
        return []
    try:
        reasons = keep_recipes(build.store, known, report, recipes, versions_of(recipes))
    except NoKeyError as error:
        reasons = dict.fromkeys((lowered.recipe.name for lowered in recipes), str(error))
    for name, reason in reasons.items():
        if reason:
            build.warn(f"the recipe `{name}` is not kept in the cache as a whole: {reason}")
    return [name for name, reason in reasons.items() if not reason]


def keep_recipes(
    store: Store, known: KnownRecipes, report: ModelReport, recipes: Sequence[LoweredRecipe], versions: Versions
) -> dict[str, str]:
    """Store the records of recipes; return, by recipe, the reason why a later build could not use the record."""
    return {
        lowered.recipe.name: keep_recipe(store, known, lowered, report.verified, versions)
        for lowered in recipes
        if not known.is_known(lowered)
    }


def lowered_and_verified(build: ModelBuild, lower: Lower, verify: Verify, known: KnownRecipes | None = None) -> Lowered:
    if known is not None:
        build = replace(build, left_out={name: record.left_out for name, record in known.records.items()})
        for name, several in build.left_out.items():
            if several:
                build.warn(f"the recipe `{name}` leaves out {count_text(several)}, like an earlier build")
    renewed: set[str] = set()  # keys of partitions that were lowered in this build
    for number in count(1):
        report, recipes = lower(build)
        told = [] if known is None else [lowered.recipe.name for lowered in recipes if known.is_known(lowered)]
        try:
            verified = verify(build, [lowered for lowered in recipes if lowered.recipe.name not in told])
            break
        except VerificationError as error:
            found = merged_keys(recipe.keys for recipe in recipes)
            taken = [key for key, from_cache in found.items() if from_cache and key not in renewed]
            renewed |= found.keys()
            if taken and build.store.writes:
                build.warn(f"partitions from the cache are lowered again: {error.what}")
                build.store.forget(taken)
                left_out = {recipe.recipe.name: recipe.left_out for recipe in recipes}
                build, known = replace(build, left_out=left_out, kept={}), None
            else:
                build = healed(build, recipes, error)
        # a library that this process has loaded must not be written again
        again = Packager(build.folder / f"again{number}", build.model.name, build.store)
        build = replace(build, packager=again)
    if told and known is not None:
        earlier = [method for name in told for method in known.records[name].verified]
        order = [lowered.recipe.name for lowered in recipes]
        verified = tuple(sorted((*verified, *earlier), key=lambda method: order.index(method.recipe)))
    return replace(report, verified=verified), recipes


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
        fresh = re_anchor(debug, anchors[name], export.programs, export.sources)
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


def refuse_broken_promises(build: ModelBuild, report: ModelReport) -> None:
    # no key contains `torch-free`, which changes no result
    files = {file.path: file.source for file in report.files}
    for recipe in build.recipes:
        if recipe.name in build.settings.torch_free:
            entry = report.manifest.recipes[recipe.name]
            plan = read_plan(files[entry.plan.path].read_bytes(), entry.plan.path)
            debug = read_debug(files[entry.debug.path].read_bytes(), entry.debug.path)
            refuse_torch(build.place(recipe), plan, debug, entry.imports, entry.requirements)


def keep_report(
    store: Store, export: Export, report: ModelReport, recipes: Sequence[LoweredRecipe], versions: Versions
) -> str:
    anchors: dict[str, Anchors] = {}
    for lowered in recipes:
        name, program = lowered.recipe.name, lowered.emitted
        anchors[name] = anchors_of(program.nodes, export.programs)
        if re_anchor(program.debug, anchors[name], export.programs, export.sources) != program.debug:
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
