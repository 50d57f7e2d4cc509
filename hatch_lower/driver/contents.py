"""Lowered models in a wheel, in a folder, or installed: read without torch, and unpacked where a program must be
loaded.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path, PurePosixPath
from typing import TypeVar

from packaging.utils import canonicalize_name

from hatch_lower import MODEL_GROUP
from hatch_lower.canonical import sha256_bytes
from hatch_lower.driver.opened_wheel import (
    ARCHIVE_ERRORS,
    OpenedWheel,
    map_part,
    open_wheel,
    plain_member,
    unreadable_wheel,
)
from hatch_lower.driver.sbom import FOLDER
from hatch_lower.driver.whole_wheel import digests_in_record
from hatch_lower.errors import LowerError, ProgramError, size_text
from hatch_lower.format.codec import Damage, encode, refuse_damaged_file
from hatch_lower.format.debug_map import NO_DEBUG, DebugMap, MethodDebug, read_debug
from hatch_lower.format.manifest import FileEntry, Manifest, ModelEntry, RecipeEntry, read_manifest
from hatch_lower.format.plan import Plan, check_agreement, read_plan
from hatch_lower.format.results import SBOM_FILE
from hatch_lower.format.weights import Weights, read_weights
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.files import PackagedFolder, Recorded, files_of, open_folder
from hatch_lower.runtime.installed import EagerEntry, find_model, find_recording_distributions, models_of

MANIFEST = "_lowered/manifest.json"
SBOM = f"{FOLDER}/{SBOM_FILE}"  # of a folder `.dist-info`


class WheelModels(Frozen):
    """The contents of a `_lowered` folder."""

    place: str  # the folder, and its wheel
    manifest: Manifest
    models: tuple[str, ...]  # the names of the models that were asked for
    # returns a file's bytes; raises `ProgramError` if the manifest lists other bytes
    read: Callable[[FileEntry], bytes]
    map: Callable[[FileEntry], memoryview]  # the same for a file of any size: mapped, not held in memory
    recorded: Recorded | None = None  # the digests in the RECORD of an installed distribution

    def model(self, name: str) -> OpenedModel:
        entry = self.manifest.models[name]
        listed = [(recipe, entry.recipes[recipe]) for recipe in entry.order]
        recipes = {recipe: OpenedRecipe(row, self.plan(row), self.debug(row).methods) for recipe, row in listed}
        return OpenedModel(name, self, entry, recipes)

    def weights(self, name: str) -> Weights | None:
        """Return the places of a model's weights outside of the wheel; `None` if the wheel holds all weights."""
        entry = self.manifest.models[name].weights
        return None if entry is None else read_weights(self.read(entry), f"{self.place}/{entry.path}")

    def plan(self, recipe: RecipeEntry) -> Plan:
        where = f"{self.place}/{recipe.plan.path}"
        plan = read_plan(self.read(recipe.plan), where)
        check_agreement(plan, recipe, where)
        return plan

    def debug(self, recipe: RecipeEntry) -> DebugMap:
        return read_debug(self.read(recipe.debug), f"{self.place}/{recipe.debug.path}")


class OpenedRecipe(Frozen):
    entry: RecipeEntry
    plan: Plan
    debug: Mapping[str, MethodDebug]

    def method_debug(self, name: str) -> MethodDebug:
        return self.debug.get(name, NO_DEBUG)

    def files(self) -> dict[str, FileEntry]:
        """Return the files by role. Delegates are named by digests, and so are numbered here."""
        delegates = self.plan.delegates
        labels = {file.file: f"data {name}" for delegate in delegates for name, file in delegate.data.items()}
        labels |= {delegate.file: f"delegate {at} ({delegate.backend})" for at, delegate in enumerate(delegates)}
        named = {labels.get(file.path, file.path): file for file in self.entry.delegates}
        return {"plan": self.entry.plan, "debug map": self.entry.debug, **dict(sorted(named.items()))}

    def facts(self) -> dict[str, object]:
        """Return the facts of every recipe that are shown and compared, as JSON; `size` counts its own files."""
        return {
            "backends": list(self.entry.backends),
            "precision": self.entry.precision,
            "device": self.entry.device,
            "target": self.entry.target and encode(self.entry.target, packaged=True),
            "not_compared": self.entry.not_compared,
            "measured": encode(self.entry.measured, packaged=True),
            "metric": self.entry.metric and encode(self.entry.metric, packaged=True),
            "size": sum(file.size for file in self.files().values()),
        }


