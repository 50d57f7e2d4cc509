"""Files that exist completely or not at all, in folders that only this user can enter.

In a folder that has the set-group-ID bit (`chmod 2770`), the group can enter new folders and write new files, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

LEFTOVER = ".part"  # suffix of unfinished files; an old file with this suffix was left by a killed process

ATTEMPTS = 5  # at making a folder that a trim may remove while the folder is still empty

Result = TypeVar("Result")


def make_folder(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for parent in reversed(missing):
        with contextlib.suppress(FileExistsError):
            parent.mkdir(mode=0o700)
            # the umask may have removed bits of the mode
            parent.chmod(0o2770 if is_shared(parent.parent) else 0o700)


def is_shared(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_ISGID)


def file_mode(folder: Path) -> int:
    return 0o660 if is_shared(folder) else 0o600


def in_folder(folder: Path, action: Callable[[], Result]) -> Result:
    for _ in range(ATTEMPTS - 1):  # a trim may remove the empty folder in between
        with contextlib.suppress(FileNotFoundError):
            make_folder(folder)
            return action()
    make_folder(folder)
    return action()


@contextlib.contextmanager
def temporary_beside(path: Path, *, private: bool = False) -> Iterator[Path]:
    folder = path.parent
    handle, name = in_folder(folder, lambda: tempfile.mkstemp(prefix=".", suffix=LEFTOVER, dir=folder))
    os.close(handle)
    try:
        if not private:  # a private file is closed to other users from the start: `mkstemp` makes files so
            os.chmod(name, file_mode(folder))
        yield Path(name)
    finally:
        with contextlib.suppress(FileNotFoundError):  # renamed by the caller
            os.unlink(name)


def write_file(path: Path, data: bytes) -> None:
    with temporary_beside(path) as part:
        part.write_bytes(data)
        os.replace(part, path)


def move_file(source: Path, path: Path) -> None:
    def move() -> None:
        source.chmod(file_mode(path.parent))
        os.replace(source, path)

    try:
        in_folder(path.parent, move)
    except OSError as error:
        if error.errno != errno.EXDEV:  # another file system
            raise
        with temporary_beside(path) as part:
            shutil.copyfile(source, part)
            os.replace(part, path)


def remove_unused(path: Path, seen: os.stat_result) -> bool:
    """Remove a file unless it was marked as used or replaced since `seen`; return whether the file was removed."""
    # aside first: a build that marks the file as used after this step finds no file, and so treats the entry as missing
    aside = path.with_name(f".{path.name}-{os.getpid()}{LEFTOVER}")
    try:
        os.rename(path, aside)
        now = aside.stat()
        if (now.st_ino, now.st_mtime_ns) != (seen.st_ino, seen.st_mtime_ns) and not path.exists():
            os.rename(aside, path)
            return False
        aside.unlink()
    except OSError:  # another trim was faster, or the file system refuses: the next trim tries again
        return False
    return True
