"""Lowering one model, from its exported methods to the files in the wheel, on one page; runs in the child process."""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions

from hatch_lower.cache.key import NoKeyError
from hatch_lower.cache.quarantine import suspected
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.requirements import requirements_to_add
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, CacheError, VerificationError
from hatch_lower.events import Event, Reporter, stage
from hatch_lower.exir.backend.backend_api import Lowered, lower_methods
from hatch_lower.exir.backend.backend_details import Partitioner
from hatch_lower.exir.backend.canonical_partitioners.nodes import MAY_BE_ZERO
from hatch_lower.exir.backend.identity import tools_named
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.graph.surgery import count_operations
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.exir.lowering.wishes import Wishes
from hatch_lower.exir.program._program import lowered_modules
from hatch_lower.format.agreement import backends_in, target_in
from hatch_lower.format.codec import encode
from hatch_lower.format.manifest import MethodEntry, ModelEntry, RecipeEntry
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import MethodRow
from hatch_lower.pipeline.architecture import architecture_of
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.check_data import example_tensors, limited
from hatch_lower.pipeline.eager import eager_factory, widened
from hatch_lower.pipeline.emit.constants import SpanDigests, merge_storages
from hatch_lower.pipeline.emit.constants_file import constants_bytes, write_constants
from hatch_lower.pipeline.emit.emit import EmittedProgram, LoweredMethod, emit_program
from hatch_lower.pipeline.emit.traces import machine_words, traces_of
from hatch_lower.pipeline.exceptions import trim
from hatch_lower.pipeline.fresh_process import FreshProcess, Packaged
from hatch_lower.pipeline.package import CONSTANTS, Packager, ProgramFiles
from hatch_lower.pipeline.reuse import (
    Used,
    backends_of,
    describe_export,
    find_report,
    keep_report,
    plain_constants,
    used_backends,
)
from hatch_lower.pipeline.sandbox import backend_at_work
from hatch_lower.pipeline.verify import verify_recipe
from hatch_lower.runtime.installed import normal_name
from hatch_lower.runtime.numbers import Tolerance

EXAMPLES = "examples.safetensors"
"""The example inputs and eager's outputs in full; only some are packaged."""
PLAN_READER = "hatch-lower>=0.1"
"""The first version that reads the plans that this one writes."""


@dataclass(frozen=True, slots=True)
class ModelBuild:
    """What lowering one model works with.

    Args:
        settings: of the build.
        model: the model's own.
        source: the captured model.
        recipes: those that it is lowered for.
        partitioners: recipe to backend to its partitioner.
        store: the cache.
        folder: of the model in this build.
        packager: writes its files.
        digests: of its constants.
        examples: the tensors among the example inputs and eager's outputs, and a note; `None` if nothing asks for them.
        reporter: is told of the stages.
        fresh: a process that has not run the model's code.
    """

    settings: Settings
    model: ModelSettings
    source: CapturedModel
    recipes: tuple[Recipe, ...]
    partitioners: Mapping[str, Mapping[str, Partitioner]]
    store: Store
    folder: Path
    packager: Packager
    digests: SpanDigests
    examples: tuple[Mapping[str, torch.Tensor], str] | None
    reporter: Reporter
    fresh: FreshProcess | None

    def warn(self, line: str) -> None:
        """Report a line about the cache or the check data."""
        self.reporter.report(Event("cache", "note", self.model.name, detail=line))


@dataclass(frozen=True, slots=True)
class LoweredRecipe:
    """A model lowered for one recipe."""

    recipe: Recipe
    emitted: EmittedProgram
    files: ProgramFiles
    methods: Mapping[str, MethodEntry]
    rows: tuple[MethodRow, ...]
    used: tuple[Used, ...]
    keys: Mapping[str, bool]


