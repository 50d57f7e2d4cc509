"""Wheels that hatchling has written and that never got their payload: where no kill prevents it, they do not stay."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheels_in(directory: Path) -> dict[str, tuple[int, int]]:
    """Return inode and modification time of each wheel in a folder, by its name."""
    found = {}
    for path in directory.glob("*.whl"):
        status = path.stat()
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


def remove_unfinished(directory: Path, project: str, before: Mapping[str, tuple[int, int]], member: str) -> None:
    """Remove the wheels of a project that have been made since and that do not hold the payload.

    There is one where hatchling copies a wheel to a disk that is too small, or a hook fails before ours has its turn.

    Args:
        directory: the folder for wheels.
        project: name and version, as wheels are called.
        before: the wheels that were there.
        member: the path of a file of the payload.
    """
    for name, status in wheels_in(directory).items():
        if name.startswith(f"{project}-") and before.get(name) != status and not has_member(directory / name, member):
            (directory / name).unlink(missing_ok=True)


def has_member(wheel: Path, member: str) -> bool:
    """Return whether a wheel is whole and holds a file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return member in archive.NameToInfo
    except (OSError, zipfile.BadZipFile):
        return False
