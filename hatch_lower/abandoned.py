"""What builds that were killed have left behind: whoever works on a file holds it, and what nobody holds is removed.

A lock goes with its process, however that ends. Where the system has no such locks (Windows) nothing is removed.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

__all__ = ["LOCK", "make_held", "remove_abandoned"]

LOCK = "held"
"""In a folder, the file that is held."""


def make_held(path: Path) -> int:
    """Make a file that this process holds until the descriptor, which is returned, is closed.

    It is held before it has its name, so one that nobody holds is never one that is about to be held.

    Raises:
        OSError: if it cannot be made.
    """
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        take(descriptor)
        os.rename(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return descriptor


def take(descriptor: int) -> bool:
    """Take hold of an open file; return whether nobody else has it."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove this user's files, and folders with a file `held`, that match a glob and that nobody holds.

    What cannot be removed stays: it is in nobody's way.
    """
    if sys.platform == "win32":
        return
    for path in sorted(folder.glob(pattern)):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid() and is_abandoned(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_abandoned(path: Path) -> bool:
    """Return whether nobody holds a file, or the file `held` of a folder.

    Raises:
        OSError: if there is none.
    """
    descriptor = os.open(path / LOCK if path.is_dir() else path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return take(descriptor)
    finally:
        os.close(descriptor)
