"""Locks between builds on one machine, and files and folders that a running build holds.

A build that needs a result which another build is making waits for that build. The lock only saves work: files of the
store are whole or absent without any lock. So where locks are not available, or not released in time, the build goes
on without the lock.

A build holds its private files and folders until the process ends, even by a kill. Private files without a holder were
left by a killed build, and are removed. On Windows, which lacks locks of this kind, no files are removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from hatch_lower.cache.directory import file_mode, make_folder
from hatch_lower.canonical import sha256_bytes

if TYPE_CHECKING:
    import filelock
if sys.platform != "win32":
    import fcntl

# The holder of a lock may only take locks of later levels, so that builds never wait for each other in a circle.
# Several locks of the same level must be taken in a single call.
Level: TypeAlias = Literal["manifest", "export", "partition", "record"]
SLOTS = 128  # lock files of a level; keys share lock files, so that the number of files stays small
MOMENT = 1.0  # seconds to wait before reporting that another build holds the lock


@contextlib.contextmanager
def hold_keys(
    folder: Path, level: Level, keys: Iterable[str], patience: float, waiting: Callable[[], None]
) -> Iterator[None]:
    """Hold the locks of `keys`; after `patience` seconds go on without the locks that are still missing."""
    import filelock  # takes 40 ms, so not in builds without changes

    slots = sorted({int(sha256_bytes(key.encode())[:8], 16) % SLOTS for key in keys})
    deadline = time.monotonic() + patience
    told = False
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, filelock.Timeout):
            make_folder(folder)
            mode = file_mode(folder)
            for slot in slots:
                lock = filelock.FileLock(folder / f"{level}-{slot:03}", mode=mode, thread_local=False)
                try:
                    lock.acquire(timeout=min(MOMENT, max(0.0, deadline - time.monotonic())))
                except filelock.Timeout:
                    if not told:
                        waiting()
                    told = True
                    lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
                held.callback(let_go, lock)
        yield


def let_go(lock: filelock.BaseFileLock) -> None:
    # the model's code may have closed the lock's file, which releases it
    with contextlib.suppress(OSError):
        lock.release()


def make_held(path: Path) -> int:
    """Make a file that this process holds until the returned descriptor is closed."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600)
        if hold(path, descriptor):
            return descriptor
        os.close(descriptor)


@contextlib.contextmanager
def held_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a private folder and remove it after the block; first remove folders that killed processes left."""
    path, descriptor = make_held_folder(prefix, parent)
    try:
        remove_abandoned(path.parent, f"{prefix}*")
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def make_held_folder(prefix: str, parent: Path | None = None) -> tuple[Path, int | None]:
    """Make a private folder, by default among temporary files, held until the descriptor is closed (not on Windows)."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if sys.platform == "win32":
            return path, None
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            if hold(path, descriptor):
                return path, descriptor
            os.close(descriptor)


def hold(path: Path, descriptor: int) -> bool:
    if sys.platform == "win32":
        return True
    with contextlib.suppress(OSError):  # a file system without locks: no build removes abandoned files there
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:  # another build may have removed the file as abandoned before the lock was taken
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def remove_abandoned(folder: Path, pattern: str, before: Callable[[Path], None] = lambda path: None) -> None:
    """Remove this user's files and folders that match a glob and have no holder; call `before` with each path."""
    if sys.platform == "win32":
        return
    for path in sorted(folder.glob(pattern)):
        with contextlib.suppress(OSError):  # a file that cannot be removed does no harm
            if path.lstat().st_uid == os.getuid():
                remove_unless_held(path, before)


def remove_unless_held(path: Path, before: Callable[[Path], None]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):  # the file was not replaced meanwhile
            before(path)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        os.close(descriptor)
