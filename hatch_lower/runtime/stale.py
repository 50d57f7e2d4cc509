"""Whether the project of an editable install still is what its programs were made from."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hatch_lower.canonical import sha256_file
from hatch_lower.format.codec import read_file
from hatch_lower.format.values import Digest
from hatch_lower.runtime.classes import editable_folder
from hatch_lower.runtime.files import PackagedFolder, read_bytes

SOURCES = "sources.json"
SOURCES_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that exports read: model to the file's path below the project, its time in nanoseconds and digest."""

    models: Mapping[str, Mapping[str, tuple[int, Digest]]]


def changed_sources(folder: PackagedFolder, model: str) -> list[str]:
    """Return the files that the export of a model read and that have changed since; none for what is not editable.

    Raises:
        ProgramError: if the list of them is damaged.
    """
    path = folder.path / SOURCES
    if not folder.installed or not path.exists():
        return []
    try:
        root = editable_folder(importlib.metadata.distribution(folder.manifest.distribution))
    except importlib.metadata.PackageNotFoundError:
        root = None
    if root is None:
        return []
    sources = read_file(Sources, read_bytes(path), SOURCES_SCHEMA, str(path)).models.get(model, {})
    return [name for name, (time, digest) in sources.items() if has_changed(Path(root, name), time, digest)]


def has_changed(path: Path, time: int, digest: str) -> bool:
    """Return whether a file has other contents than it had; they are read only if its time is another one."""
    try:
        return path.stat().st_mtime_ns != time and sha256_file(path) != digest
    except OSError:
        return True


def stale_text(model: str, changed: list[str]) -> str:
    """Return what is wrong with a model whose sources have changed, and what to do."""
    names = ", ".join(f"`{each}`" for each in changed[:3])
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"model `{model}` was lowered before {names}{more} changed: install the project again, or set "
        '`editable = "eager"`'
    )


def warn_if_stale(folder: PackagedFolder, model: str) -> None:
    """Say in a `RuntimeWarning` that a model was made from other sources than are there now."""
    changed = changed_sources(folder, model)
    if changed:
        warnings.warn(stale_text(model, changed), RuntimeWarning, stacklevel=3)
