"""A process that is as good as another machine, and a build that has units made there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.cache.store import open_store
from hatch_lower.driver.context import BuildContext, build_context
from hatch_lower.events import NullReporter
from hatch_lower.hatch.outside import open_project
from support.scenarios import Project


@contextmanager
def worker(folder: Path) -> Iterator[Callable[..., Any]]:
    """Give what runs a function in a process whose own files are in a new folder."""
    folder.mkdir()
    with ProcessPoolExecutor(1, get_context("spawn"), move_away, (str(folder),)) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def move_away(folder: str) -> None:
    """Make this process one on another machine, as far as folders say: nothing of the build's is named to it."""
    for name in [name for name in os.environ if name.startswith("HATCH_LOWER_")]:
        del os.environ[name]
    for name, variable in (("home", "HOME"), ("temporary", "TMPDIR"), ("xdg", "XDG_CACHE_HOME")):
        os.environ[variable] = os.path.join(folder, name)
        os.mkdir(os.environ[variable])
    os.chdir(os.environ["HOME"])


def context_of(project: Project, work: Path) -> BuildContext:
    """Return a build of a project; its cache is the project's own."""
    read = open_project(project.root)
    work.mkdir()
    store = open_store({"HATCH_LOWER_CACHE_DIR": str(project.cache)}, pytest.fail)
    return replace(build_context(read.settings, read.view, work, store, NullReporter()), files=read.files)
