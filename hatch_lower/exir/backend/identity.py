"""What identifies a backend: its code, beyond the fingerprint that it gives itself, and where it comes from."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from hatch_lower import BACKEND_GROUP
from hatch_lower.cache.key import NoKeyError
from hatch_lower.cache.stats import installed_rows
from hatch_lower.canonical import digest_of, sha256_bytes, sha256_file
from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.format.record import BackendRecord

__all__ = ["backend_record", "code_digest", "code_of", "tools_named"]

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
    files = sorted(each for each in path.parent.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    return digest_of([[each.relative_to(path.parent).as_posix(), sha256_file(each)] for each in files])


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
