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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hatch_lower.cache.locks import make_held_folder, remove_abandoned

PREFIX = "hatch-lower-bench-"
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
