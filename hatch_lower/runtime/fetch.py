"""`hatch_lower.fetch`: download the files of weights outside a wheel from their declared sources."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.format.weights import Weights
from hatch_lower.runtime.files import PackagedFolder, folder_at
from hatch_lower.runtime.installed import (
    EagerEntry,
    InstalledModel,
    find_model,
    find_recording_distributions,
    models_of,
    normal_name,
)
from hatch_lower.runtime.obtain import Fetched, fetch_sources
from hatch_lower.runtime.outside import read_listed


def fetch(
    name_or_path: str | os.PathLike[str], to: str | os.PathLike[str] | None = None, *, origins: Sequence[str] = ()
) -> list[Fetched]:
    """Fetch the weights of installed models, or of models in a folder, that are outside their wheel.

    Files that are already here are compared with their digests, and replaced if a digest differs.

    Args:
        name_or_path: `"digits"` or `"distribution:digits"` of an installed model, or a distribution's name for all of
            its models; an `os.PathLike` of a `_lowered` folder, or of a model's folder inside it.
        to: the folder to put the files into instead of the cache, for another machine or a layer of an image. `load`
            finds the files there if `HATCH_LOWER_WEIGHTS` names the folder.
        origins: other places with the same bytes: URLs or paths of files; or a folder that has all files under their
            names, as a path or as a URL with `/` at its end.

    Raises:
        FetchError: if a file cannot be fetched, has a different digest, or does not fit the disk.
        ProgramError: if the model is not found.
        InputError: if `name_or_path` is neither a text nor a path.
    """
    sources = [source for weights in weights_named(name_or_path) for source in weights.sources]
    return fetch_sources(sources, None if to is None else Path(to), origins)


def weights_named(name_or_path: str | os.PathLike[str]) -> Iterator[Weights]:
    if isinstance(name_or_path, os.PathLike):
        folder, model = folder_at(Path(name_or_path))
        chosen = [(folder, name) for name in sorted(folder.manifest.models) if model in (None, name)]
    elif isinstance(name_or_path, str):
        chosen = [(find_packaged_folder(model), model.model) for model in models_named(name_or_path)]
    else:
        raise InputError(
            "`fetch` takes the name of an installed model, or a path object", found=type(name_or_path).__name__
        )
    for folder, model in chosen:
        if (file := folder.manifest.models[model].weights) is not None:
            yield read_listed(folder, file)


def models_named(name: str) -> list[InstalledModel]:
    for owner, distribution in find_recording_distributions().items():
        if normal_name(owner) == normal_name(name):
            return list(models_of(owner, distribution).values())
    return [find_model(name)]


def find_packaged_folder(model: InstalledModel) -> PackagedFolder:
    if isinstance(model.source, EagerEntry):
        raise ProgramError(
            f"model `{model.model}` runs eagerly and has no packaged weights",
            where=model.source.export,
            hint='install the project editable with `editable = "lower"`, or not editable',
        )
    return model.source
