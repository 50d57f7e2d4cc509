"""What builds that were killed have left behind: whoever works on a file or a folder holds it, and what nobody holds is
removed.

A lock goes with its process, however that ends. Where the system has no such locks (Windows) nothing is removed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def make_held(path: Path) -> int:
    """Make a file that this process holds until the descriptor, which is returned, is closed.

    Raises:
        OSError: if it cannot be made.
    """
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600)
        if hold(path, descriptor):
            return descriptor
        os.close(descriptor)


def make_held_folder(prefix: str) -> tuple[Path, int | None]:
    """Make a private folder for temporary files that this process holds until the descriptor is closed.

    Args:
        prefix: of its name.

    Returns:
        Where it is, and the descriptor; `None` where a folder has none (Windows).

    Raises:
        OSError: if it cannot be made.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        if sys.platform == "win32":
            return path, None
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            if hold(path, descriptor):
                return path, descriptor
            os.close(descriptor)


def hold(path: Path, descriptor: int) -> bool:
    """Hold what has just been made; return whether it is still there: to another build it may have looked abandoned."""
    if sys.platform == "win32":
        return True
    with suppress(OSError):  # a file system without locks: there nobody takes anything for abandoned
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove this user's files and folders that match a glob and that nobody holds.

    What cannot be removed stays: it is in nobody's way.
    """
    if sys.platform == "win32":
        return
    for path in sorted(folder.glob(pattern)):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                remove_unless_held(path)


def remove_unless_held(path: Path) -> None:
    """Remove a file or a folder that nobody holds, and let nobody hold it meanwhile.

    Raises:
        OSError: if somebody holds it, or it cannot be opened or removed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):  # and not one of the same name made since
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        os.close(descriptor)