def lower_model(
    settings: Settings,
    model: ModelSettings,
    source: CapturedModel,
    folder: Path,
    reporter: Reporter,
    store: Store,
    fresh: FreshProcess | None = None,
) -> ModelReport:
    """Lower a captured model for each of its recipes, write its files below `folder`, and verify them.

    What was lowered before from an equal export is taken from the cache; its debug maps get the lines of this one.

    Args:
        settings: of the build.
        model: which one.
        source: its exported methods.
        folder: for its files.
        reporter: is told of the stages.
        store: the cache.
        fresh: a process that has not run the model's code; without it the programs are run in this one only.

    Raises:
        LowerError: whatever goes wrong; what other models have finished stays in the cache.
    """
    digests = SpanDigests()
    digests.start(plain_constants(source))
    recipes = tuple(recipe for recipe in settings.recipes if recipe.name in model.recipes)
    partitioners = {
        recipe.name: {choice.name: partitioner_of(choice, recipe) for choice in recipe.backends} for recipe in recipes
    }
    refuse_unmet(settings, recipes)
    compared = settings.check or any(recipe.verify for recipe in recipes)
    with process_restored():  # the model is called
        examples = example_tensors(source) if compared else None
    packager = Packager(folder, model.name, store)
    build = ModelBuild(
        settings, model, source, recipes, partitioners, store, folder, packager, digests, examples, reporter, fresh
    )
    try:
        with stage(reporter, "known", model.name) as describe:
            export = describe_export(settings, model, source, store, digests, examples)
            report = find_report(store, export, packager)
            describe("nothing to lower" if report is not None else "not yet")
    except NoKeyError as error:
        refuse_frozen(store, model.name, str(error))
        build.warn(f"only partitions are looked up in the cache: {error}")
        return lower_and_verify(build)[0]
    if report is not None:
        return report
    refuse_frozen(store, model.name, "no result of what it exports now, with these settings")
    with store.locked([export.key.digest()], "export"):
        report = find_report(store, export, packager)  # another build may just have made it
        if report is not None:
            return report
        report, lowered = lower_and_verify(build)
        report = replace(report, methods=export.methods, key=encode(export.key.components()))
        reason = keep_report(
            store,
            export,
            report,
            {each.recipe.name: each.emitted for each in lowered},
            dict.fromkeys(used for each in lowered for used in each.used),
        )
    if reason:
        build.warn(f"the model is not kept in the cache as a whole: {reason}")
    return report


def lower_and_verify(build: ModelBuild) -> tuple[ModelReport, list[LoweredRecipe]]:
    """Lower, package and verify a model for all its recipes.

    What does not verify stays in the cache: the tolerances may be at fault. In case it is at fault itself, a build that
    took it from there makes it anew, once.
    """
    report, lowered = lower_all(build)
    try:
        verify_all(build, lowered)
    except VerificationError as error:
        taken = [key for key, from_cache in merged_keys(each.keys for each in lowered).items() if from_cache]
        if not taken or not build.store.writes:
            raise
        build.warn(f"partitions from the cache are lowered again: {error.what}")
        build.store.forget(taken)
        again = replace(build, packager=Packager(build.folder / "again", build.model.name, build.store))
        report, lowered = lower_all(again)
        verify_all(again, lowered)
    return report, lowered


def merged_keys(several: Iterable[Mapping[str, bool]]) -> dict[str, bool]:
    """Return the keys of results, and whether nobody made a result under one."""
    merged: dict[str, bool] = {}
    for each in several:
        for key, from_cache in each.items():
            merged[key] = from_cache and merged.get(key, True)
    return merged


