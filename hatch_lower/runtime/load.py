"""`hatch_lower.load`: from a name or folder to a model that runs, all of its files checked."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from hatch_lower.errors import InputError, ProgramError, nearest
from hatch_lower.format.codec import refuse
from hatch_lower.format.manifest import FileEntry, RecipeEntry
from hatch_lower.format.plan import Plan, check_agreement, read_plan
from hatch_lower.runtime.arrays import Arrays, find_arrays
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.runtime.editable import warn_if_stale, warn_if_unknown
from hatch_lower.runtime.executor import Executor, execute_plan
from hatch_lower.runtime.files import MANIFEST, PackagedFolder, folder_at, open_folder
from hatch_lower.runtime.installed import EagerEntry, InstalledModel, find_model
from hatch_lower.runtime.loaded import LoadedModel, Provenance
from hatch_lower.runtime.mapped import ConstantsFile, weight_files
from hatch_lower.runtime.requirements import import_modules
from hatch_lower.runtime.selection import DelegateKinds, numpy_reason, start_recipe

if TYPE_CHECKING:
    from hatch_lower.format.debug_map import DebugMap
    from hatch_lower.runtime.outside import OutsideWeights


def load(
    name_or_path: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    verify: bool = False,
    arrays: str | None = None,
    fetch: bool = False,
) -> LoadedModel:
    """Load a lowered model.

    Args:
        name_or_path: `"digits"` or `"distribution:digits"` of an installed model. Only an `os.PathLike` is a path: of
            a `_lowered` folder that holds one model, or of the model's folder inside it.
        recipe: the recipe to take; by default the first in load order that can run here. Falling to another than the
            first is said in a `RuntimeWarning`.
        verify: first read every file of the model, of all its recipes, and compare it with its digest; those of an
            installed model with RECORD's digests, too. Without it the contents of tensors, and recipes that are not
            loaded, are not read. Weights outside the wheel are compared, too.
        arrays: `"torch"` for a model that takes and returns tensors, `"numpy"` for one of NumPy's arrays, which imports
            no torch; by default torch's where it is installed. Recipes that need torch for what runs between their
            partitions are passed over with `"numpy"`.
        fetch: fetch weights that are outside the wheel and not on this machine, as `hatch_lower.fetch` does; by
            default only if the environment variable `HATCH_LOWER_FETCH` is `always`. Else no connection is ever opened.

    An editable install whose sources have changed since it was made is said in a `RuntimeWarning`.

    Raises:
        ProgramError: if there is no such model or recipe, none can run here, or a file is missing, damaged, or from a
            newer hatch-lower; with `verify` also if RECORD and the files differ, or the model runs eagerly and has no
            files.
        FetchError: if weights are to be fetched and cannot be.
        InputError: for anything but a text or a path, and for unknown `arrays`.
    """
    if isinstance(name_or_path, os.PathLike):
        folder, model = folder_at(Path(name_or_path))
        return load_model(folder, model, recipe, DelegateKinds(), verify, find_arrays(arrays), fetch=fetch)
    if not isinstance(name_or_path, str):
        raise InputError(
            "`load` takes the name of an installed model, or a path object", found=type(name_or_path).__name__
        )
    found = find_model(name_or_path)
    if isinstance(found.source, EagerEntry):
        warn_if_unknown(found.model, found.source.reason)
        return load_eager(found, found.source, recipe, verify, find_arrays(arrays))
    warn_if_stale(found.source, found.model)
    return load_model(found.source, found.model, recipe, DelegateKinds(), verify, find_arrays(arrays), fetch=fetch)


def load_folder(
    folder: Path,
    model: str | None = None,
    recipe: str | None = None,
    *,
    delegates: Mapping[str, type[Delegate]] | None = None,
    verify: bool = False,
    checks_outputs: bool = False,
    arrays: str | None = None,
) -> LoadedModel:
    """Load a model from a `_lowered` folder; `delegates`, where given, stand for the installed ones."""
    # with `checks_outputs` each call compares all that delegates return with the plan, and not its number alone
    kinds = DelegateKinds(delegates, checks_outputs=checks_outputs)
    return load_model(open_folder(folder), model, recipe, kinds, verify, find_arrays(arrays))


def load_model(
    folder: PackagedFolder,
    model: str | None,
    recipe: str | None,
    kinds: DelegateKinds,
    verify: bool,
    arrays: Arrays | None = None,
    *,
    fetch: bool = False,
) -> LoadedModel:
    # `None` stands for the folder's only model
    models = folder.manifest.models
    if model is None and len(models) == 1:
        (model,) = models
    if model is None or model not in models:
        raise ProgramError(
            f"the folder has no model `{model}`" if model is not None else "the folder does not hold just one model",
            where=str(folder.path),
            found=nearest(model or "", models),
            hint="name one of these: as an installed model, or by the path of its own folder inside this one",
        )
    folder.locate_all(models[model])
    if verify:
        for fault in folder.faults(model):
            raise fault
    constants = open_constants(folder, model, fetch=fetch)
    if verify:
        for fault in outside_faults(constants):
            raise fault
    arrays = arrays or find_arrays()  # it may import torch, after which the collector must not run
    with collection_paused():
        return load_recipe(folder, model, constants, kinds, arrays, recipe)


@contextmanager
def collection_paused() -> Iterator[None]:
    # What a plan is read into lives on, and a full collection goes through all that importing torch has left: it would
    # take longer than loading.
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
    recipe: str | None,
) -> LoadedModel:
    """Load one recipe of a model whose files' sizes were looked at; `None` stands for the first that can run here."""
    entry = folder.manifest.models[model]
    where = str(folder.path / MANIFEST)

    @functools.cache
    def plan_of(recipe: str) -> Plan:
        file = entry.recipes[recipe].plan
        return read_plan(folder.read(file), str(folder.path / file.path))

    def fits(recipe: str) -> str | None:
        return numpy_reason(plan_of(recipe), entry.recipes[recipe].imports, kinds) if arrays.name == "numpy" else None

    def start(recipe: str) -> tuple[str, Executor]:
        files = entry.recipes[recipe]
        import_modules(files.imports, where, installed=folder.installed)
        folder.check(files.debug)
        plan = plan_of(recipe)
        check_agreement(plan, files, str(folder.path / files.plan.path))
        check_delegates(folder, plan, files)
        if plan.storages and constants is None:
            refuse(where, f"no constants file, and the plan of recipe `{recipe}` needs one")
        return recipe, executor_of(plan, constants, kinds, arrays, folder.path)

    chosen, executor = start_recipe(model, entry, recipe, kinds, where, fits, start)
    provenance = Provenance(
        model,
        chosen,
        entry.order,
        functools.partial(read_debug_file, folder, entry.recipes[chosen].debug),
        functools.partial(load_recipe, folder, model, constants, kinds, arrays),
        MappingProxyType({name: folder.path / asset.path for name, asset in entry.assets.items()}),
        f"{folder.manifest.distribution}:{model}" if folder.installed else folder.path.absolute() / model,
        arrays.name,
    )
    return LoadedModel(executor, provenance)


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
    # of all delegates, for whoever can replace a library can also rewrite the manifest that calls it native
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
                refuse(where, f"the delegate's file {path!r:.120}, which the manifest lacks")


