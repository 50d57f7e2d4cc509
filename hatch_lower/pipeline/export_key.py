"""The `ExportKey` of an exported model, computed in the child process before lowering."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch.export import ExportedProgram

import hatch_lower
from hatch_lower.cache.key import ExportKey, NoKeyError
from hatch_lower.cache.reports import REPORT_SCHEMA
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import IN_A_FILE
from hatch_lower.events import Event, Reporter
from hatch_lower.exir.backend.registry import backend_code, backend_record, code_digest, find_backend
from hatch_lower.exir.graph.tensors import is_plain_tensor, tensor_digest
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.format.codec import encode
from hatch_lower.format.debug_map import DEBUG_SCHEMA
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.plan import PLAN_SCHEMA
from hatch_lower.format.record import FORMS, BackendRecord, MethodRecord, ModelReport
from hatch_lower.format.results import MANIFEST_SCHEMA
from hatch_lower.format.weights import WEIGHTS_SCHEMA
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.emit.constants import SpanDigests
from hatch_lower.pipeline.emit.sources import SourceRoots, source_lines
from hatch_lower.pipeline.graph_key import describe_method, form_bytes, named_constants, sharing_of
from hatch_lower.pipeline.model_build import BuildInputs, ConvertedModel, UsedBackend, is_gated
from hatch_lower.pipeline.package import CONSTANTS_SCHEMA
from hatch_lower.pipeline.sandbox import backend_guard

BACKEND = "backend"  # prefix of backends' names in `ExportKey.tools`
SCHEMA = (PLAN_SCHEMA, DEBUG_SCHEMA, MANIFEST_SCHEMA, CONSTANTS_SCHEMA, REPORT_SCHEMA, WEIGHTS_SCHEMA)


class Export(Frozen):
    key: ExportKey
    methods: Mapping[str, MethodRecord]
    programs: Mapping[str, ExportedProgram]  # method name to program, before decomposition
    sources: SourceRoots
    # the same by recipe, for recipes with a precision other than float32
    converted: Mapping[str, Mapping[str, ExportedProgram]]

    def programs_of(self, recipe: str) -> Mapping[str, ExportedProgram]:
        return self.converted.get(recipe, self.programs)


def describe_export(inputs: BuildInputs, store: Store, digests: SpanDigests) -> Export:
    """Return the key and the digests of an exported model."""
    settings, model, source = inputs.settings, inputs.model, inputs.source
    described = [describe_method(method) for method in source.methods]
    programs = {method.name: method.program for method in source.methods}
    sharing = sharing_of(programs.values())
    sources = SourceRoots([Path(entry) for entry in sys.path if entry])
    methods = {}
    state = []
    for method, exported in zip(source.methods, described, strict=True):
        held = list(named_constants(method.program))
        contents = digests.digests([tensor.detach() for _, tensor in held])
        form = store.put_blob(form_bytes(method, exported.form, source_lines(method.program, sources)))
        names = [name for name, _ in held]
        methods[method.name] = MethodRecord(
            exported.graph, exported.names, exported.examples, dict(zip(names, contents, strict=True)), form
        )
        state.append(digest_of([names, contents]))
    key = ExportKey(
        model=model.name,
        methods=tuple(methods),
        graphs=tuple(method.graph for method in methods.values()),
        names=tuple(method.names for method in methods.values()),
        examples=tuple(method.examples for method in methods.values()),
        state=tuple(state),
        sharing=sharing,
        eager=eager_digest(source, inputs.examples),
        recipes=tuple(recipe_row(model, recipe) for recipe in inputs.recipes),
        check=settings.check_bytes,
        weights=(
            ((IN_A_FILE, settings.name),)
            if model.weights == (IN_A_FILE,)
            else tuple((file.url, file.sha256) for file in inputs.sources)
        ),
        samples=tuple((name, each.source, each.digest()) for name, each in sorted(inputs.real.items())),
        converted=tuple((name, converted_digest(model, digests)) for name, model in inputs.converted.items()),
        tools=tuple(code_versions(inputs.recipes)),
        torch=torch.__version__,
        interpreter=platform.python_version(),
        system=f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        code=code_digest(Path(hatch_lower.__file__)),
        schema=SCHEMA,
    )
    converted = {
        name: {method.name: method.program for method in model.source.methods}
        for name, model in inputs.converted.items()
    }
    return Export(key, methods, programs, sources, converted)


def converted_digest(model: ConvertedModel, digests: SpanDigests) -> str:
    """Return a digest of all that a model in another precision adds to a result."""
    methods = []
    for method in model.source.methods:
        described, held = describe_method(method), dict(named_constants(method.program))
        contents = digests.digests([tensor.detach() for tensor in held.values()])
        methods.append([method.name, described.graph, described.names, list(held), contents])
    sharing = sharing_of(method.program for method in model.source.methods)
    return digest_of([methods, sharing, eager_digest(model.source, model.examples)])


def recipe_row(model: ModelSettings, recipe: Recipe) -> Mapping[str, object]:
    # the limit of the gate changes no program; each build applies the limit
    row = {name: value for name, value in encode(recipe).items() if name != "max_drop"}
    return {**row, "gated": is_gated(model, recipe)}


def recipe_exports(key: ExportKey, inputs: BuildInputs) -> dict[str, ExportKey]:
    """Return, by recipe, the model's key for a build of that recipe alone."""
    not_run = eager_digest(inputs.source, None)
    exports = {}
    for recipe in inputs.recipes:
        tools = {f"{BACKEND} {choice.name}" for choice in recipe.backends}
        exports[recipe.name] = replace(
            key,
            recipes=(recipe_row(inputs.model, recipe),),
            converted=tuple(row for row in key.converted if row[0] == recipe.name),
            tools=tuple(tool for tool in key.tools if tool[0] in tools),
            # if no setting needs eager's results, the model is not run, and real inputs are not read
            eager=key.eager if key.check or recipe.verify else not_run,
            samples=key.samples if recipe.verify else (),
        )
    return exports


