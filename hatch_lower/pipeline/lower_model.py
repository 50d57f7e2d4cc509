"""Lower a model, from its exported methods to the files in the wheel; runs in the child process.

```text
start_build       options of the backends, example inputs, eager's results: the inputs of all functions below
lower_model       find an earlier result (`reuse`) -> lower and verify -> keep the result (`reuse`) -> measure (`gate`)
make_recipes      the same without files: a build elsewhere joins the recipes
find_wrong        a lowered recipe -> the first wrong operation (`localize`)
lower_verified    lower_recipes -> verify_recipes; a failed comparison leads to another attempt (`heal`)
lower_recipes     each recipe, then the constants and the check data that all recipes share
lower_recipe      decompose and compile (`lower`) -> emit_recipe -> summary rows
```
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import IN_A_FILE
from hatch_lower.errors import VerificationError
from hatch_lower.events import Event, Reporter, stage
from hatch_lower.exir.backend.backend_api import DelegatedMethod, merged_keys
from hatch_lower.exir.backend.registry import tools_named
from hatch_lower.exir.graph.surgery import count_operations
from hatch_lower.exir.lowered_backend_module import lowered_modules
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.constants import CHECK
from hatch_lower.format.manifest import FileEntry, MethodEntry, ModelEntry
from hatch_lower.format.plan import Plan
from hatch_lower.format.record import ModelReport, VerifiedMethod, WeightsRecord
from hatch_lower.format.results import MethodRow
from hatch_lower.pipeline.architecture import architecture_of
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.check_data import Tensors, count_bytes, example_tensors, limited, outputs_in_precision
from hatch_lower.pipeline.checkpoint import LocalSource
from hatch_lower.pipeline.eager import eager_factory, training_note
from hatch_lower.pipeline.emit.arguments import with_details
from hatch_lower.pipeline.emit.constants import NamedStorage, SpanDigests, constants_bytes, merge_storages
from hatch_lower.pipeline.emit.delegates import bytes_in_own_layout, names_in_constants
from hatch_lower.pipeline.emit.emit import EmittedProgram, MethodToEmit, emit_program, machine_words, traces_of
from hatch_lower.pipeline.emit.outside import find_outside, kept_bytes
from hatch_lower.pipeline.emit.sources import anchors_of
from hatch_lower.pipeline.export_key import backend_records, plain_constants, used_backends
from hatch_lower.pipeline.fresh_process import FreshProcess
from hatch_lower.pipeline.gate import gate_model
from hatch_lower.pipeline.heal import Attempt, first_attempt, localize_model, next_attempt, recipe_to_localize
from hatch_lower.pipeline.localize.finding import Findings, Localization
from hatch_lower.pipeline.lower import lower_for_recipe
from hatch_lower.pipeline.model_build import BuildInputs, BuiltRecipe, LoweredModel, Services, place_of
from hatch_lower.pipeline.output_order import Layouts, in_eagers_order, note_layouts
from hatch_lower.pipeline.package import Packager
from hatch_lower.pipeline.precision.convert import convert_recipes
from hatch_lower.pipeline.real_inputs import RealInputs, read_real_inputs
from hatch_lower.pipeline.recipes import device_of, partitioner_of, recipe_entry, refuse_torch, refuse_unmet
from hatch_lower.pipeline.reuse import KnownRecipes, find_export, find_recipes, keep_export, keep_made, share_recipes
from hatch_lower.pipeline.verify import InterpretedError, UncomparableError, verify_recipes


def lower_model(inputs: BuildInputs, services: Services) -> ModelReport:
    """Return the report of an exported model, which an earlier build or this build has lowered and verified."""
    with find_export(inputs, services) as found:
        report = found.report
        if report is None:
            lowered, recipes = lower_verified(inputs, services, found.known)
            report = keep_export(services, found, lowered, recipes)
    return gate_model(inputs, services, report)


def make_recipes(inputs: BuildInputs, services: Services) -> tuple[ModelReport, Mapping[str, str]]:
    """Lower and verify a model's recipes for a build elsewhere that joins the recipes; return the records' keys."""
    # the report has no files: the build that joins the recipes writes files
    report = ModelReport(inputs.model.name, ModelEntry((), None, None, {}), files=(), torch=torch.__version__)
    made: list[str] = []
    with find_recipes(inputs, services) as found:
        missing = [recipe.name for recipe in inputs.recipes if recipe.name not in found.known.records]
        if missing:
            narrowed = replace(inputs.model, recipes=tuple(missing))
            lowered, recipes = lower_verified(replace(inputs, model=narrowed), services, KnownRecipes())
            made = keep_made(services, found, lowered, recipes)
            report = replace(report, rows=lowered.rows, verified=lowered.verified)
    return report, share_recipes(services.store, found.known, made)


def find_wrong(inputs: BuildInputs, services: Services, wanted: Localization) -> Findings:
    """Lower a model for a recipe, through the cache, and search its methods until a wrong method is found."""
    lowered = lower_recipe(inputs, services, recipe_to_localize(inputs, wanted), Attempt())
    return localize_model(inputs, services, lowered, wanted)


def lower_verified(inputs: BuildInputs, services: Services, known: KnownRecipes) -> LoweredModel:
    """Lower a model's recipes and compare with eager, until an attempt succeeds or `next_attempt` raises the error."""
    attempt = first_attempt(services, known)
    while True:
        report, recipes = lower_recipes(inputs, services, attempt)
        unknown = [lowered for lowered in recipes if not attempt.known.is_known(lowered)]
        try:
            comparison = verify_recipes(inputs, services, unknown)
        except (UncomparableError, InterpretedError):
            raise  # no other lowering has another device, or names the kernels at fault
        except VerificationError as error:
            attempt = next_attempt(inputs, services, attempt, recipes, error)
            # a library that this process has loaded must not be written again
            again = Packager(services.folder / f"again{attempt.number}", inputs.model.name, services.store)
            services = replace(services, packager=again)
        else:
            order = [lowered.recipe.name for lowered in recipes]
            verified = [*comparison.methods, *attempt.known.verified(recipes)]
            verified.sort(key=lambda method: order.index(method.recipe))
            reasons = {**attempt.known.reasons(recipes), **comparison.reasons}
            return with_comparisons(report, verified, reasons), recipes


