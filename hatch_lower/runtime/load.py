"""`hatch_lower.load`: from a name or folder to a running model with checked files. A model of an editable install
whose sources have changed since it was lowered gives a warning.
"""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from hatch_lower.canonical import sha256_file
from hatch_lower.errors import InputError, ProgramError, nearest
from hatch_lower.format.codec import decode_file, refuse_damaged_file
from hatch_lower.format.manifest import FileEntry, ModelEntry, RecipeEntry
from hatch_lower.format.plan import Plan, check_agreement, read_plan
from hatch_lower.format.values import Digest
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.arrays import Arrays, find_arrays
from hatch_lower.runtime.classes import editable_folder
from hatch_lower.runtime.devices import Placement, is_for_other_device, place_recipe, read_device
from hatch_lower.runtime.executor import Executor, execute_plan
from hatch_lower.runtime.files import MANIFEST, PackagedFolder, folder_at, read_bytes
from hatch_lower.runtime.installed import EagerEntry, InstalledModel, find_model
from hatch_lower.runtime.load_order import order_here
from hatch_lower.runtime.loaded import LoadedModel, Provenance
from hatch_lower.runtime.mapped import ConstantsFile, weight_files
from hatch_lower.runtime.selection import DelegateKinds, import_modules, numpy_reason, start_recipe

if TYPE_CHECKING:
    import torch

    from hatch_lower.format.debug_map import DebugMap
    from hatch_lower.runtime.outside import OutsideWeights


SOURCES = "sources.json"
SOURCES_SCHEMA = 1


class RecordedSources(Frozen):
    # by model and path below the project: modification time in nanoseconds, and digest
    models: Mapping[str, Mapping[str, tuple[int, Digest]]]


def changed_sources(folder: PackagedFolder, model: str) -> list[str]:
    """Return the files read by a model's export that have changed since; empty unless installed as editable."""
    path = folder.path / SOURCES
    if not folder.installed or not path.exists():
        return []
    try:
        root = editable_folder(importlib.metadata.distribution(folder.manifest.distribution))
    except importlib.metadata.PackageNotFoundError:
        root = None
    if root is None:
        return []
    sources = decode_file(RecordedSources, read_bytes(path), SOURCES_SCHEMA, str(path)).models.get(model, {})
    return [name for name, (time, digest) in sources.items() if has_changed(Path(root, name), time, digest)]


def has_changed(path: Path, time: int, digest: str) -> bool:
    # contents are read only if the time has changed
    try:
        return path.stat().st_mtime_ns != time and sha256_file(path) != digest
    except OSError:
        return True


def stale_text(model: str, changed: list[str]) -> str:
    names = ", ".join(f"`{name}`" for name in changed[:3])
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"model `{model}` was lowered before {names}{more} changed: install the project again, or set "
        '`editable = "eager"`'
    )


def warn_if_stale(folder: PackagedFolder, model: str) -> None:
    if changed := changed_sources(folder, model):
        warnings.warn(stale_text(model, changed), RuntimeWarning, stacklevel=3)


def warn_if_unknown(model: str, reason: str) -> None:
    if reason:
        how = 'build the wheel and install the project again, or set `editable = "lower"`'
        warnings.warn(f"model `{model}` runs eagerly, for {reason}: {how}", RuntimeWarning, stacklevel=3)


