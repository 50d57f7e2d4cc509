"""Lowered models where they are: in a wheel, in a folder, or installed. Nothing is unpacked, torch is not imported."""

from __future__ import annotations

import functools
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from hatch_lower.debug import DebugMap, read_debug
from hatch_lower.digest import sha256_bytes
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.manifest import FileEntry, Manifest, ModelEntry, RecipeEntry, read_manifest
from hatch_lower.format.plan import Plan, read_plan
from hatch_lower.runtime.files import PackagedFolder, open_folder
from hatch_lower.runtime.installed import EagerEntry, find_model, models_of, recording
from hatch_lower.runtime.recorded import Recorded

__all__ = ["Contents", "choose_model", "choose_recipe", "find_contents"]

MANIFEST = "_lowered/manifest.json"


@dataclass(frozen=True, slots=True)
class Contents:
    """One `_lowered` folder.

    Args:
        place: the folder, and the wheel that it is in.
        manifest: what it holds.
        models: the names of the models that were asked for.
        read: returns a file's bytes, or raises `ProgramError` if they are not those that the manifest lists.
        recorded: what the RECORD of an installed distribution says of the files.
    """

    place: str
    manifest: Manifest
    models: tuple[str, ...]
    read: Callable[[FileEntry], bytes]
    recorded: Recorded | None = None

    def plan(self, recipe: RecipeEntry) -> Plan:
        """Return a recipe's plan."""
        return read_plan(self.read(recipe.plan), f"{self.place}/{recipe.plan.path}")

    def debug(self, recipe: RecipeEntry) -> DebugMap:
        """Return a recipe's debug map."""
        return read_debug(self.read(recipe.debug), f"{self.place}/{recipe.debug.path}")


def find_contents(name: str) -> list[Contents]:
    """Return the lowered models in a wheel or folder, or the installed model or distribution of that name.

    Raises:
        ProgramError: if there are none, or a file is damaged.
    """
    path = Path(name)
    if path.is_dir():
        found = list(folders_below(path))
    elif path.suffix == ".whl":
        found = list(folders_in_wheel(path))
    else:
        return installed_contents(name)
    if not found:
        raise ProgramError(
            "there are no lowered models here",
            where=name,
            found=f"no `{MANIFEST}`",
            hint="build the wheel with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS",
        )
    return found


def folders_below(path: Path) -> Iterator[Contents]:
    """Yield each `_lowered` folder at or below a folder."""
    manifests = [path / "manifest.json"] if (path / "manifest.json").is_file() else sorted(path.rglob(MANIFEST))
    for manifest in manifests:
        yield contents_of(open_folder(manifest.parent))


def folders_in_wheel(path: Path) -> Iterator[Contents]:
    """Yield each `_lowered` folder of a wheel, read straight from the archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifests = [each for each in archive.namelist() if each.endswith(f"/{MANIFEST}")]
    except (OSError, zipfile.BadZipFile) as error:
        raise ProgramError("the wheel cannot be read", where=str(path), found=str(error)) from error
    for member in sorted(manifests):
        place = f"{path.name}: {member.removesuffix('/manifest.json')}"
        manifest = read_manifest(read_member(path, member), f"{place}/manifest.json")
        read = functools.partial(read_checked, path, member.removesuffix("/manifest.json"))
        yield Contents(place, manifest, tuple(sorted(manifest.models)), read)


def read_checked(wheel: Path, folder: str, entry: FileEntry) -> bytes:
    """Return the bytes of one of the manifest's files in a wheel."""
    member = f"{folder}/{entry.path}"
    data = read_member(wheel, member)
    if sha256_bytes(data) != entry.sha256:
        raise ProgramError(
            "a packaged program file is not the one that the manifest lists",
            where=f"{wheel.name}: {member}",
            found="another sha256 than the manifest says",
            hint="build the wheel again",
        )
    return data


def read_member(wheel: Path, member: str) -> bytes:
    """Return the bytes of a wheel's member."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)
    except (KeyError, NotImplementedError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ProgramError(
            "a packaged program file cannot be read",
            where=f"{wheel.name}: {member}",
            found=f"{type(error).__name__}: {error}",
            hint="build the wheel again",
        ) from error


def installed_contents(name: str) -> list[Contents]:
    """Return the installed models called `model` or `distribution:model`, or all of a `distribution`."""
    for owner, distribution in recording().items():
        if canonicalize_name(owner) == canonicalize_name(name):
            sources = {id(each.source): each.source for each in models_of(owner, distribution).values()}
            folders = [contents_of(each) for each in sources.values() if isinstance(each, PackagedFolder)]
            if folders:
                return folders
    found = find_model(name)
    if isinstance(found.source, EagerEntry):
        raise ProgramError(
            f"the model `{found.model}` is installed to run eagerly and is not lowered",
            where=f"the editable install of `{found.distribution}`",
            hint='install the project editable with `editable = "lower"`, or not editable',
        )
    return [contents_of(found.source, found.model)]


def contents_of(folder: PackagedFolder, model: str | None = None) -> Contents:
    """Return the contents of a folder on disk: of one model, or of all."""
    models = tuple(sorted(folder.manifest.models)) if model is None else (model,)
    return Contents(str(folder.path), folder.manifest, models, folder.read, folder.recorded)


def choose_model(found: list[Contents], model: str | None) -> tuple[Contents, str, ModelEntry]:
    """Return the one model that is asked for, or the only one."""
    every = [(contents, name) for contents in found for name in contents.models]
    chosen = [each for each in every if model is None or each[1] == model]
    if len(chosen) != 1:
        raise ProgramError(
            "there is no such model" if model and not chosen else "there is more than one model",
            where=", ".join(each.place for each in found),
            found=nearest(model or "", [name for _, name in every]),
            hint="name one with `--model`",
        )
    contents, name = chosen[0]
    return contents, name, contents.manifest.models[name]


def choose_recipe(model: str, entry: ModelEntry, recipe: str | None) -> str:
    """Return the recipe that is asked for, or the first in load order."""
    if recipe is not None and recipe not in entry.recipes:
        raise ProgramError("there is no such recipe", where=f"model `{model}`", found=nearest(recipe, entry.recipes))
    return recipe or entry.order[0]