def with_comparisons(
    report: ModelReport, verified: Iterable[VerifiedMethod], reasons: Mapping[str, str]
) -> ModelReport:
    """Return the report with compared methods, and by recipe the reason why the recipe is not compared, or empty."""
    recipes = {
        name: replace(entry, not_compared=reasons.get(name, "")) for name, entry in report.manifest.recipes.items()
    }
    return replace(
        report,
        manifest=replace(report.manifest, recipes=recipes),
        rows=tuple(replace(row, not_compared=reasons.get(row.recipe, "")) for row in report.rows),
        verified=tuple(verified),
    )


def start_build(
    settings: Settings,
    model: ModelSettings,
    source: CapturedModel,
    folder: Path,
    reporter: Reporter,
    store: Store,
    fresh: FreshProcess | None = None,
    sources: Sequence[LocalSource] = (),
) -> tuple[BuildInputs, Services]:
    """Return the inputs and the services of an exported model's lowering; the model's files go below `folder`."""
    # Without `fresh`, a process that has not run the model's code, the programs run in this process only. Weights in
    # `sources` are left out of the wheel.
    digests = SpanDigests()
    digests.start(plain_constants(source))  # in other threads, while the model is called
    recipes = tuple(recipe for recipe in settings.recipes if recipe.name in model.recipes)
    partitioners = {
        recipe.name: {choice.name: partitioner_of(choice, recipe) for choice in recipe.backends} for recipe in recipes
    }
    for recipe in recipes:  # backends of different devices are refused before lowering
        device_of(recipe.backends, f"recipe `{recipe.name}`")
    refuse_unmet(settings, recipes)
    verified = any(recipe.verify for recipe in recipes)
    # all recipes of the project decide: a recipe that is lowered alone gets the same graph as among the others
    compared = bool(settings.check_bytes) or any(recipe.verify for recipe in settings.recipes)
    layouts: dict[str, Layouts] = {}
    with process_restored():  # the model is called
        examples = example_tensors(source, partial(note_layouts, layouts)) if compared else None
        source = in_eagers_order(source, layouts)
    for method in source.methods:
        if note := training_note(method.program):
            reporter.report(Event("export", "note", model.name, method=method.name, detail=note))
    real: Mapping[str, RealInputs] = {}
    if verified and model.verify_inputs:
        with stage(reporter, "inputs", model.name) as describe:
            real = read_real_inputs(model, source, settings.root)
            describe(", ".join(f"{len(each.cases)} of `{name}`" for name, each in real.items()))
    elif model.verify_inputs:
        unused = "`verify-inputs` are not used: `verify` is false for every recipe of the model"
        reporter.report(Event("inputs", "note", model.name, detail=unused))
    converted = convert_recipes(settings, model, recipes, source, reporter, examples=examples)
    inputs = BuildInputs(settings, model, source, partitioners, examples, tuple(sources), real, converted)
    return inputs, Services(store, folder, Packager(folder, model.name, store), digests, reporter, fresh)