def load(
    name_or_path: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    verify: bool = False,
    arrays: str | None = None,
    fetch: bool = False,
    device: str | torch.device | None = None,
) -> LoadedModel:
    """Load a lowered model.

    Args:
        name_or_path: `"digits"` or `"distribution:digits"` of an installed model. A path must be an `os.PathLike`: of
            a `_lowered` folder with a single model, or of the model's folder inside `_lowered`.
        recipe: the recipe to load; by default the first in load order that can run here. With the setting `order =
            "measured"` the load order depends on the processor. A `RuntimeWarning` reports every recipe that cannot run
            here and was passed over.
        verify: first read every file of the model, of all recipes, and compare its digest with the manifest; for an
            installed model also with RECORD. Includes weights outside the wheel. Without `verify`, neither the
            contents of tensors nor the recipes that are not loaded are read.
        arrays: `"torch"` for a model that takes and returns tensors; `"numpy"` for NumPy arrays, without importing
            torch. By default torch if installed. With `"numpy"`, recipes that need torch between their partitions are
            passed over.
        fetch: fetch weights that are outside the wheel and not on this machine, as `hatch_lower.fetch` does; by
            default only if the environment variable `HATCH_LOWER_FETCH` is `always`. Otherwise no connection is opened.
        device: by default each recipe runs on its own device, a recipe for `cuda` on torch's current GPU. `"cpu"` loads
            a recipe for the CPU; `"cuda"` or `"cuda:1"` a recipe for CUDA, or a recipe without delegates, whose
            weights and state are then on that GPU.

    A `RuntimeWarning` also reports an editable install whose sources have changed since the installation.

    Raises:
        ProgramError: if the model or recipe does not exist, no recipe can run here, or a file is missing, damaged, or
            from a newer hatch-lower; with `verify` also if RECORD and the files differ, or if the model runs eagerly
            and has no files.
        FetchError: if fetching weights fails.
        InputError: if `name_or_path` is neither a text nor a path, or `arrays` or `device` is unknown.
    """
    place = read_device(device)
    if isinstance(name_or_path, os.PathLike):
        folder, model = folder_at(Path(name_or_path))
        found_arrays = find_arrays(arrays)
        return load_in_folder(folder, model, recipe, DelegateKinds(), verify, found_arrays, fetch=fetch, device=place)
    if not isinstance(name_or_path, str):
        raise InputError(
            "`load` takes the name of an installed model, or a path object", found=type(name_or_path).__name__
        )
    found = find_model(name_or_path)
    if isinstance(found.source, EagerEntry):
        warn_if_unknown(found.model, found.source.reason)
        return load_eager(found, found.source, recipe, verify, find_arrays(arrays), place)
    warn_if_stale(found.source, found.model)
    found_arrays, kinds = find_arrays(arrays), DelegateKinds()
    return load_in_folder(found.source, found.model, recipe, kinds, verify, found_arrays, fetch=fetch, device=place)


def load_in_folder(
    folder: PackagedFolder,
    model: str | None,
    recipe: str | None,
    kinds: DelegateKinds,
    verify: bool,
    arrays: Arrays | None = None,
    *,
    fetch: bool = False,
    device: str | None = None,
) -> LoadedModel:
    # `model`: `None` for the folder's only model
    models = folder.manifest.models
    if model is None and len(models) == 1:
        (model,) = models
    if model is None or model not in models:
        raise ProgramError(
            f"the folder has no model `{model}`" if model is not None else "the folder does not hold a single model",
            where=str(folder.path),
            found=nearest(model or "", models),
            hint="choose a model: name the installed model, or pass the path of the model's own folder inside this"
            " folder",
        )
    folder.locate_all(models[model])
    if verify:
        for fault in folder.faults(model):
            raise fault
    constants = open_constants(folder, model, fetch=fetch)
    if verify:
        for fault in outside_faults(constants):
            raise fault
    arrays = arrays or find_arrays()  # may import torch; a collection after that is slow
    with collection_paused():
        return load_recipe(folder, model, constants, kinds, arrays, device, recipe)


@contextmanager
def collection_paused() -> Iterator[None]:
    # Reading a plan makes no garbage, and a full collection walks all objects that importing torch has made, which
    # takes longer than loading.
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def load_recipe(
    folder: PackagedFolder,
    model: str,
    constants: ConstantsFile | OutsideWeights | None,
    kinds: DelegateKinds,
    arrays: Arrays,
    device: str | None,
    recipe: str | None,
) -> LoadedModel:
    """Load a recipe of a model whose files have checked sizes; without `recipe`, the first that can run here."""
    # `device`: the asked device, `cuda` for torch's current GPU; `None`: each recipe on its own
    entry = folder.manifest.models[model]
    entry = replace(entry, order=order_here(entry))
    where = str(folder.path / MANIFEST)

    @functools.cache
    def plan_of(recipe: str) -> Plan:
        file = entry.recipes[recipe].plan
        return read_plan(folder.read(file), str(folder.path / file.path))

    placements: dict[str, Placement] = {}

    def fits(recipe: str) -> str | None:
        placement = place_recipe(entry.recipes[recipe], device, arrays, kinds)
        if isinstance(placement, str):
            return placement
        placements[recipe] = placement
        return numpy_reason(plan_of(recipe), entry.recipes[recipe].imports, kinds) if arrays.name == "numpy" else None

    def start(recipe: str) -> tuple[str, Executor]:
        files = entry.recipes[recipe]
        import_modules(files.imports, where, installed=folder.installed)
        folder.check(files.debug)
        plan = plan_of(recipe)
        check_agreement(plan, files, str(folder.path / files.plan.path))
        check_delegates(folder, plan, files)
        if plan.storages and constants is None:
            refuse_damaged_file(where, f"no constants file, which the plan of recipe `{recipe}` needs")
        placement = placements[recipe]
        placed = arrays.on_device(placement.arrays, placement.computes_on)
        return recipe, executor_of(plan, constants, kinds, placed, folder.path)

    chosen, executor = start_recipe(model, skip_recipes(entry, device, recipe), recipe, kinds, where, fits, start)
    provenance = Provenance(
        model,
        chosen,
        entry.order,
        functools.partial(read_debug_file, folder, entry.recipes[chosen].debug),
        functools.partial(load_recipe, folder, model, constants, kinds, arrays, device),
        MappingProxyType({name: folder.path / asset.path for name, asset in entry.assets.items()}),
        f"{folder.manifest.distribution}:{model}" if folder.installed else folder.path.absolute() / model,
        arrays.name,
    )
    return LoadedModel(executor, provenance)


