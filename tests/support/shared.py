"""What several tests need and one of them makes: once in a run, whichever of its processes comes first."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock


@dataclass(frozen=True, slots=True)
class Shared:
    """A folder that all processes of a run share.

    Args:
        folder: exists; it goes when the run has passed.
    """

    folder: Path

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return a folder that `make` has filled, in this process or in another one of the run.

        A `make` that fails is called again, with an empty folder, by the next test that asks.
        """
        with self.lock(name):
            done = self.folder / f"{name}.done"
            if done.exists():
                return Path(done.read_text())
            attempt = len(list(self.folder.glob(f"{name}-*")))
            made = self.folder / f"{name}-{attempt}"
            made.mkdir()
            make(made)
            done.write_text(str(made))
            return made

    def lock(self, name: str) -> FileLock:
        """Return the lock of what has this name."""
        return FileLock(self.folder / f"{name}.lock")


def shared_by_the_run(factory: pytest.TempPathFactory) -> Shared:
    """Return what this run shares; pytest-xdist gives each of its processes a folder below that of the run."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return Shared(folder)
