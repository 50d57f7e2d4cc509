"""Temporary folders of a benchmark. They go when their block ends, by an exception or a signal as well.

```text
<TMPDIR>/hatch-lower-bench-…/    unpacked wheels, worktrees, builds, what children write; held while its process lives
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
from typing import Literal, NoReturn

from hatch_lower.cache.locks import make_held_folder, remove_abandoned
from hatch_lower.errors import ProgramError

if sys.platform != "win32":
    import fcntl

PREFIX = "hatch-lower-bench-"
FILLING, FILLED = ".filling", ".filled"  # in a shared folder: held by who fills it; there once that is done
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
        with (path / FILLING).open("w") as file:
            flock(file.fileno(), "alone")
            if not (path / FILLED).exists():
                fill(path)
                (path / FILLED).touch()
        yield path
    finally:
        with undisturbed(), suppress(BlockingIOError):  # another process holds it
            flock(descriptor, "alone or not at all")
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def hold_shared(path: Path) -> tuple[Path, int]:
    """Make a folder unless it is there, and hold it beside others."""
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # who left it may have removed it since
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid():
                os.close(descriptor)
                raise ProgramError("a temporary folder belongs to somebody else", where=str(path))
            flock(descriptor, "beside others")
            with suppress(FileNotFoundError):
                if os.path.samestat(status, path.lstat()):
                    return path, descriptor
            os.close(descriptor)


def flock(descriptor: int, how: Literal["alone", "alone or not at all", "beside others"]) -> None:
    if sys.platform != "win32":
        kinds = {"alone": fcntl.LOCK_EX, "beside others": fcntl.LOCK_SH}
        fcntl.flock(descriptor, kinds.get(how, fcntl.LOCK_EX | fcntl.LOCK_NB))


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
