"""Units that a process elsewhere makes, without any engine: the build here joins them and lowers nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from support.scenarios import Project, sha256, tree

from hatch_lower.build.context import BuildContext, build_context
from hatch_lower.build.spread.answers import read_answer
from hatch_lower.build.spread.protocol import write_request
from hatch_lower.build.spread.requests import requests_of, take_answer
from hatch_lower.build.spread.run_unit import run_unit
from hatch_lower.build.spread.units import find_units, recipe_units
from hatch_lower.cache.store import open_store
from hatch_lower.events import NullReporter
from hatch_lower.hatch.outside import open_project

pytestmark = pytest.mark.torch


def move_away(folder: str) -> None:
    """Make this process one on another machine, as far as folders say: nothing of the build's is named to it."""
    for name in [name for name in os.environ if name.startswith("HATCH_LOWER_")]:
        del os.environ[name]
    for name, variable in (("home", "HOME"), ("temporary", "TMPDIR"), ("xdg", "XDG_CACHE_HOME")):
        os.environ[variable] = os.path.join(folder, name)
        os.mkdir(os.environ[variable])
    os.chdir(os.environ["HOME"])


def context_of(project: Project, work: Path) -> BuildContext:
    read = open_project(project.root)
    work.mkdir()
    store = open_store({"HATCH_LOWER_CACHE_DIR": str(project.cache)}, pytest.fail)
    return build_context(read.settings, read.view, work, store, NullReporter(), read.files)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_methods", pytest.param("mixed", marks=pytest.mark.long)])
def test_a_build_of_what_was_made_elsewhere_lowers_nothing_and_gives_the_same_wheel(
    name: str, project: Callable[[str], Project], built: Callable[[str], Path], tmp_path: Path
) -> None:
    made = project(name)
    context = context_of(made, tmp_path / "work")
    units = recipe_units(find_units(context, shared=False))
    before = tree(made.root)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with ProcessPoolExecutor(1, get_context("spawn"), move_away, (str(elsewhere),)) as pool:
        for asked in requests_of(context, units):
            data = pool.submit(run_unit, write_request(asked.request), *asked.attachments).result()
            answer, entries = read_answer(data, asked.request)
            assert (answer.outcome, answer.error, answer.lacks) == ("made", None, ())
            assert set(take_answer(context, answer, entries)) == set(answer.entries)
            assert take_answer(context, answer, entries) == ()
    left = [path.relative_to(elsewhere).parent.as_posix() for path in elsewhere.rglob("*") if path.is_file()]
    assert left == ["xdg/hatch-lower/v1/preload"], "nothing of the project stays where it was made"
    assert tree(made.root) == before
    assert all(unit.cached for unit in find_units(context, shared=False) if unit.recipe)
    wheel = made.wheel({"HATCH_LOWER_CACHE": "frozen"})  # which lowers nothing
    assert sha256(wheel) == sha256(built(name))
