"""Level 2: the exported graphs are known, so nothing is lowered; runs in the child process.

What the same code lowered before from equal graphs, weights, example inputs and settings is taken from the store. Only
the debug maps are made anew, with the source lines of this export.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import torch
from torch.export import ExportedProgram

import hatch_lower
from hatch_lower.cache.key import ExportKey, NoKeyError
from hatch_lower.cache.reports import REPORT_SCHEMA, report_blobs, report_value, restore_report
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.errors import ProgramError
from hatch_lower.exir.backend.backend_details import CompileSpec
from hatch_lower.exir.backend.identity import backend_record, code_digest, code_of
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.graph.tensors import tensor_digest
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.codec import encode
from hatch_lower.format.debug_map import DEBUG_SCHEMA, DebugMap, read_debug, write_debug
from hatch_lower.format.package import MANIFEST_SCHEMA
from hatch_lower.format.plan import PLAN_SCHEMA
from hatch_lower.format.record import BackendRecord, MethodRecord, ModelReport
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.emit.anchors import Anchors, anchors_of, re_anchor, source_lines
from hatch_lower.pipeline.emit.constants import SpanDigests
from hatch_lower.pipeline.emit.emit import EmittedProgram
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.graph_key import constants_of, describe_method, form_bytes, sharing_of
from hatch_lower.pipeline.package import CONSTANTS_SCHEMA, Packager
from hatch_lower.pipeline.sandbox import backend_at_work

SCHEMA = (PLAN_SCHEMA, DEBUG_SCHEMA, MANIFEST_SCHEMA, CONSTANTS_SCHEMA, REPORT_SCHEMA)


@dataclass(frozen=True, slots=True)
class Export:
    """What is known of an exported model before it is lowered.

    Args:
        key: what the result depends on.
        methods: what each method is.
        programs: method name to program, before decomposition.
        sources: names source files.
    """

    key: ExportKey
    methods: Mapping[str, MethodRecord]
    programs: Mapping[str, ExportedProgram]
    sources: SourceRoots


@dataclass(frozen=True, slots=True)
class Used:
    """A backend that lowered a partition.

    Args:
        backend: its id.
        specs: the options, values in hexadecimal.
    """

    backend: str
    specs: tuple[tuple[str, str], ...]

    def fingerprint(self) -> Mapping[str, str]:
        """Return what the backend says of itself and its tools.

        Raises:
            Exception: whatever a backend raises that cannot work here.
        """
        specs = [CompileSpec(key, bytes.fromhex(value)) for key, value in self.specs]
        with process_restored():
            return find_backend(self.backend).fingerprint(specs)

    def versions(self) -> list[Any]:
        """Return what its result depends on beside the partition: its fingerprint, and its code.

        Raises:
            Exception: whatever a backend raises that cannot work here.
        """
        code = code_of(self.backend, find_backend(self.backend), {})
        return [sorted([name, text] for name, text in self.fingerprint().items()), code]


def describe_export(
    settings: Settings,
    model: ModelSettings,
    source: CapturedModel,
    store: Store,
    digests: SpanDigests,
    examples: tuple[Mapping[str, torch.Tensor], str] | None,
) -> Export:
    """Return what is known of an exported model.

    Args:
        settings: of the build.
        model: the model's own.
        source: the captured model.
        store: keeps the methods' forms.
        digests: of the constants; those that are being hashed already are waited for.
        examples: the tensors among the example inputs and eager's outputs, and a note; `None` if nothing asks for them.

    Raises:
        NoKeyError: if something about the model has no digest.
    """
    recipes = [recipe for recipe in settings.recipes if recipe.name in model.recipes]
    described = [describe_method(method) for method in source.methods]
    programs = {method.name: method.program for method in source.methods}
    sharing = sharing_of(programs.values())
    sources = SourceRoots([Path(entry) for entry in sys.path if entry])
    methods = {}
    state = []
    for method, each in zip(source.methods, described, strict=True):
        held = list(constants_of(method.program))
        contents = digests.digests([tensor.detach() for _, tensor in held])
        form = store.put_blob(form_bytes(method, each.form, source_lines(method.program, sources)))
        names = [name for name, _ in held]
        methods[method.name] = MethodRecord(
            each.graph, each.names, each.examples, dict(zip(names, contents, strict=True)), form
        )
        state.append(digest_of([names, contents]))
    key = ExportKey(
        model=model.name,
        methods=tuple(methods),
        graphs=tuple(each.graph for each in methods.values()),
        names=tuple(each.names for each in methods.values()),
        examples=tuple(each.examples for each in methods.values()),
        state=tuple(state),
        sharing=sharing,
        eager=eager_digest(source, examples),
        recipes=tuple(recipe_row(recipe) for recipe in recipes),
        order=tuple(name for name in settings.recipe_order if name in model.recipes),
        check=settings.check,
        seed=settings.seed,
        tools=tuple(tools_of(recipes)),
        torch=torch.__version__,
        interpreter=platform.python_version(),
        system=f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        code=code_digest(Path(hatch_lower.__file__)),
        schema=SCHEMA,
    )
    return Export(key, methods, programs, sources)


def plain_constants(source: CapturedModel) -> Iterator[torch.Tensor]:
    """Yield the constants that will be packaged, as far as they are plain memory of the CPU."""
    for method in source.methods:
        for _, tensor in constants_of(method.program):
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided:
                yield tensor.detach()


def recipe_row(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as it is in a key."""
    backends = [{"name": choice.name, "options": encode(choice.options)} for choice in recipe.backends]
    return {
        "name": recipe.name,
        "backends": backends,
        "verify": recipe.verify,
        "rtol": recipe.rtol,
        "atol": recipe.atol,
        "imports": list(recipe.imports),
    }