def lower_all(build: ModelBuild) -> tuple[ModelReport, list[LoweredRecipe]]:
    """Lower and package a model for all its recipes."""
    model, packager = build.model, build.packager
    if any(recipe.verify for recipe in build.recipes):
        eager_factory(
            build.source, build.source.methods[0]
        )()  # now, not after minutes: it says if there can be no copy
    lowered = [lower_recipe(build, recipe) for recipe in build.recipes]
    with stage(build.reporter, "constants", model.name):
        constants = packager.write_storages(merge_storages(each.emitted.storages for each in lowered))
    check = None
    if build.settings.check and build.examples is not None:
        tensors, note = limited(*build.examples)
        check = packager.write("check.safetensors", constants_bytes(tensors)) if tensors else None
        if note:
            build.warn(note)
    entry = ModelEntry(
        order=tuple(name for name in build.settings.recipe_order if name in model.recipes),
        constants=constants,
        check=check,
        recipes={each.recipe.name: describe_recipe(each, build.settings.name) for each in lowered},
    )
    used = [used for each in lowered for used in each.used]
    backends = backends_of(build.recipes, used, f"model `{model.name}`")
    report = ModelReport(
        model=model.name,
        manifest=entry,
        files=packager.files(),
        rows=tuple(row for each in lowered for row in each.rows),
        native=tuple(sorted({path for each in lowered for path in each.files.native})),
        tools=tools_named(backends),
        torch=torch.__version__,
        architecture=architecture_of(build.source),
        backends=backends,
    )
    return report, lowered


def verify_all(build: ModelBuild, lowered: Sequence[LoweredRecipe]) -> None:
    """Compare each packaged recipe with eager."""
    for each in lowered:
        if each.recipe.verify:
            with suspected(build.folder, tuple(each.keys)):
                verify_recipe(
                    build.source, each.recipe, each.files, build.packager, build.settings.seed, build.reporter
                )
                build.packager.refuse_changed(each.files, place_of(build, each.recipe))
                verify_afresh(build, each)
                build.packager.refuse_changed(each.files, place_of(build, each.recipe))


def verify_afresh(build: ModelBuild, lowered: LoweredRecipe) -> None:
    """Compare a packaged recipe with eager in a process that has not run the model's code."""
    if build.fresh is None or build.examples is None:
        return
    source, recipe, packager = build.source, lowered.recipe, build.packager
    examples = build.folder / EXAMPLES
    if not examples.exists():
        write_constants(examples, build.examples[0])
    with stage(build.reporter, "verify", source.name, recipe.name) as describe:
        packaged = Packaged(
            folder=packager.folder,
            plan=packager.source(lowered.files.plan.path),
            constants=packager.source(f"{source.name}/{CONSTANTS}") if lowered.emitted.plan.storages else None,
            imports=recipe.imports,
            examples=examples,
            tolerances={each.name: widened(Tolerance(recipe.rtol, recipe.atol), each) for each in source.methods},
            requirements=requirements_of(build.settings, lowered),
        )
        asked = build.fresh.check(packaged, place_of(build, recipe))
        describe("in a fresh process" if asked else "not in a fresh process: a backend or the model closed its pipes")


def requirements_of(settings: Settings, lowered: LoweredRecipe) -> tuple[str, ...] | None:
    """Return what the wheel requires where a recipe is to run; `None` if the build does not look after it."""
    if settings.dependencies is None or settings.runtime_requirements == "off":
        return None
    return (*settings.dependencies, *describe_recipe(lowered, settings.name).requirements)