def plain_constants(source: CapturedModel) -> Iterator[torch.Tensor]:
    for method in source.methods:
        yield from (tensor.detach() for _, tensor in named_constants(method.program) if is_plain_tensor(tensor))


def eager_digest(source: CapturedModel, examples: tuple[Mapping[str, torch.Tensor], str] | None) -> str:
    # The graphs do not determine eager's results: a custom operator may have changed, and a module may compute other
    # numbers than its export.
    tensors, note = examples if examples is not None else ({}, "not run")
    numbers = {method.name: number for number, method in enumerate(source.methods)}
    outputs = []
    for name, tensor in tensors.items():
        method, _, leaf = name.partition("/")
        outputs.append([numbers[method], leaf, tensor_digest(tensor)])
    called = [source.attributes.get(method.name) for method in source.methods]
    return digest_of([source.eager is not None, called, note, outputs])


def code_versions(recipes: Iterable[Recipe]) -> Iterator[tuple[str, str]]:
    known: dict[Path, str] = {}
    for name in dict.fromkeys(choice.name for recipe in recipes for choice in recipe.backends):
        yield f"{BACKEND} {name}", backend_code(name, find_backend(name), known)


def backend_records(recipes: Iterable[Recipe], used: Iterable[UsedBackend], where: str) -> tuple[BackendRecord, ...]:
    # backends of recipes, and backends that lowered partitions: a partitioner may name another backend
    fingerprints: dict[str, dict[str, str]] = {choice.name: {} for recipe in recipes for choice in recipe.backends}
    for backend in dict.fromkeys(used):
        with backend_guard(backend.backend, where):
            fingerprints.setdefault(backend.backend, {}).update(backend.fingerprint())
    return tuple(backend_record(name, fingerprint) for name, fingerprint in sorted(fingerprints.items()))


def used_backends(modules: Iterable[LoweredBackendModule]) -> tuple[UsedBackend, ...]:
    used = (
        UsedBackend(module.backend_id, tuple((spec.key, spec.value.hex()) for spec in module.compile_specs))
        for module in modules
    )
    return tuple(dict.fromkeys(used))


def capture_report(
    settings: Settings, model: ModelSettings, source: CapturedModel, folder: Path, reporter: Reporter
) -> ModelReport:
    """Return a report of the exported methods, for the audit; without methods if part of a method has no digest."""

    def note(line: str) -> None:
        reporter.report(Event("audit", "note", model.name, detail=line))

    report = ModelReport(model.name, ModelEntry((), None, None, {}), files=(), torch=torch.__version__)
    try:
        export = describe_export(BuildInputs(settings, model, source), Store(folder / FORMS, "on", note), SpanDigests())
    except NoKeyError as error:
        note(f"the export cannot be compared: {error}")
        return report
    return replace(report, methods=export.methods, key=encode(export.key.components()))
