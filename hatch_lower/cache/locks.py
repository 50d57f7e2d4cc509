"""Locks between builds on one machine: who wants what another build is making waits for it.

A lock saves work and guards nothing: every file of the store is whole or absent without it. So where locks cannot be
had, or are not given in time, the work is done without.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.cache.files import file_mode, make_folder
from hatch_lower.canonical import sha256_bytes

if TYPE_CHECKING:
    import filelock

LEVELS = ("manifest", "export", "partition", "record")
"""What can be locked. Who holds a lock may take those of later levels, so that builds never wait for each other in a
circle; a second one of the same level must be taken together with the first."""

SLOTS = 128
"""Lock files of one level; keys share them, so that their number stays small."""
MOMENT = 1.0
"""Seconds of waiting that nobody need hear of."""


@contextlib.contextmanager
def hold(folder: Path, level: str, keys: Iterable[str], patience: float, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the locks of `keys`; a process that ends lets go of its own.

    Args:
        folder: where the lock files are; made.
        level: one of `LEVELS`.
        keys: any strings.
        patience: seconds after which the work is done without the locks that are still missing.
        waiting: called once if it takes more than a moment.
    """
    import filelock  # 40 ms, which a build without changes need not spend

    assert level in LEVELS
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
    """Release a lock, unless the model's code has closed its file: with that it was released."""
    with contextlib.suppress(OSError):
        lock.release()