class OpenedModel(Frozen):
    name: str
    contents: WheelModels
    entry: ModelEntry
    recipes: Mapping[str, OpenedRecipe]


def find_contents(target: str | Path) -> list[WheelModels]:
    """Return the lowered models in the wheel or folder at a path, or the installed ones of a name."""
    if isinstance(target, str):
        return installed_contents(target)
    contents = list(folders_below(target) if target.is_dir() else folders_in_wheel(target))
    if not contents:
        raise ProgramError(
            "there are no lowered models here",
            where=str(target),
            found=f"no `{MANIFEST}`",
            hint="build the wheel with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS",
        )
    return contents


def folders_below(path: Path) -> Iterator[WheelModels]:
    manifests = [path / "manifest.json"] if (path / "manifest.json").is_file() else sorted(path.rglob(MANIFEST))
    return (folder_contents(open_folder(manifest.parent)) for manifest in manifests)


def folders_in_wheel(path: Path) -> Iterator[WheelModels]:
    wheel = open_wheel(path)
    for member in sorted(member for member in wheel.members() if member.endswith(f"/{MANIFEST}")):
        folder = member.removesuffix("/manifest.json")
        place = f"{path.name}: {folder}"
        manifest = read_manifest(wheel.read(member), f"{place}/manifest.json")
        read = functools.partial(checked_member, wheel, folder, wheel.read)
        map_file = functools.partial(checked_member, wheel, folder, wheel.map)
        yield WheelModels(place, manifest, tuple(sorted(manifest.models)), read, map_file)


def map_folder(folder: PackagedFolder, entry: FileEntry) -> memoryview:
    path = folder.locate(entry)
    try:
        return checked(map_part(path, 0, entry.size), entry, str(path))
    except (OSError, ValueError) as error:
        raise unreadable_wheel(str(path), error) from error


Data = TypeVar("Data", bytes, memoryview)


def checked(data: Data, entry: FileEntry, where: str) -> Data:
    if sha256_bytes(data) != entry.sha256:
        raise ProgramError(
            "a packaged program file is not the one that the manifest lists",
            where=where,
            found="another sha256 than the manifest says",
            hint="build the wheel again",
        )
    return data


def checked_member(wheel: OpenedWheel, folder: str, read: Callable[[str], Data], entry: FileEntry) -> Data:
    member = f"{folder}/{entry.path}"
    return checked(read(member), entry, f"{wheel.path.name}: {member}")


def installed_contents(name: str) -> list[WheelModels]:
    """Return the installed models called `model` or `distribution:model`, or all of a `distribution`."""
    for owner, distribution in find_recording_distributions().items():
        if canonicalize_name(owner) == canonicalize_name(name):
            sources = {id(model.source): model.source for model in models_of(owner, distribution).values()}
            folders = [folder_contents(source) for source in sources.values() if isinstance(source, PackagedFolder)]
            if folders:
                return folders
    try:
        model = find_model(name)
    except ProgramError as error:
        if os.path.lexists(name):
            hint = f"to open the file or folder of this name, write `{os.path.join(os.curdir, name)}`"
            raise ProgramError(error.what, where=error.where, found=error.found, hint=hint) from error
        raise
    if isinstance(model.source, EagerEntry):
        raise ProgramError(
            f"the model `{model.model}` is installed to run eagerly and is not lowered",
            where=f"the editable install of `{model.distribution}`",
            hint='install the project editable with `editable = "lower"`, or not editable',
        )
    return [folder_contents(model.source, model.model)]


def folder_contents(folder: PackagedFolder, model: str | None = None) -> WheelModels:
    models = tuple(sorted(folder.manifest.models)) if model is None else (model,)
    map_file = functools.partial(map_folder, folder)
    return WheelModels(str(folder.path), folder.manifest, models, folder.read, map_file, folder.recorded)


