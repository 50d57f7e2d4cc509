"""Backends by id: those whose class is defined in this process, and those that installed distributions declare."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from hatch_lower import BACKEND_GROUP
from hatch_lower.cache.key import NoKeyError
from hatch_lower.cache.stats import installed_rows
from hatch_lower.canonical import digest_of, sha256_bytes, sha256_file
from hatch_lower.errors import BackendError, nearest
from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.format.record import BackendRecord


def find_backend(backend_id: str) -> type[BackendDetails]:
    """Return a backend's compile half.

    An entry point of the group `hatch_lower.backends` gives the id of an installed backend. A backend that is defined
    in this process is also found under its class name.

    Raises:
        BackendError: if there is none or more than one of that id, or it cannot be imported.
    """
    declared: dict[str, list[EntryPoint]] = {}
    for entry_point in entry_points(group=BACKEND_GROUP):
        declared.setdefault(entry_point.name, []).append(entry_point)
    defined: dict[str, list[type[BackendDetails]]] = {}
    for backend in BackendDetails.__subclasses__():
        defined.setdefault(backend.__name__, []).append(backend)
    targets = sorted({entry_point.value for entry_point in declared.get(backend_id, [])})
    if len(targets) > 1:
        raise BackendError(
            f"two backends have the id `{backend_id}`",
            where=f"entry points `{BACKEND_GROUP}`",
            found=", ".join(f"`{target}`" for target in targets),
            hint="uninstall one of them",
        )
    if targets:
        return load_backend(declared[backend_id][0])
    found = defined.get(backend_id, [])
    if len(found) > 1:
        raise BackendError(
            f"two backends have the id `{backend_id}`",
            where="classes defined in this process",
            found=", ".join(f"`{each.__module__}.{each.__qualname__}`" for each in found),
            hint="rename one of the classes",
        )
    if not found:
        raise BackendError(
            f"there is no backend `{backend_id}`",
            found=nearest(backend_id, [*declared, *defined]),
            hint="install the distribution that provides it, or correct the name",
        )
    return found[0]


def load_backend(entry_point: EntryPoint) -> type[BackendDetails]:
    where = f"entry point `{entry_point.name} = {entry_point.value}`"
    try:
        loaded = entry_point.load()
    except Exception as error:
        raise BackendError(
            f"the backend `{entry_point.name}` could not be imported",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="install what it needs in the build environment",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, BackendDetails)):
        raise BackendError(
            f"the backend `{entry_point.name}` is not a `BackendDetails` subclass", where=where, found=repr(loaded)
        )
    return loaded


VERSION_LINE = re.compile(r"(?P<name>[^\d\s(][^(]*?)(?: \(.*?\))?(?: version)? (?P<version>\d+(\.\d+)+[^\s,]*)(?=\s|$)")
"""What a program says to `--version`: `g++ (Debian 12.2.0-14) 12.2.0`, `GNU ld (GNU Binutils for Debian) 2.40`."""
VERSION = re.compile(r"\d+(\.\d+)+\S*")


def code_of(name: str, backend: type[BackendDetails], known: dict[Path, str]) -> str:
    """Return what identifies a backend's code: of its distribution the version and the sha256 of RECORD.

    Where that does not list the code, as for an editable install or a class that is defined in this process, it is the
    sha256 of the files of the package that defines the class.

    Args:
        name: the backend's id.
        backend: its class.
        known: digests of packages by where they are; extended.
    """
    path = top_file(backend)
    for entry_point in importlib.metadata.entry_points(group=BACKEND_GROUP):
        distribution = entry_point.dist
        if entry_point.name == name and distribution is not None:
            record = distribution.read_text("RECORD") or ""
            root = Path(str(distribution.locate_file("")))
            listed = path.is_relative_to(root) and f"{path.relative_to(root).as_posix()}," in record
            mark = (
                sha256_bytes(installed_rows(record.encode())) if listed else known.setdefault(path, code_digest(path))
            )
            return f"{distribution.name} {distribution.version} {mark}"
    return known.setdefault(path, code_digest(path))


def top_file(backend: type[BackendDetails]) -> Path:
    """Return the file of the outermost package, or module, that holds a class.

    Raises:
        NoKeyError: if it is in no file.
    """
    parts = backend.__module__.split(".")
    for count in range(1, len(parts) + 1):
        path = getattr(sys.modules.get(".".join(parts[:count])), "__file__", None)
        if path is not None:
            return Path(path)
    msg = f"the backend `{backend.__name__}` is defined in no file"
    raise NoKeyError(msg)


def code_digest(path: Path) -> str:
    """Return the sha256 of a module's file, or of all files of a package whose `__init__.py` it is."""
    if path.name != "__init__.py":
        return sha256_file(path)
    files = sorted(file for file in path.parent.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return digest_of([[file.relative_to(path.parent).as_posix(), sha256_file(file)] for file in files])


def backend_record(name: str, fingerprint: Mapping[str, str]) -> BackendRecord:
    """Return what is recorded of a backend.

    Args:
        name: its id.
        fingerprint: of what it lowered; empty if it took nothing.
    """
    for entry_point in importlib.metadata.entry_points(group=BACKEND_GROUP):
        if entry_point.name == name and entry_point.dist is not None:
            return BackendRecord(name, entry_point.dist.name, entry_point.dist.version, dict(fingerprint))
    return BackendRecord(name, "", "", dict(fingerprint))


def tools_named(backends: Iterable[BackendRecord]) -> dict[str, str]:
    """Return the tools in the fingerprints of backends, name to version; their digests and own versions are none."""
    tools: dict[str, str] = {}
    for backend in backends:
        for key, text in backend.fingerprint.items():
            if match := VERSION_LINE.match(text):
                tools[match["name"]] = match["version"]
            elif VERSION.fullmatch(text) and key != backend.name:
                tools[key] = text
    return dict(sorted(tools.items()))
