"""Save a lowered program as a folder for `hatch_lower.load`, without a project and a wheel."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import ExportedProgram

from hatch_lower import __version__
from hatch_lower.cache.store import open_store
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import PackageError
from hatch_lower.exir.graph.surgery import count_operations
from hatch_lower.exir.lowered_backend_module import lowered_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import LoweredProgram
from hatch_lower.format.manifest import Manifest, MethodEntry, ModelEntry, RecipeEntry, write_manifest
from hatch_lower.pipeline.capture import capture_program
from hatch_lower.pipeline.emit.delegates import names_in_constants
from hatch_lower.pipeline.emit.emit import MethodToEmit, emit_program
from hatch_lower.pipeline.package import Packager
from hatch_lower.pipeline.recipes import device_of

RECIPE = "default"


def save_program(lowered: LoweredProgram, folder: Path, *, model: str = "model") -> Path:
    """Write the result of `EdgeProgramManager.to_executorch` into a new or empty folder, like a wheel's `_lowered`.

    `hatch_lower.load(folder)` loads the program with the installed run halves of its backends. The program is not
    verified, cached or checked for reproduction, in contrast to `hatch build`.

    Raises:
        PackageError: if the folder is not empty.
        EdgeError: if a plan cannot express the program.
    """
    if folder.exists() and any(folder.iterdir()):
        raise PackageError(
            "a lowered program is saved into an empty folder only",
            where=str(folder),
            found=f"`{min(entry.name for entry in folder.iterdir())}`",
            hint="name a folder that does not exist",
        )
    constants = lowered.constant_methods
    programs = {**lowered.programs, **{name: constant_program(value) for name, value in constants.items()}}
    methods = {}
    for name, program in programs.items():
        parameters = capture_program(model, name, program, examples_needed=False).parameters
        methods[name] = MethodToEmit(name, program, parameters, lowered.reasons.get(name, {}))
    emitted = emit_program(model, methods)
    folder.mkdir(parents=True, exist_ok=True)
    packager = Packager(folder, model, open_store({"HATCH_LOWER_CACHE": "off"}, lambda line: None))
    files = packager.write_program(RECIPE, emitted)
    stored = packager.write_storages(emitted.storages, names_in_constants([(emitted.plan, emitted.storages)]))
    recipe = RecipeEntry(
        plan=files.plan,
        debug=files.debug,
        delegates=files.delegates,
        backends=emitted.plan.backends,
        requirements=emitted.requirements(),
        target=emitted.plan.target,
        methods={name: count_method(program) for name, program in programs.items()},
        device=device_of(map(BackendChoice, emitted.plan.backends), str(folder)),
        not_compared="saved without a build",
    )
    entry = ModelEntry(order=(RECIPE,), constants=stored, check=None, recipes={RECIPE: recipe})
    manifest = Manifest(model, "0", __version__, torch.__version__, {}, {model: entry})
    (folder / "manifest.json").write_bytes(write_manifest(manifest))
    return folder


def constant_program(value: object) -> ExportedProgram:

    class Constant(torch.nn.Module):
        def forward(self) -> object:
            return value

    return to_edge(torch.export.export(Constant(), (), strict=False))


def count_method(program: ExportedProgram) -> MethodEntry:
    modules = list(lowered_modules(program))
    delegated = sum(count_operations(module.original_module.graph_module) for module in modules)
    return MethodEntry(count_operations(program.graph_module) - len(modules) + delegated, delegated, len(modules))
