"""`hatch_lower.fetch`: files of weights that are not in the wheel, from where the wheel says that they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.format.weights import Weights
from hatch_lower.runtime.files import PackagedFolder, folder_at
from hatch_lower.runtime.installed import EagerEntry, InstalledModel, find_model, models_of, normal_name, recording
from hatch_lower.runtime.obtain import Fetched, fetch_sources
from hatch_lower.runtime.outside import read_listed


def fetch(
    name_or_path: str | os.PathLike[str], to: str | os.PathLike[str] | None = None, *, origins: Sequence[str] = ()
) -> list[Fetched]:
    """Fetch the weights of installed models, or of those in a folder, that are not in their wheel.

    What is already here is compared with its digest, and replaced if it has another.

    Args:
        name_or_path: `"digits"` or `"distribution:digits"` of an installed model, or a distribution's name for all of
            its models; an `os.PathLike` of a `_lowered` folder, or of a model's folder inside it.
        to: the folder to put the files into, for another machine or a layer of an image, instead of the cache. `load`
            finds them there if `HATCH_LOWER_WEIGHTS` names it.
        origins: other places that have the same bytes: URLs or paths of files; one that ends with `/`, or a folder, is
            where all files lie, under their names.

    Raises:
        FetchError: if a file cannot be had, is another one, or there is no space for it.
        ProgramError: if there is no such model.
        InputError: for anything but a text or a path.
    """
    sources = [source for weights in weights_named(name_or_path) for source in weights.sources]
    return fetch_sources(sources, None if to is None else Path(to), origins)


def weights_named(name_or_path: str | os.PathLike[str]) -> Iterator[Weights]:
    if isinstance(name_or_path, os.PathLike):
        folder, model = folder_at(Path(name_or_path))
        chosen = [(folder, name) for name in sorted(folder.manifest.models) if model in (None, name)]
    elif isinstance(name_or_path, str):
        chosen = [(folder_of(model), model.model) for model in models_named(name_or_path)]
    else:
        raise InputError(
            "`fetch` takes the name of an installed model, or a path object", found=type(name_or_path).__name__
        )
    for folder, model in chosen:
        if (file := folder.manifest.models[model].weights) is not None:
            yield read_listed(folder, file)


def models_named(name: str) -> list[InstalledModel]:
    for owner, distribution in recording().items():
        if normal_name(owner) == normal_name(name):
            return list(models_of(owner, distribution).values())
    return [find_model(name)]


def folder_of(model: InstalledModel) -> PackagedFolder:
    if isinstance(model.source, EagerEntry):
        raise ProgramError(
            f"model `{model.model}` runs eagerly and has no packaged weights",
            where=model.source.export,
            hint='install the project editable with `editable = "lower"`, or not editable',
        )
    return model.source