def open_constants(folder: PackagedFolder, model: str, *, fetch: bool = False) -> ConstantsFile | OutsideWeights | None:
    entry = folder.manifest.models[model]
    constants = None
    if entry.constants is not None:
        path = folder.locate(entry.constants)
        constants = ConstantsFile(path, str(path), entry.constants.header_sha256)
    if entry.weights is None:
        return constants
    from hatch_lower.runtime.outside import open_outside  # most wheels hold their weights

    return open_outside(folder, model, entry.weights, constants, fetch=fetch)


def outside_faults(constants: ConstantsFile | OutsideWeights | None) -> Iterator[ProgramError]:
    if constants is not None and not isinstance(constants, ConstantsFile):
        yield from constants.faults()


def read_debug_file(folder: PackagedFolder, entry: FileEntry) -> DebugMap:
    from hatch_lower.format.debug_map import read_debug

    return read_debug(folder.read(entry), str(folder.path / entry.path))


def load_eager(
    found: InstalledModel, entry: EagerEntry, recipe: str | None, verify: bool, arrays: Arrays
) -> LoadedModel:
    model, export = found.model, entry.export
    not_eagerly = 'install the project editable with `editable = "lower"`, or not editable'

    def refused(what: str, hint: str = not_eagerly) -> ProgramError:
        return ProgramError(f"model `{model}` runs eagerly and has no {what}", where=export, hint=hint)

    if verify:
        raise refused("packaged files to verify", f"leave out `verify`, {not_eagerly}")

    if arrays.name != "torch":
        raise refused("method that takes NumPy's arrays", f"install torch and leave out `arrays`, {not_eagerly}")

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
        lambda recipe: load_eager(found, entry, recipe, False, arrays),
        MappingProxyType(entry.assets),
        f"{found.distribution}:{model}",
        arrays.name,
    )
    return LoadedModel(make_eager(model, export), provenance)
