"""Parts of a recipe that other processes make, without any engine: the wheel is that of one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.elsewhere import context_of, worker
from support.scenarios import Project, sha256

from hatch_lower.build.context import BuildContext
from hatch_lower.build.spread.answers import read_answer
from hatch_lower.build.spread.entries import entry_of
from hatch_lower.build.spread.protocol import write_request
from hatch_lower.build.spread.requests import Asked, ask_again, may_ask, request_part, requests_of, take_answer
from hatch_lower.build.spread.run_unit import run_unit
from hatch_lower.build.spread.units import find_units, recipe_units

pytestmark = pytest.mark.torch


def make(context: BuildContext, asked: Asked, run: Callable[..., bytes], made: Counter[str]) -> None:
    """Have a unit made, and first each part that it needs, as a scheduler would."""
    before: list[str] = []
    while True:
        made[asked.request.name] += 1
        data = run(run_unit, write_request(asked.request), *asked.attachments.values())
        answer, entries = read_answer(data, asked.request)
        assert (answer.error, answer.lacks) == (None, ())
        take_answer(context, answer, entries)
        if answer.outcome == "made":
            return
        for need in answer.needs:
            if context.store.find(need.key) is None:
                make(context, may_ask(request_part(asked, need, entries.blob(need.blob))), run, made)
        before += [need.key for need in answer.needs]
        found = [entry_of(context.store, key) for key in before]
        asked = may_ask(ask_again(asked, [entry for entry in found if entry is not None]), before)


@pytest.mark.slow
@pytest.mark.long  # `test_spread` compares the wheel of parts that an executor has had made
@pytest.mark.parametrize("name", ["two_methods", "mixed"])
def test_a_wheel_of_parts_that_were_made_elsewhere_is_the_same(
    name: str, project: Callable[[str], Project], built: Callable[[str], Path], tmp_path: Path
) -> None:
    here = project(name)
    context = context_of(here, tmp_path / "work")
    made: Counter[str] = Counter()
    with worker(tmp_path / "elsewhere") as run:
        for asked in requests_of(context, recipe_units(find_units(context, shared=False))):
            make(context, may_ask(asked), run, made)
    kinds = Counter(unit.split()[0] for unit in made)
    assert made[f"{name}/default"] == 2  # it asks, and finds all that it has asked for
    assert made[f"{name}/portable"] == 1
    assert kinds["partition"] >= 2
    assert (kinds["interface.cpp"], kinds["wrapper.cpp"]) == ((1, kinds["partition"]) if name == "mixed" else (0, 0))
    wheel = here.wheel({"HATCH_LOWER_CACHE": "frozen"})  # which lowers nothing
    assert sha256(wheel) == sha256(built(name))