def lower_recipe(build: ModelBuild, recipe: Recipe) -> LoweredRecipe:
    """Lower all methods for one recipe, backend by backend, and write its plan, debug map and delegates."""
    source, reporter = build.source, build.reporter
    partitioners = build.partitioners[recipe.name]
    programs: dict[str, ExportedProgram] = {}
    seconds: dict[str, float] = {}
    for method in source.methods:
        begin = time.perf_counter()
        with stage(reporter, "edge", source.name, recipe.name, method.name):
            programs[method.name] = convert(method, partitioners, place_of(build, recipe))
        seconds[method.name] = time.perf_counter() - begin
    rounds: list[dict[str, Lowered]] = []
    lowered_programs = programs
    for name, partitioner in partitioners.items():
        begin = time.perf_counter()
        with stage(reporter, "lower", source.name, recipe.name) as describe:
            with backend_at_work(name, place_of(build, recipe)):
                found = lower_methods(lowered_programs, dict.fromkeys(lowered_programs, partitioner), store=build.store)
            describe(f"{name}: {count_text(found)}")
        for method_name, share in shares_of(found).items():
            seconds[method_name] += share * (time.perf_counter() - begin)
        rounds.append(found)
        lowered_programs = {method: each.program for method, each in found.items()}
    reasons = {method.name: reasons_of(rounds, list(partitioners), method.name) for method in source.methods}
    for method in source.methods:
        if line := line_on_ranges(method, reasons[method.name].values()):
            reporter.report(Event("lower", "note", source.name, recipe.name, method.name, detail=line))
    with stage(reporter, "emit", source.name, recipe.name):
        methods = {
            method.name: LoweredMethod(
                method.name,
                lowered_programs[method.name],
                method.parameters,
                reasons[method.name],
                method.dimensions,
            )
            for method in source.methods
        }
        roots = [Path(entry) for entry in sys.path if entry]
        emitted = emit_program(source.name, methods, roots=roots, digests=build.digests)
        files = build.packager.write_program(recipe.name, emitted)
    for line in dict.fromkeys(traces_of(emitted, machine_words(build.settings.root))):
        build.warn(f"{line}: the wheel depends on where it was built")
    entries = {}
    rows = []
    for name, program in programs.items():
        each = [one[name] for one in rounds]
        entry = MethodEntry(
            nodes=count_operations(program.graph_module),
            delegated=sum(one.delegated for one in each),
            partitions=sum(one.partitions for one in each),
        )
        entries[name] = entry
        rows.append(row_of(source.name, recipe.name, name, entry, each, seconds[name]))
    used = used_backends(module for program in lowered_programs.values() for module in lowered_modules(program))
    keys = merged_keys(one.keys for found in rounds for one in found.values())
    return LoweredRecipe(recipe, emitted, files, entries, tuple(rows), used, keys)


def place_of(build: ModelBuild, recipe: Recipe) -> str:
    """Return where a backend works, for errors."""
    return f"model `{build.source.name}`, recipe `{recipe.name}`"


def partitioner_of(choice: BackendChoice, recipe: Recipe) -> Partitioner:
    """Return the partitioner of a recipe's backend, made with its options."""
    where = f"recipe `{recipe.name}`, backend `{choice.name}`"
    try:
        with backend_at_work(choice.name, where):
            partitioner: object = find_backend(choice.name).partitioner(choice.options)
    except BackendError as error:
        raise BackendError(error.what, where=error.where or where, found=error.found, hint=error.hint) from error
    if not isinstance(partitioner, Partitioner):
        raise BackendError(
            f"the backend `{choice.name}` returned something else than a `Partitioner`",
            where=where,
            found=trim(repr(partitioner)),
            hint="let its classmethod `partitioner(options)` return one",
        )
    return partitioner


def refuse_frozen(store: Store, model: str, found: str) -> None:
    """Refuse to lower what the cache does not hold as a whole, if it is frozen; not even a portable program is new.

    Raises:
        CacheError: if it is.
    """
    if store.mode == "frozen":
        raise CacheError(
            "the cache is frozen and does not hold what this build needs",
            where=f"model `{model}`",
            found=found,
            hint="build once with `HATCH_LOWER_CACHE=on`; `hatch-lower explain` says what changed since the last build",
        )


def refuse_unmet(settings: Settings, recipes: Iterable[Recipe]) -> None:
    """Refuse now what the end of the build would refuse, as far as the recipes tell what their programs will require.

    Raises:
        ConfigError: if the project's dependencies do not imply it.
    """
    if settings.dependencies is None:
        return
    required = {PLAN_READER: None}
    for recipe in recipes:
        for choice in recipe.backends:
            with backend_at_work(choice.name, f"recipe `{recipe.name}`"):
                required.update(dict.fromkeys(find_backend(choice.name).requirements(choice.options)))
    requirements_to_add(settings.runtime_requirements, sorted(required), settings.dependencies)


def convert(method: CapturedMethod, partitioners: Mapping[str, Partitioner], where: str) -> ExportedProgram:
    """Return a method's edge program.

    What one backend wants whole stays whole for all, whichever comes first. Without a backend everything does: torch
    runs it whole, faster and with eager's own numbers.
    """
    if not partitioners:
        everything: Any = default_decompositions()
        return to_edge(method.program, keep=list(everything))
    with backend_at_work("` or `".join(partitioners), f"{where}, method `{method.name}`"):
        wishes = Wishes.of(method.program, list(partitioners.values()))
    return to_edge(wishes.program, keep=wishes.whole, keep_nodes=wishes.some)


