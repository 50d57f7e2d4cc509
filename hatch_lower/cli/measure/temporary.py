"""Temporary folders of a benchmark, removed at the end of their block, also after an exception or a signal.

```text
<TMPDIR>/hatch-lower-bench-…/    unpacked wheels, worktrees, builds, files of children; locked by the process
```

An unlocked folder belongs to a killed process. The next `bench`, `profile` or run of pytest that tests lowered models
removes the folder, and the registration of a worktree in the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hatch_lower.cache.locks import held_folder, remove_abandoned
from hatch_lower.driver.signals import ending_on_signals, uninterrupted
from hatch_lower.errors import ProgramError

PREFIX = "hatch-lower-bench-"
FILLING, FILLED = ".filling", ".filled"  # in a shared folder: locked while being filled; exists when filled


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a private folder without links in its path, and remove the folder at the end of the block."""
    remove_lost(Path(tempfile.gettempdir()).resolve())
    with ending_on_signals():
        held = ExitStack()
        try:
            yield held.enter_context(held_folder(PREFIX)).resolve()
        finally:
            with uninterrupted():
                held.close()


@contextmanager
def shared_folder(name: str, fill: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a private folder that processes share by name. The first process fills the folder, the last removes it."""
    # signals are not handled here: the next benchmark removes the folder
    place = Path(tempfile.gettempdir()).resolve()
    remove_lost(place)
    path, descriptor = hold_shared(place / f"{PREFIX}{name}")
    try:
        with (path / FILLING).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not (path / FILLED).exists():
                fill(path)
                (path / FILLED).touch()
        yield path
    finally:
        with uninterrupted(), suppress(BlockingIOError):  # another process has the lock
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_lost(place: Path) -> None:
    """Remove folders of killed benchmarks, and their worktrees' registrations."""
    remove_abandoned(place, f"{PREFIX}*", forget_worktrees)


def forget_worktrees(folder: Path) -> None:
    for link in sorted(folder.glob("*/.git")):
        with suppress(OSError, UnicodeDecodeError):
            known = Path(link.read_text().removeprefix("gitdir:").strip())
            if known.parent.name == "worktrees" and (known / "gitdir").read_text().strip() == str(link):
                shutil.rmtree(known)


def hold_shared(path: Path) -> tuple[Path, int]:
    """Make a folder if absent, and take a shared lock."""
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # another process may have removed the file
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid():
                os.close(descriptor)
                raise ProgramError("a temporary folder belongs to somebody else", where=str(path))
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(status, path.lstat()):
                    return path, descriptor
            os.close(descriptor)
