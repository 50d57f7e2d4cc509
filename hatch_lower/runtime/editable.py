"""Models of editable installs whose sources have changed since they were lowered."""

import importlib.metadata
import warnings
from collections.abc import Mapping
from pathlib import Path

from hatch_lower.canonical import sha256_file
from hatch_lower.format.codec import decode_file
from hatch_lower.format.values import Digest
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.classes import editable_folder
from hatch_lower.runtime.files import PackagedFolder, read_bytes

SOURCES = "sources.json"
SOURCES_SCHEMA = 1


class Sources(Frozen):
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
    sources = decode_file(Sources, read_bytes(path), SOURCES_SCHEMA, str(path)).models.get(model, {})
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