def eager_digest(source: CapturedModel, examples: tuple[Mapping[str, torch.Tensor], str] | None) -> str:
    """Return the sha256 of what eager returns for the example inputs.

    The graphs do not tell all of eager: an operator of the author's own may compute something else than before, and a
    module something else than its export.
    """
    tensors, note = examples if examples is not None else ({}, "not run")
    numbers = {method.name: number for number, method in enumerate(source.methods)}
    outputs = []
    for name, tensor in tensors.items():
        method, _, leaf = name.partition("/")
        outputs.append([numbers[method], leaf, tensor_digest(tensor)])
    called = [source.attributes.get(method.name) for method in source.methods]
    return digest_of([source.eager is not None, called, note, outputs])


def tools_of(recipes: Iterable[Recipe]) -> Iterator[tuple[str, str]]:
    """Yield the version, and a digest of the code, of each backend that a recipe names."""
    known: dict[Path, str] = {}
    for name in dict.fromkeys(choice.name for recipe in recipes for choice in recipe.backends):
        yield f"backend {name}", code_of(name, find_backend(name), known)


def backends_of(recipes: Iterable[Recipe], used: Iterable[Used], where: str) -> tuple[BackendRecord, ...]:
    """Return what is recorded of the backends that recipes name, and of those that lowered partitions for them.

    Raises:
        BackendError: if a backend that has told its fingerprint before does so no more.
    """
    fingerprints: dict[str, dict[str, str]] = {choice.name: {} for recipe in recipes for choice in recipe.backends}
    for each in dict.fromkeys(used):
        with backend_at_work(each.backend, where):
            fingerprints.setdefault(each.backend, {}).update(each.fingerprint())
    return tuple(backend_record(name, fingerprint) for name, fingerprint in sorted(fingerprints.items()))


def used_backends(modules: Iterable[LoweredBackendModule]) -> tuple[Used, ...]:
    """Return which backends lowered partitions, with which options."""
    found = [
        Used(each.backend_id, tuple((spec.key, spec.value.hex()) for spec in each.compile_specs)) for each in modules
    ]
    return tuple(dict.fromkeys(found))


# looking up and keeping


def find_report(store: Store, export: Export, packager: Packager) -> ModelReport | None:
    """Return the report of an earlier build of the same export, with the source lines of this one.

    Args:
        store: where it is.
        export: what was exported.
        packager: writes the new debug maps.

    Returns:
        `None` if there is none, or a backend has changed.
    """
    value = store.find(export.key.digest())
    if value is None or not {"used", "report", "anchors"} <= value.keys() or not is_current(value["used"]):
        return None
    report = restore_report(store, value["report"], level=2)
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
        fresh = re_anchor(debug, read_anchors(value["anchors"][name]), export.programs, export.sources)
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


def is_current(used: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether all backends would still shape their blobs as they did."""
    found = [
        (Used(each["backend"], tuple((key, value) for key, value in each["specs"])), each["versions"]) for each in used
    ]
    try:
        return all(backend.versions() == versions for backend, versions in found)
    except Exception:  # lowering will say what is wrong with the backend
        return False


def keep_report(
    store: Store,
    export: Export,
    report: ModelReport,
    emitted: Mapping[str, EmittedProgram],
    used: Iterable[Used],
) -> str:
    """Store what lowering an export came to, if a later build could make its debug maps from another export.

    Args:
        store: gets it.
        export: what was exported.
        report: what it came to.
        emitted: recipe to emitted program.
        used: the backends that lowered partitions.

    Returns:
        Why it was not stored; empty if it was, or the store is not written.
    """
    if not store.writes:
        return ""
    anchors: dict[str, Anchors] = {}
    for recipe, each in emitted.items():
        anchors[recipe] = anchors_of(each.nodes, export.programs)
        if re_anchor(each.debug, anchors[recipe], export.programs, export.sources) != each.debug:
            return f"the source lines of the recipe `{recipe}` do not follow from its exported graphs"
        if reason := line_in_reasons(each.debug):
            return f"a backend's reason names a source line: {reason}"
    value = report_value(store, report)
    if value is None:
        return ""
    try:
        backends = [
            {"backend": each.backend, "specs": [list(spec) for spec in each.specs], "versions": each.versions()}
            for each in used
        ]
    except NoKeyError as error:
        return str(error)
    stored = {
        "report": value,
        "anchors": {recipe: write_anchors(each) for recipe, each in anchors.items()},
        "used": backends,
    }
    components = {"kind": "export", "subject": report.model, **export.key.components()}
    store.put(export.key.digest(), components, stored, report_blobs(value))
    return ""


def line_in_reasons(debug: DebugMap) -> str:
    """Return a reason that names a file of the model's source: it would be stale when lines move."""
    for method in debug.methods.values():
        files = {PurePath(origin.source.rpartition(":")[0]).name for origin in method.handles.values()} - {""}
        for node in method.undelegated:
            if any(name in node.reason for name in files):
                return node.reason
    return ""


def write_anchors(anchors: Anchors) -> dict[str, list[list[int | None]]]:
    """Return anchors as JSON."""
    return {name: [[handle, position] for handle, position in each.items()] for name, each in anchors.items()}


def read_anchors(value: Mapping[str, Any]) -> Anchors:
    """Return the anchors that `write_anchors` wrote."""
    return {name: dict(each) for name, each in value.items()}
