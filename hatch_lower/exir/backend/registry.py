"""Backends by id: classes defined in this process, and entry points of installed distributions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path

from hatch_lower import BACKEND_GROUP
from hatch_lower.cache.key import NoKeyError
from hatch_lower.cache.stats import installed_rows
from hatch_lower.canonical import digest_of, sha256_bytes, sha256_file
from hatch_lower.errors import BackendError, nearest
from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.format.record import BackendRecord


def find_backend(backend_id: str) -> type[BackendDetails]:
    """Return a backend's compile half, by the name of an entry point or of a class that is defined in this process."""
    declared = entry_points(group=BACKEND_GROUP)
    named = [entry_point for entry_point in declared if entry_point.name == backend_id]
    # values, for a distribution that is found in two folders of `sys.path` declares its backend twice
    targets = sorted({entry_point.value for entry_point in named})
    if len(targets) > 1:
        raise BackendError(
            f"two backends have the id `{backend_id}`",
            where=f"entry points `{BACKEND_GROUP}`",
            found=", ".join(f"`{target}`" for target in targets),
            hint="uninstall one of them",
        )
    if named:
        return load_backend(named[0])
    defined = BackendDetails.__subclasses__()
    classes = [backend for backend in defined if backend.__name__ == backend_id]
    if len(classes) > 1:
        raise BackendError(
            f"two backends have the id `{backend_id}`",
            where="classes defined in this process",
            found=", ".join(f"`{backend.__module__}.{backend.__qualname__}`" for backend in classes),
            hint="rename one of the classes",
        )
    if not classes:
        raise BackendError(
            f"there is no backend `{backend_id}`",
            found=nearest(backend_id, {point.name for point in declared} | {backend.__name__ for backend in defined}),
            hint="install the distribution that provides it, or correct the name",
        )
    return classes[0]


def load_backend(entry_point: EntryPoint) -> type[BackendDetails]:
    where = f"entry point `{entry_point.name} = {entry_point.value}`"
    try:
        loaded = entry_point.load()
    except Exception as error:
        raise BackendError(
            f"the backend `{entry_point.name}` could not be imported",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="install the requirements of the backend in the build environment",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, BackendDetails)):
        raise BackendError(
            f"the backend `{entry_point.name}` is not a `BackendDetails` subclass", where=where, found=repr(loaded)
        )
    return loaded


# the output of `--version`: `g++ (Debian 12.2.0-14) 12.2.0`, `GNU ld (GNU Binutils for Debian) 2.40`
VERSION_LINE = re.compile(r"(?P<name>[^\d\s(][^(]*?)(?: \(.*?\))?(?: version)? (?P<version>\d+(\.\d+)+[^\s,]*)(?=\s|$)")
VERSION = re.compile(r"\d+(\.\d+)+\S*")


def backend_distribution(name: str) -> Distribution | None:
    declared = entry_points(group=BACKEND_GROUP)
    return next((point.dist for point in declared if point.name == name and point.dist is not None), None)


def backend_code(name: str, backend: type[BackendDetails], known: dict[Path, str]) -> str:
    """Return an identifier of a backend's code: the version of its distribution and the sha256 of RECORD.

    If RECORD does not list the code, as for an editable install or a class defined in this process, the sha256 covers
    the files of the package that defines the class. `known` holds the digests of packages by path.
    """
    path = top_file(backend)
    distribution = backend_distribution(name)
    mark = "" if distribution is None else installed_digest(distribution, path)
    if not mark:
        if path not in known:
            known[path] = code_digest(path)
        mark = known[path]
    return mark if distribution is None else f"{distribution.name} {distribution.version} {mark}"


def installed_digest(distribution: Distribution, path: Path) -> str:
    """Return the digest of a distribution's RECORD, or an empty string if RECORD does not list `path`."""
    record = distribution.read_text("RECORD") or ""
    root = Path(str(distribution.locate_file("")))
    listed = path.is_relative_to(root) and f"{path.relative_to(root).as_posix()}," in record
    return sha256_bytes(installed_rows(record.encode())) if listed else ""


def top_file(backend: type[BackendDetails]) -> Path:
    # the outermost package: a backend's code is the whole package, not only the module of the class
    parts = backend.__module__.split(".")
    for count in range(1, len(parts) + 1):
        if (path := getattr(sys.modules.get(".".join(parts[:count])), "__file__", None)) is not None:
            return Path(path)
    raise NoKeyError(f"the backend `{backend.__name__}` is defined in no file")


def code_digest(path: Path) -> str:
    if path.name != "__init__.py":
        return sha256_file(path)
    files = sorted(file for file in path.parent.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return digest_of([[file.relative_to(path.parent).as_posix(), sha256_file(file)] for file in files])


def backend_record(name: str, fingerprint: Mapping[str, str]) -> BackendRecord:
    distribution = backend_distribution(name)
    if distribution is None:
        return BackendRecord(name, "", "", dict(fingerprint))
    return BackendRecord(name, distribution.name, distribution.version, dict(fingerprint))


def tools_named(backends: Iterable[BackendRecord]) -> dict[str, str]:
    """Return the tools in the fingerprints of backends, name to version, without digests and the backends' releases."""
    tools: dict[str, str] = {}
    for backend in backends:
        for key, text in backend.fingerprint.items():
            if match := VERSION_LINE.match(text):
                tools[match["name"]] = match["version"]
            elif VERSION.fullmatch(text) and (key, text) != (backend.name, backend.version):
                tools[key] = text
    return dict(sorted(tools.items()))
