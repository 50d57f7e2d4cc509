"""Temporary folders of a benchmark. They go when their block ends, by an exception or a signal as well.

```text
<TMPDIR>/hatch-lower-bench-…/    unpacked wheels, worktrees, builds, what children write; held while its process lives
```

Folders that nobody holds are of a process that was killed: the next `bench`, `profile` or run of pytest that tests
lowered models removes them, and what git knows of a worktree in one of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hatch_lower.build.signals import ending_on_signals, undisturbed
from hatch_lower.cache.locks import held_folder, remove_abandoned
from hatch_lower.errors import ProgramError

PREFIX = "hatch-lower-bench-"
FILLING, FILLED = ".filling", ".filled"  # in a shared folder: held by who fills it; there once that is done


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a private folder, without links in its path, that is there until the block ends."""
    remove_lost(Path(tempfile.gettempdir()).resolve())
    with ending_on_signals():
        held = ExitStack()
        try:
            yield held.enter_context(held_folder(PREFIX)).resolve()
        finally:
            with undisturbed():
                held.close()


@contextmanager
def shared_folder(name: str, fill: Callable[[Path], None]) -> Iterator[Path]:
    """Give a private folder to all processes that name it: the first fills it, the last that leaves it removes it."""
    # nothing becomes of a signal here: who ends by one leaves the folder to the next benchmark
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
        with undisturbed(), suppress(BlockingIOError):  # another process holds it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_lost(place: Path) -> None:
    """Remove the folders of benchmarks that were killed, with their worktrees, of which a repository knows."""
    remove_abandoned(place, f"{PREFIX}*", forget_worktrees)


def forget_worktrees(folder: Path) -> None:
    for link in sorted(folder.glob("*/.git")):
        with suppress(OSError, UnicodeDecodeError):
            known = Path(link.read_text().removeprefix("gitdir:").strip())
            if known.parent.name == "worktrees" and (known / "gitdir").read_text().strip() == str(link):
                shutil.rmtree(known)


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
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(status, path.lstat()):
                    return path, descriptor
            os.close(descriptor)