def reasons_of(rounds: list[dict[str, Lowered]], backends: list[str], method: str) -> dict[str, str]:
    """Return why operations of a method were not delegated: each backend's reason."""
    reasons: dict[str, list[str]] = {}
    for backend, found in zip(backends, rounds, strict=True):
        for node, reason in found[method].reasons.items():
            reasons.setdefault(node, []).append(f"{backend}: {reason}")
    return {node: "; ".join(each) for node, each in reasons.items()}


def line_on_ranges(method: CapturedMethod, reasons: Iterable[str]) -> str:
    """Return what to write where operations stay outside of delegates because a dynamic size may be 0."""
    count = sum(MAY_BE_ZERO in reason for reason in reasons)
    ranges = {str(symbol): each for symbol, each in method.program.range_constraints.items()}
    wide = {name: ranges[symbol].upper for symbol, name in method.dimensions.items() if ranges[symbol].lower == 0}
    if not count or not wide:
        return ""
    ends = {name: f", max={upper}" if upper.is_finite else "" for name, upper in sorted(wide.items())}
    lines = ", ".join(f'`Dim("{name}", min=1{end})`' for name, end in ends.items())
    operations = "1 operation stays" if count == 1 else f"{count} operations stay"
    return f"{operations} outside of delegates because {MAY_BE_ZERO}; if it never is, write {lines}"


def shares_of(found: Mapping[str, Lowered]) -> dict[str, float]:
    """Return each method's share of the time that lowering all of them took: by the partitions that were built."""
    built = {method: each.partitions - each.reused for method, each in found.items()}
    total = sum(built.values())
    return {method: count / total if total else 1 / len(built) for method, count in built.items()}


def count_text(found: Mapping[str, Lowered]) -> str:
    """Return `3 partitions, 2 reused`."""
    partitions = sum(each.partitions for each in found.values())
    reused = sum(each.reused for each in found.values())
    return f"{partitions} partition{'' if partitions == 1 else 's'}, {reused} reused"


def row_of(
    model: str, recipe: str, method: str, entry: MethodEntry, rounds: list[Lowered], seconds: float
) -> MethodRow:
    """Return a method's row of the summary."""
    blobs: dict[str, int] = {}
    for each in rounds:
        for child in each.program.graph_module.modules():
            if isinstance(child, LoweredBackendModule):
                blobs[sha256_bytes(child.processed_bytes)] = len(child.processed_bytes)
    reused = sum(each.reused for each in rounds)
    return MethodRow(
        model=model,
        recipe=recipe,
        method=method,
        nodes=entry.nodes,
        delegated=entry.delegated,
        partitions=entry.partitions,
        bytes=sum(blobs.values()),
        seconds=seconds,
        reused=reused,
        level=3 if reused == entry.partitions else 0,
    )


def owners_of(recipe: Recipe, project: str) -> set[str]:
    """Return the distributions, beside the project's own, that bring the modules that a recipe imports."""
    if not recipe.imports:
        return set()
    known = importlib.metadata.packages_distributions()
    owners = {normal_name(each) for name in recipe.imports for each in known.get(name.partition(".")[0], ())}
    return owners - {normal_name(project)}


def describe_recipe(lowered: LoweredRecipe, project: str) -> RecipeEntry:
    """Return the manifest's entry of a recipe."""
    plan = lowered.emitted.plan
    return RecipeEntry(
        plan=lowered.files.plan,
        debug=lowered.files.debug,
        delegates=lowered.files.delegates,
        backends=backends_in(plan),
        requirements=tuple(sorted({PLAN_READER, *lowered.emitted.requirements(), *owners_of(lowered.recipe, project)})),
        target=target_in(plan),
        methods=lowered.methods,
        imports=lowered.recipe.imports,
    )