def sbom_text(target: str | Path) -> str:
    """Return the stored SBOM of a wheel, or of an installed distribution or model."""
    if isinstance(target, Path) and target.is_dir():
        raise ProgramError(
            "a folder has no SBOM: it is in the metadata of a wheel",
            where=str(target),
            hint="name the wheel, or the installed distribution",
        )
    text = metadata_text(target, SBOM)
    if text is not None:
        return text
    if isinstance(target, Path):
        where, hint = target.name, "build the wheel again with a newer hatch-lower"
        find_contents(target)  # raises if there are no lowered models
    else:
        where = f"the distribution `{model_distribution(target).name}`"
        origin = "".join((metadata_text(target, "direct_url.json") or "").split())
        hint = "build its wheel again with a newer hatch-lower, and install that"
        if '"editable":true' in origin:
            hint = "an editable install has none: install its wheel"
    raise ProgramError("there is no SBOM of lowered models", where=where, found=f"no `.dist-info/{SBOM}`", hint=hint)


def metadata_text(target: str | Path, name: str) -> str | None:
    """Return a metadata file of a wheel or an installed distribution; `None` if missing."""
    if isinstance(target, str):
        return model_distribution(target).read_text(name)
    return open_wheel(target).metadata(name)


def model_distribution(name: str) -> Distribution:
    try:
        return Distribution.from_name(name)
    except (PackageNotFoundError, ValueError):
        return Distribution.from_name(find_model(name).distribution)


Place = tuple[str, PackagedFolder, tuple[str, ...]]  # the name of a folder, the folder, and the names of its models


@contextmanager
def loadable_places(target: str | Path) -> Iterator[list[Place]]:
    """Give the folders with the models of a name or at a path; a wheel's are unpacked until the block ends.

    Errors of the block name the wheel, not the temporary folder.
    """
    if isinstance(target, str) or target.is_dir():
        yield places_in(find_contents(target), installed=isinstance(target, str))
        return
    with tempfile.TemporaryDirectory(prefix="hatch-lower-") as work:
        places = unpack_models(target, Path(work).resolve())
        with errors_of_wheel(target, places):
            yield places


@contextmanager
def errors_of_wheel(wheel: Path, places: Sequence[Place]) -> Iterator[None]:
    """Let errors of the block name the wheel, not the folders into which it is unpacked."""
    try:
        yield
    except LowerError as error:
        for place, folder, _ in places:
            for field in ("where", "found", "hint"):
                setattr(error, field, said_of(getattr(error, field), folder.path, place, str(wheel)))
        raise


def said_of(text: str, folder: Path, place: str, name: str) -> str:
    # a wheel is unpacked into a temporary folder, which `fetch` cannot know
    fetch = f"hatch-lower fetch {shlex.quote(name)}"
    return text.replace(f"hatch-lower fetch {shlex.quote(str(folder))}", fetch).replace(str(folder), place)


def places_in(contents: Sequence[WheelModels], *, installed: bool) -> list[Place]:
    return [
        (each.place, PackagedFolder(Path(each.place), each.manifest, each.recorded, installed), each.models)
        for each in contents
    ]


def unpack_models(wheel: Path, work: Path) -> list[Place]:
    """Unpack the lowered models of a wheel into an empty folder."""
    opened = open_wheel(wheel)
    manifests = sorted(name for name in opened.members() if name.endswith(f"/{MANIFEST}"))
    if not manifests:
        refuse_unlowered_wheel(opened)  # its build was killed, or had no hooks
        find_contents(wheel)  # says that there are none
    recorded = recorded_below(opened, manifests)
    return [
        unpack_folder(opened, member, recorded.get(member), work / str(position))
        for position, member in enumerate(manifests)
    ]


