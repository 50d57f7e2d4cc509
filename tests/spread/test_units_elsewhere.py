"""Units that a process elsewhere makes, without any engine: the build here joins them and lowers nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.elsewhere import context_of, worker
from support.scenarios import Project, sha256, tree

from hatch_lower.driver.spread.protocol import read_unit_answer, write_unit_request
from hatch_lower.driver.spread.run_unit import run_unit
from hatch_lower.driver.spread.snapshot import take_snapshot
from hatch_lower.driver.spread.spread import requests_of, take_answer
from hatch_lower.driver.units import find_units, recipe_units

pytestmark = pytest.mark.torch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_methods", pytest.param("mixed", marks=pytest.mark.long)])
def test_a_build_of_what_was_made_elsewhere_lowers_nothing_and_gives_the_same_wheel(
    name: str, project: Callable[[str], Project], built: Callable[[str], Path], tmp_path: Path
) -> None:
    made = project(name)
    context = context_of(made, tmp_path / "work")
    units = recipe_units(find_units(context, shared=False))
    snapshot = take_snapshot(context.settings, context.view, context.files())
    before = tree(made.root)
    elsewhere = tmp_path / "elsewhere"
    with worker(elsewhere) as run:
        for request in requests_of(context, units, snapshot):
            answer, entries = read_unit_answer(run(run_unit, write_unit_request(request), snapshot.data), request)
            assert (answer.outcome, answer.error, answer.lacks) == ("made", None, ())
            assert set(take_answer(context, answer, entries)) == set(answer.entries)
            assert take_answer(context, answer, entries) == ()
    left = [path.relative_to(elsewhere).parent.as_posix() for path in elsewhere.rglob("*") if path.is_file()]
    assert left == ["xdg/hatch-lower/v1/preload"], "nothing of the project stays where it was made"
    assert tree(made.root) == before
    assert all(unit.cached for unit in find_units(context, shared=False) if unit.recipe)
    wheel = made.wheel({"HATCH_LOWER_CACHE": "frozen"})  # which lowers nothing
    assert sha256(wheel) == sha256(built(name))
