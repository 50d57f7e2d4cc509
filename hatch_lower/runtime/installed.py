"""The lowered models of installed distributions: found by their entry points, their files by RECORD."""

import csv
import importlib.metadata
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from hatch_lower import MODEL_GROUP
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.codec import decode_file
from hatch_lower.format.results import SBOM_FILE
from hatch_lower.format.values import QualifiedName, RelativePath
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.files import (
    EAGER,
    FOLDER,
    MANIFEST,
    PackagedFolder,
    Recorded,
    decode_record_digest,
    open_folder,
    read_bytes,
)

EAGER_SCHEMA = 2


class EagerFile(Frozen):
    """`eager.json`, written by an editable build with `editable = "eager"` or `"known"`."""

    models: Mapping[str, QualifiedName]  # name to the entry point
    # model's name to its assets' paths, relative to the folder of `eager.json`
    assets: Mapping[str, Mapping[str, RelativePath]] = field(default_factory=dict)
    reason: str = ""  # for missing programs, if the project asks for programs


class EagerEntry(Frozen):
    """A model of an editable install that runs eagerly: `module:attribute` of its entry point, and its assets."""

    export: str
    assets: Mapping[str, Path] = field(default_factory=dict)
    reason: str = ""


class InstalledModel(Frozen):
    distribution: str
    model: str
    source: PackagedFolder | EagerEntry


def find_model(name: str) -> InstalledModel:
    """Return the installed model `model` or `distribution:model`. Raises `ProgramError` if missing or ambiguous."""
    owner, colon, model = name.partition(":")
    if not colon:
        model = owner
    declared = find_owning_distribution(owner, name) if colon else declaring(model)
    found = [models for models in (models_of(*item) for item in declared.items()) if model in models]
    damaged: list[str] = []
    if not found and not colon:
        # a model that the build hook's table declares has no entry point
        for owner, owned in find_recording_distributions().items():
            models = readable_models(owner, owned)
            if models is None:
                damaged.append(owner)
            elif model in models:
                found.append(models)
    if not found:
        raise not_found(name, model, declared, damaged)
    if len(found) > 1:
        names = sorted(f"{models[model].distribution}:{model}" for models in found)
        raise ProgramError(
            f"more than one installed distribution has a model `{model}`",
            found=", ".join(f"`{match}`" for match in names),
            hint=f'name the distribution: load("{names[0]}")',
        )
    return found[0][model]


def declaring(model: str) -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions with an entry point for `model`; of equal names, the first on the search path."""
    # Texts are searched before parsing, since most distributions have no model: parsing all installed entry points
    # takes longer than loading a small model.
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        if MODEL_GROUP not in (distribution.read_text("entry_points.txt") or ""):
            continue
        if distribution.entry_points.select(group=MODEL_GROUP, name=model):
            found.setdefault(read_field(distribution, "Name"), distribution)
    return found


def find_recording_distributions() -> dict[str, importlib.metadata.Distribution]:
    # the text is searched, not parsed: the RECORDs of all installed distributions are long
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        if f"/{FOLDER}/" in (distribution.read_text("RECORD") or ""):
            found.setdefault(read_field(distribution, "Name"), distribution)
    return found


def read_field(distribution: importlib.metadata.Distribution, field: str) -> str:
    """Return a field from the head of a distribution's metadata; empty in a broken installation."""
    # parsing all of `metadata` takes longer than loading a small model
    head, _, _ = (distribution.read_text("METADATA") or "").partition("\n\n")
    for line in head.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    values: list[str] = distribution.metadata.get_all(field) or [""]
    return values[0]


def find_owning_distribution(owner: str, name: str) -> dict[str, importlib.metadata.Distribution]:
    try:
        found = importlib.metadata.distribution(owner)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise ProgramError(
            f"there is no installed distribution `{owner}`",
            where=f"the name `{name}`",
            found=nearest(owner, known_names()),
            hint="install the distribution, or pass a `pathlib.Path` for a folder",
        ) from None
    return {read_field(found, "Name"): found}


