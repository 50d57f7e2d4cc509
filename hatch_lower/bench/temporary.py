"""Temporary folders of a benchmark. They go when their block ends, by an exception or a signal as well.

```text
<TMPDIR>/hatch-lower-bench-…/    unpacked wheels, worktrees, and what is built there; held while its process lives
```

Folders that nobody holds are of a process that was killed: the next benchmark removes them.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hatch_lower.cache.locks import hold, make_held_folder, remove_abandoned
from hatch_lower.errors import ProgramError

if sys.platform != "win32":
    import fcntl

PREFIX = "hatch-lower-bench-"
FILLED = ".filled"  # is in a shared folder when all is that belongs there
TERMINATED = 128 + signal.SIGTERM  # the exit status of a command that was ended by this signal, as shells say it


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a private folder, without links in its path, that is there until the block ends."""
    with ending_on_sigterm():
        made, descriptor = make_held_folder(PREFIX)
        try:
            remove_abandoned(made.parent, f"{PREFIX}*")
            yield made.resolve()
        finally:
            with undisturbed():
                shutil.rmtree(made, ignore_errors=True)
                if descriptor is not None:
                    os.close(descriptor)


@contextmanager
def shared_folder(name: str, fill: Callable[[Path], None]) -> Iterator[Path]:
    """Give a private folder to all processes that name it: the first fills it, the last that leaves it removes it.

    Nothing becomes of a signal here: who ends by one leaves the folder to the next benchmark.
    """
    place = Path(tempfile.gettempdir()).resolve()
    remove_abandoned(place, f"{PREFIX}*")
    path, descriptor = hold_shared(place / f"{PREFIX}{name}")
    try:
        if not (path / FILLED).exists():
            fill(path)
            (path / FILLED).touch()
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield path
    finally:
        with undisturbed(), suppress(BlockingIOError):  # another process holds it
            if sys.platform != "win32":
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def hold_shared(path: Path) -> tuple[Path, int]:
    """Make a folder unless it is there, and hold it alone: that waits for whoever fills it."""
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # who left it may have removed it since
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(descriptor).st_uid != os.getuid():
                os.close(descriptor)
                raise ProgramError("a temporary folder belongs to somebody else", where=str(path))
            if hold(path, descriptor):
                return path, descriptor
            os.close(descriptor)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM, with which a CI job is cancelled, end this process as an exception does: whatever is open closes."""
    if not in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # an outer block has done it, or the program that called this has its own way
        return
    signal.signal(signal.SIGTERM, exit_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let nobody interrupt a block that removes what was made: a second Ctrl-C would leave it behind."""
    if not in_main_thread():  # signals arrive in the main thread
        yield
        return
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def exit_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