def refuse_unlowered_wheel(wheel: OpenedWheel) -> None:
    """Refuse a wheel without lowered models that says that it has some: its build was killed, or had no hooks."""
    names = ("RECORD", "entry_points.txt", "METADATA")
    record, entry_points, metadata = ((wheel.metadata(name) or "").splitlines() for name in names)
    promises = {
        f"a RECORD that lists `{MANIFEST}`": any(f"/{MANIFEST}," in line for line in record),
        f"entry points `{MODEL_GROUP}`": f"[{MODEL_GROUP}]" in entry_points,
        "a requirement of `hatch-lower`": any(line.startswith("Requires-Dist: hatch-lower") for line in metadata),
    }
    if any(promises.values()):
        raise ProgramError(
            "the wheel is incomplete: it is without its lowered models",
            where=str(wheel.path),
            found=f"{next(text for text, made in promises.items() if made)}, and no `{MANIFEST}`",
            hint="build the wheel again with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS",
        )


def recorded_below(wheel: OpenedWheel, manifests: Collection[str]) -> dict[str, Recorded]:
    """Return, by manifest, the rows of a wheel's RECORD for the manifest's folder; no rows for an unlisted manifest."""
    try:
        rows = digests_in_record(wheel.metadata("RECORD") or "")
    except Damage as damage:
        refuse_damaged_file(f"{wheel.path.name}: RECORD", damage.found)
    listed: dict[str, dict[str, str]] = {manifest.removesuffix("manifest.json"): {} for manifest in manifests}
    for path, digest in rows.items():
        for folder in (f"{parent}/" for parent in PurePosixPath(path).parents):
            if folder in listed:
                listed[folder][path.removeprefix(folder)] = digest
    owner = f"`{wheel.path.name}`"
    found = {folder: digests for folder, digests in listed.items() if "manifest.json" in digests}
    return {f"{folder}manifest.json": Recorded(owner, digests) for folder, digests in found.items()}


def unpack_folder(wheel: OpenedWheel, member: str, recorded: Recorded | None, target: Path) -> Place:
    """Unpack a manifest and its listed files; a check of the files reports missing files."""
    target.mkdir()
    folder = member.removesuffix("/manifest.json")
    place = f"{wheel.path.name}: {folder}"
    data = wheel.read(member)
    (target / "manifest.json").write_bytes(data)
    manifest = read_manifest(data, f"{place}/manifest.json")
    try:
        opened = open_folder(target, recorded)
    except ProgramError as error:
        where = error.where.replace(str(target), place)
        raise ProgramError(error.what, where=where, found=error.found, hint=error.hint) from error
    listed = {f"{folder}/{entry.path}": entry for model in manifest.models.values() for entry in files_of(model)}
    sizes = {member.filename: member.file_size for member in wheel.archive.infolist()}
    found = {name: (sizes[name], entry) for name, entry in listed.items() if name in sizes}
    refuse_larger(wheel.path, found, target)
    for name, (_, entry) in found.items():
        copy_member(wheel, name, target / entry.path)
    for path in (target, *target.rglob("*")):  # whatever the umask: native code is not loaded where others may write
        path.chmod(0o700 if path.is_dir() else 0o600)
    return place, opened, tuple(sorted(manifest.models))


def refuse_larger(wheel: Path, members: Mapping[str, tuple[int, FileEntry]], target: Path) -> None:
    """Refuse files that would become larger than the manifest says, or than there is space for."""
    for name, (size, entry) in members.items():
        if size > entry.size:
            raise ProgramError(
                "a packaged program file is not the one that the manifest lists",
                where=f"{wheel.name}: {name}",
                found=f"{size} bytes, where the manifest says {entry.size}",
                hint="build the wheel again",
            )
    needed, free = sum(size for size, _ in members.values()), shutil.disk_usage(target).free
    if needed > free:
        raise ProgramError(
            "there is no space to unpack the wheel's lowered models",
            where=str(target.parent),
            found=f"{size_text(needed)} to unpack, {size_text(free)} free",
            hint="set `TMPDIR` to a folder with more space, or install the wheel and name the installed model",
        )


def copy_member(wheel: OpenedWheel, name: str, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with wheel.archive.open(plain_member(wheel.archive, name)) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except ARCHIVE_ERRORS as error:
        raise ProgramError(
            "a packaged program file cannot be unpacked",
            where=f"{wheel.path.name}: {name}",
            found=f"{type(error).__name__}: {error}",
            hint="build the wheel again, or see that there is space for temporary files",
        ) from error