def lower_recipes(inputs: BuildInputs, services: Services, attempt: Attempt) -> LoweredModel:
    model, packager = inputs.model, services.packager
    if any(recipe.verify for recipe in inputs.recipes):
        eager_factory(inputs.source, inputs.source.methods[0])()  # raises now if the module cannot be copied
    recipes = [lower_recipe(inputs, services, recipe, attempt) for recipe in inputs.recipes]
    plans = [lowered.emitted.plan for lowered in recipes]
    with stage(services.reporter, "package", model.name) as describe:
        storages = merge_storages(lowered.emitted.storages for lowered in recipes)
        names = names_in_constants((lowered.emitted.plan, lowered.emitted.storages) for lowered in recipes)
        weights, inside, outside = write_outside(inputs, packager, plans, storages, names)
        constants = packager.write_storages(inside, names)
        describe(f"constants: {constants_text(constants, bytes_in_own_layout(plans), outside)}")
    entry = ModelEntry(
        order=tuple(name for name in inputs.settings.recipe_order if name in model.recipes),
        constants=constants,
        check=write_check_data(inputs, services),
        recipes={lowered.recipe.name: recipe_entry(lowered, inputs.settings.name) for lowered in recipes},
        weights=weights,
    )
    used = [backend for lowered in recipes for backend in lowered.used]
    backends = backend_records(inputs.recipes, used, f"model `{model.name}`")
    report = ModelReport(
        model=model.name,
        manifest=entry,
        files=packager.files(),
        rows=tuple(row for lowered in recipes for row in lowered.rows),
        native=tuple(sorted({path for lowered in recipes for path in lowered.files.native})),
        tools=tools_named(backends),
        torch=torch.__version__,
        architecture=architecture_of(inputs.source),
        backends=backends,
        outside=outside,
        beside=packager.beside,
    )
    return report, recipes


def write_outside(
    inputs: BuildInputs, packager: Packager, plans: Sequence[Plan], storages: Tensors, names: Mapping[str, NamedStorage]
) -> tuple[FileEntry | None, Tensors, WeightsRecord | None]:
    """Write `weights.json` for storages outside the wheel; return its entry, the storages inside, and byte counts."""
    if not inputs.model.weights:
        return None, storages, None
    read_there = {named.key for named in names.values()}
    movable = {key: tensor for key, tensor in storages.items() if key not in read_there}
    sources, in_a_file = inputs.sources, inputs.model.weights == (IN_A_FILE,)
    if in_a_file:
        sources = (packager.write_beside(movable, inputs.settings.name),) if movable else ()
    found = find_outside(movable, sources)
    inside = {key: tensor for key, tensor in storages.items() if key not in found.weights.spans}
    record = WeightsRecord(
        files=len(found.weights.sources),
        outside=sum(span.end - span.begin for span in found.weights.spans.values()),
        copied=found.copied,
        kept=kept_bytes(inside, plans, () if in_a_file else sources),
    )
    return packager.write_weights(found.weights, sources), inside, record