def models_of(owner: str, distribution: importlib.metadata.Distribution) -> dict[str, InstalledModel]:
    models: dict[str, InstalledModel] = {}
    for path, recorded in recorded_files(owner, distribution):
        sources: Mapping[str, PackagedFolder | EagerEntry]
        if path.name == MANIFEST:
            folder = replace(open_folder(path.parent, recorded), installed=True)
            sources = dict.fromkeys(folder.manifest.models, folder)
        else:
            sources = read_eager(path)
        for name, source in sources.items():
            models[name] = InstalledModel(owner, name, source)
    return models


def readable_models(owner: str, distribution: importlib.metadata.Distribution) -> dict[str, InstalledModel] | None:
    try:
        return models_of(owner, distribution)
    except ProgramError:
        return None


def recorded_files(owner: str, distribution: importlib.metadata.Distribution) -> Iterator[tuple[Path, Recorded]]:
    """Yield the manifests and eager files that RECORD lists, each with the entries for its folder."""
    lines = [line for line in (distribution.read_text("RECORD") or "").splitlines() if f"{FOLDER}/" in line]
    rows = {row[0]: row[1] if len(row) > 1 else "" for row in csv.reader(lines)}
    whose = f"the installed distribution `{owner}`"
    for path in rows:
        parts = path.split("/")
        if parts[-1] in (MANIFEST, EAGER) and parts[-2:-1] == [FOLDER] and ".." not in parts:
            folder = path.removesuffix(parts[-1])
            digests = {
                file.removeprefix(folder): decode_record_digest(text)
                for file, text in rows.items()
                if file.startswith(folder)
            }
            yield Path(str(distribution.locate_file(path))), Recorded(whose, digests)


def read_eager(path: Path) -> dict[str, EagerEntry]:
    file = decode_file(EagerFile, read_bytes(path), EAGER_SCHEMA, str(path))
    return {
        model: EagerEntry(
            export, {name: path.parent / asset for name, asset in file.assets.get(model, {}).items()}, file.reason
        )
        for model, export in file.models.items()
    }


def not_found(
    name: str, model: str, declared: Mapping[str, importlib.metadata.Distribution], damaged: Sequence[str]
) -> ProgramError:
    for owner, distribution in sorted(declared.items()):
        if any(point.name == model for point in distribution.entry_points.select(group=MODEL_GROUP)):
            if f"/sboms/{SBOM_FILE}," in (distribution.read_text("RECORD") or ""):  # the hook wrote the SBOM first
                what = f"the distribution `{owner}` is incomplete: the lowered models are missing"
                hint = "the build was interrupted: build the wheel again"
            else:
                what = f"the distribution `{owner}` was built without lowered models"
                hint = "build the wheel again with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS"
            return ProgramError(what, where=f"model `{model}`", hint=hint)
    hint = "install the distribution with the model"
    if "/" in name or "\\" in name:
        hint = "pass a `pathlib.Path` to load from a folder; a text is a model's name"
    found = nearest(name, known_names())
    if damaged:
        found += f"; the lowered models of {', '.join(f'`{owner}`' for owner in damaged)} cannot be read"
    return ProgramError(f"there is no installed model `{name}`", found=found, hint=hint)


def known_names() -> list[str]:
    """Return the names of all installed models; `distribution:model` for names that several distributions use."""
    owners: dict[str, set[str]] = {}
    for point in importlib.metadata.entry_points(group=MODEL_GROUP):
        if point.dist is not None:
            owners.setdefault(point.name, set()).add(normal_name(point.dist.name))
    for owner, distribution in find_recording_distributions().items():
        for model in readable_models(owner, distribution) or ():
            owners.setdefault(model, set()).add(normal_name(owner))
    return [
        model if len(names) == 1 else f"{owner}:{model}" for model, names in owners.items() for owner in sorted(names)
    ]


def normal_name(name: str) -> str:
    # the same as `packaging.utils.canonicalize_name`, which takes long to import
    return re.sub(r"[-_.]+", "-", name).lower()