def skip_recipes(entry: ModelEntry, device: str | None, recipe: str | None) -> ModelEntry:
    """Leave recipes for another device than the asked one out of the load order, if other recipes remain."""
    # without a warning, because the caller's argument is the reason
    order = tuple(name for name in entry.order if not is_for_other_device(entry.recipes[name], device))
    return entry if recipe is not None or not order else replace(entry, order=order)


def executor_of(
    plan: Plan, constants: ConstantsFile | OutsideWeights | None, kinds: DelegateKinds, arrays: Arrays, folder: Path
) -> Executor:
    contents = constants.spans(plan.storages) if constants is not None else ()
    return execute_plan(
        plan,
        tuple(map(arrays.span, plan.storages, contents)),
        {backend: kinds.load(backend) for backend in dict.fromkeys(entry.backend for entry in plan.delegates)},
        folder,
        places=constants.places(plan.storages) if constants is not None else (),
        checks_outputs=kinds.checks_outputs,
        arrays=arrays,
        timing=kinds.timing,
    )


def check_delegates(folder: PackagedFolder, plan: Plan, files: RecipeEntry) -> None:
    # all delegates, not only native libraries: an attacker who can replace a library can also rewrite the manifest
    folder.refuse_writable(files.delegates)
    listed = {file.path: file for file in files.delegates}
    weights = weight_files(plan)
    for file in files.delegates:
        if file.path not in weights:
            folder.check(file)
    where = str(folder.path / files.plan.path)
    for entry in plan.delegates:
        for path in (entry.file, *(data.file for data in entry.data.values())):
            if path not in listed:
                refuse_damaged_file(where, f"the delegate's file {path!r:.120}, which the manifest lacks")


def open_constants(folder: PackagedFolder, model: str, *, fetch: bool = False) -> ConstantsFile | OutsideWeights | None:
    entry = folder.manifest.models[model]
    constants = None
    if entry.constants is not None:
        path = folder.locate(entry.constants)
        constants = ConstantsFile(path, str(path), entry.constants.header_sha256)
    if entry.weights is None:
        return constants
    from hatch_lower.runtime.outside import open_outside  # imported late, since most wheels hold their weights

    return open_outside(folder, model, entry.weights, constants, fetch=fetch)


def outside_faults(constants: ConstantsFile | OutsideWeights | None) -> Iterator[ProgramError]:
    if constants is not None and not isinstance(constants, ConstantsFile):
        yield from constants.faults()


def read_debug_file(folder: PackagedFolder, entry: FileEntry) -> DebugMap:
    from hatch_lower.format.debug_map import read_debug

    return read_debug(folder.read(entry), str(folder.path / entry.path))


def load_eager(
    found: InstalledModel,
    entry: EagerEntry,
    recipe: str | None,
    verify: bool,
    arrays: Arrays,
    device: str | None = None,
) -> LoadedModel:
    model, export = found.model, entry.export
    not_eagerly = 'install the project editable with `editable = "lower"`, or not editable'

    def refused(what: str, hint: str = not_eagerly) -> ProgramError:
        return ProgramError(f"model `{model}` runs eagerly and has no {what}", where=export, hint=hint)

    if verify:
        raise refused("packaged files to verify", f"leave out `verify`, {not_eagerly}")

    if arrays.name != "torch":
        raise refused("method that takes NumPy's arrays", f"install torch and leave out `arrays`, {not_eagerly}")

    if device not in (None, "cpu"):
        raise refused(f"recipe for the device {device!r}", f"leave out `device`, {not_eagerly}")

    from hatch_lower.runtime.eager import make_eager

    def refuse_debug() -> NoReturn:
        raise refused("debug map")

    if recipe not in (None, "eager"):
        raise refused(f"recipe `{recipe}`")
    provenance = Provenance(
        model,
        "eager",
        ("eager",),
        refuse_debug,
        lambda recipe: load_eager(found, entry, recipe, False, arrays, device),
        MappingProxyType(entry.assets),
        f"{found.distribution}:{model}",
        arrays.name,
    )
    return LoadedModel(make_eager(model, export), provenance)