def constants_text(file: FileEntry | None, own: Mapping[str, int], outside: WeightsRecord | None) -> str:
    more = [f"{count:,} only for `{backend}`, which has a layout of its own" for backend, count in own.items()]
    if outside is not None:
        more.append(f"{outside.outside:,} outside the wheel")
    return "; ".join(["none" if file is None else f"{file.size:,} bytes", *more])


def lower_recipe(inputs: BuildInputs, services: Services, recipe: Recipe, attempt: Attempt) -> BuiltRecipe:
    """Lower all methods for a recipe, and write the plan, the debug map and the delegates."""
    model, settings, packager = inputs.model.name, inputs.settings, services.packager
    lowering = lower_for_recipe(inputs, services, recipe, attempt)
    lowered, seconds = lowering.methods, lowering.seconds
    with stage(services.reporter, "package", model, recipe.name):
        emitted = emit_recipe(inputs.source_of(recipe), services.digests, lowered.methods)
        if recipe.name in settings.torch_free:
            refuse_torch(place_of(model, recipe), emitted.plan, emitted.debug, recipe.imports, emitted.requirements())
        files = packager.write_program(recipe.name, emitted)
    for line in dict.fromkeys(traces_of(emitted, machine_words(settings.root))):
        services.warn(f"{line}: the wheel depends on where it was built")
    entries, rows = {}, []
    for name, method in lowered.methods.items():
        nodes, left_out = count_operations(lowered.edge[name].graph_module), lowering.left_out.get(name, ())
        entries[name] = MethodEntry(nodes, method.delegated, method.partitions, left_out)
        rows.append(summary_row(model, recipe.name, name, entries[name], method, seconds[name]))
    modules = (module for method in lowered.methods.values() for module in lowered_modules(method.program))
    keys = merged_keys(method.keys for method in lowered.methods.values())
    programs = {name: method.program for name, method in lowered.methods.items()}
    return BuiltRecipe(recipe, emitted, files, entries, tuple(rows), used_backends(modules), keys, programs, lowering)


def emit_recipe(source: CapturedModel, digests: SpanDigests, lowered: Mapping[str, DelegatedMethod]) -> EmittedProgram:
    methods = {}
    for method in source.methods:
        name, own = method.name, lowered[method.name]
        methods[name] = MethodToEmit(name, own.program, method.parameters, own.reasons, method.dimensions)
    roots = [Path(entry) for entry in sys.path if entry]
    emitted = emit_program(source.name, methods, roots=roots, digests=digests)
    exported = {method.name: method.program for method in source.methods}
    labels = {name: method.dimensions for name, method in methods.items()}
    anchors = anchors_of(emitted.nodes, exported)
    return replace(emitted, debug=with_details(emitted.debug, anchors, exported, labels))


def write_check_data(inputs: BuildInputs, services: Services) -> FileEntry | None:
    if not inputs.settings.check_bytes or inputs.examples is None:
        return None
    found, note = inputs.examples
    tensors, lines = limited(inputs.source, found, inputs.settings.check_bytes)
    for name, converted in inputs.converted.items():
        room = inputs.settings.check_bytes - count_bytes(tensors)
        with process_restored():  # the model is called
            outputs, line = outputs_in_precision(converted.source, name, tensors, room)
        tensors |= outputs
        lines += [line] if line else []
    for line in [note] if note else lines:
        services.warn(line)
    return services.packager.write(CHECK, constants_bytes(tensors)) if tensors else None


def summary_row(
    model: str, recipe: str, method: str, entry: MethodEntry, lowered: DelegatedMethod, seconds: float
) -> MethodRow:
    blobs = [module.processed_bytes for module in lowered_modules(lowered.program)]
    return MethodRow(
        model=model,
        recipe=recipe,
        method=method,
        nodes=entry.nodes,
        delegated=entry.delegated,
        partitions=entry.partitions,
        bytes=sum({sha256_bytes(blob): len(blob) for blob in blobs}.values()),
        seconds=seconds,
        reused=lowered.reused,
        level=3 if lowered.reused == entry.partitions else 0,
    )
