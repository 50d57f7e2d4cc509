"""The gate: the metric of eager and of each packaged recipe, and the error for a recipe that has lost too much.

Eager is measured in the build's process, whose reads are inputs of the export. A recipe is measured in a process that
has not run the model's code, from its packaged files. Numbers hold as long as all recorded inputs are unchanged: after
an export every recipe is measured again, also a recipe from the cache, because the metric's code or data may differ.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hatch_lower.config.settings import ModelSettings, Recipe
from hatch_lower.errors import LowerError, VerificationError
from hatch_lower.events import Event, stage
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.manifest import MetricEntry
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import metric_text
from hatch_lower.format.weights import read_weights
from hatch_lower.pipeline.checkpoint import OutsideFiles
from hatch_lower.pipeline.fresh_process import Packaged
from hatch_lower.pipeline.metric import drop_of, is_too_low, metric_of
from hatch_lower.pipeline.metric_process import MeasuredRecipe, measure_apart, measure_here
from hatch_lower.pipeline.model_build import BuildInputs, Services, place_of
from hatch_lower.runtime.numbers import Tolerance


class GateError(VerificationError):
    """The metric of a recipe is lower than eager's by more than `max-drop`."""


def gate_model(inputs: BuildInputs, services: Services, report: ModelReport) -> ModelReport:
    """Return the report with the metric of each recipe; raise `GateError` for recipes that have lost too much."""
    if not inputs.model.metric:
        return report
    gated = []
    for recipe in inputs.recipes:
        if reason := report.manifest.recipes[recipe.name].not_compared:
            line = f"`{inputs.model.metric}` does not measure the recipe: {reason}"
            services.reporter.report(Event("gate", "note", inputs.model.name, recipe.name, detail=line))
        else:
            gated.append(recipe)
    if not gated:
        return report
    place = f"model `{inputs.model.name}`, eager"
    with stage(services.reporter, "metric", inputs.model.name) as describe, with_place(place):
        eager = metric_of(inputs, inputs.source)
        describe(f"{inputs.model.metric} of eager: {eager:.6g}")
    entries = {recipe.name: gate_recipe(inputs, services, report, recipe, eager) for recipe in gated}
    refuse_drops(inputs, entries)
    recipes = {name: replace(entry, metric=entries.get(name)) for name, entry in report.manifest.recipes.items()}
    return replace(report, manifest=replace(report.manifest, recipes=recipes))


def gate_recipe(
    inputs: BuildInputs, services: Services, report: ModelReport, recipe: Recipe, eager: float
) -> MetricEntry:
    model, place = inputs.model, place_of(inputs.model.name, recipe)
    limit = model.max_drop if recipe.max_drop is None else recipe.max_drop
    with stage(services.reporter, "gate", model.name, recipe.name) as describe:
        packaged = packaged_again(inputs, services, report, recipe)
        measured = MeasuredRecipe(
            packaged, model.name, recipe.name, report.manifest.order, model.metric, inputs.settings.root
        )
        spare = services.fresh.spare if services.fresh is not None else None
        with with_place(place):
            if spare is not None and spare.is_open:
                value = measure_apart(spare, measured, services.drawn)
            else:
                with process_restored():
                    value = measure_here(measured)
        describe(f"{model.metric}: {metric_text(value, eager)}, allowed drop {limit:g}")
    return MetricEntry(model.metric, value, eager, limit)


@contextmanager
def with_place(place: str) -> Iterator[None]:
    """Name the measured model in errors of the block."""
    try:
        yield
    except LowerError as error:
        where = ", ".join(filter(None, (place, error.where)))
        raise type(error)(error.what, where=where, found=error.found, hint=error.hint) from error


def packaged_again(inputs: BuildInputs, services: Services, report: ModelReport, recipe: Recipe) -> Packaged:
    """Return the files of a recipe in a report; files that lie elsewhere than in the wheel are copied."""
    manifest, entry = report.manifest, report.manifest.recipes[recipe.name]
    sources = {file.path: file.source for file in report.files}
    files = {file.path: sources[file.path] for file in (entry.plan, *entry.delegates)}
    folder = folder_of(files)
    if folder is None:
        folder = services.folder / "measured"
        for path, source in files.items():
            if not (target := folder / path).exists():  # recipes share delegates
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    outside = None
    if manifest.weights is not None:
        weights = sources[manifest.weights.path]
        known = {source.url: source.path for source in inputs.sources}
        known |= {file.path: file.source for file in report.beside}
        listed = read_weights(weights.read_bytes(), weights.name).sources
        outside = OutsideFiles(weights, tuple(known[source.url] for source in listed))
    return Packaged(
        folder=folder,
        plan=folder / entry.plan.path,
        constants=None if manifest.constants is None else sources[manifest.constants.path],
        imports=entry.imports,
        examples=folder,  # a metric has inputs of its own
        methods=tuple(entry.methods),
        tolerance=Tolerance(),
        outside=outside,
        device=entry.device,
    )


def folder_of(files: Mapping[str, Path]) -> Path | None:
    """Return the folder below which files lie by their paths in the wheel, or `None`."""
    folders = {
        Path(source.as_posix().removesuffix(path)) if source.as_posix().endswith(f"/{path}") else None
        for path, source in files.items()
    }
    return folders.pop() if len(folders) == 1 else None


def refuse_drops(inputs: BuildInputs, entries: Mapping[str, MetricEntry]) -> None:
    lines = {
        name: f"recipe `{name}`: {entry.value:.6g}, eager {entry.eager:.6g}: a drop of"
        f" {drop_of(entry.value, entry.eager):.3g}; `max-drop` is {entry.max_drop:g}"
        for name, entry in entries.items()
        if is_too_low(entry.value, entry.eager, entry.max_drop)
    }
    if not lines:
        return
    failed = [recipe for recipe in inputs.recipes if recipe.name in lines]
    raise GateError(
        "the metric of a packaged recipe is lower than eager's by more than `max-drop`",
        where=f"model `{inputs.model.name}`, `metric = {inputs.model.metric}`",
        found="\n".join(lines.values()),
        hint=drop_advice(inputs.model, failed),
    )


def drop_advice(model: ModelSettings, failed: Sequence[Recipe]) -> str:
    """Return the next steps for recipes whose metric is too low; a recipe in float32 has a fault and comes first."""
    if any(recipe.precision == "float32" for recipe in failed):
        steps = [
            "on the inputs of the metric the program computes other numbers than eager: name some of these inputs in"
            f" `verify-inputs`, and `hatch-lower localize {model.name}` finds the first wrong operation"
        ]
    else:
        command = f"hatch-lower precision {model.name} --recipe {failed[0].name} --write"
        steps = [f"let `{command}` find the layers that must stay in float32; or write a higher precision"]
        if any(recipe.precision == "int8" for recipe in failed):
            more = "more, or more typical," if model.calibrate else "typical"
            steps.insert(0, f"name {more} inputs in `calibrate`")
    return "; ".join([*steps, "if the loss is acceptable, raise `max-drop` of the model or of the recipe"])
