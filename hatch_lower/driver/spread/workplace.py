"""The place where a worker makes a unit: a temporary folder with a store, and the variables of the child processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hatch_lower.cache.directory import WRITING, choose_directory
from hatch_lower.cache.store import Store, open_store
from hatch_lower.driver.environment import PASSED, child_environment, matches
from hatch_lower.driver.inputs.machine import cpu_capability
from hatch_lower.driver.inputs.preload import built_library
from hatch_lower.driver.spread.protocol import UnitRequest
from hatch_lower.errors import LowerError
from hatch_lower.events import Reporter, notes_of
from hatch_lower.frozen import Frozen

PREFIX = "hatch-lower-unit-"  # of folders that are held while a unit is made
TEMPORARY = frozenset({"TMPDIR", "TMP", "TEMP"})


class Workplace(Frozen):
    folder: Path
    work: Path  # for the build
    store: Store  # its shareable entries are the unit's results
    outbox: Path  # lists the results
    reporter: Reporter
    environment: Mapping[str, str]  # of child processes
    poll: Callable[[], None]  # called while child processes run: its exception ends the processes


def open_workplace(folder: Path, request: UnitRequest, reporter: Reporter, poll: Callable[[], None]) -> Workplace:
    cache = {"HATCH_LOWER_CACHE_DIR": str(folder / "cache"), "HATCH_LOWER_CACHE": "on"}
    store = open_store({**os.environ, **cache}, notes_of(reporter, "cache", request.name))
    work = folder / "work"
    work.mkdir()
    sent = {name: value for name, value in request.environment.items() if not is_own(name)}
    given = {**os.environ, **cache, **sent}
    environment = child_environment(given, tuple(sent), sys.path, work / "temporary", cpu_capability())
    lend_library(store, environment)
    return Workplace(folder, work, store, folder / "outbox", reporter, environment, poll)


def lend_library(store: Store, environment: Mapping[str, str]) -> None:
    """Give a unit's store the library that records reads, because a compilation takes a second."""
    # the only file that stays on a worker, in its user's cache
    with contextlib.suppress(OSError, LowerError):
        directory, mode = choose_directory(os.environ, lambda line: None)
        library = built_library(directory.parent, environment) if mode in WRITING else None
        if library is not None:
            folder = store.directory / library.parent.name
            folder.mkdir(parents=True, mode=0o700)
            shutil.copy2(library, folder)


def sent_variables(environment: Mapping[str, str], pass_env: tuple[str, ...]) -> dict[str, str]:
    """Return the variables for workers: named by `pass-env`, without the variables that belong to a machine."""
    return {name: value for name, value in environment.items() if matches(name, pass_env) and not is_own(name)}


def is_own(name: str) -> bool:
    # where things are, Python's, the compiler's, and this tool's own with its secrets
    return matches(name, PASSED) or name in TEMPORARY
