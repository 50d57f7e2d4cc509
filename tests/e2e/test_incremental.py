"""It is incremental: building the same again calls no `preprocess`, for `frozen` turns a call into an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.scenarios import Project, sha256, tree

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

FROZEN = {"HATCH_LOWER_CACHE": "frozen"}


def test_a_second_build_calls_no_preprocess(project: Callable[[str], Project]) -> None:
    scenario = project("mixed")
    first = sha256(scenario.wheel())
    assert sha256(scenario.wheel(FROZEN)) == first


def test_moving_code_costs_no_preprocess(project: Callable[[str], Project]) -> None:
    scenario = project("mixed")
    first = sha256(scenario.wheel())
    scenario.edit("mixed/model.py", "class Mixed(", "# A comment that moves every line below it.\n\n\nclass Mixed(")
    assert sha256(scenario.wheel(FROZEN)) != first, "the debug map names the new lines"


def test_new_weights_on_the_same_graph_cost_no_compilation(project: Callable[[str], Project]) -> None:
    scenario = project("mixed")
    first = sha256(scenario.wheel())
    scenario.edit("mixed/model.py", "torch.manual_seed(3)", "torch.manual_seed(4)")
    assert sha256(scenario.wheel(FROZEN)) != first


def test_a_changed_graph_is_a_miss_that_frozen_reports(project: Callable[[str], Project]) -> None:
    scenario = project("mixed")
    scenario.wheel()
    entries = tree(scenario.cache)
    for wheel in scenario.dist.glob("*.whl"):
        wheel.unlink()
    scenario.edit("mixed/model.py", "functional.gelu", "functional.silu")
    done = scenario.build(environment=FROZEN)
    assert done.status != 0
    assert "frozen" in done.stderr
    assert scenario.left_behind() == []
    assert entries.items() <= tree(scenario.cache).items()


def test_an_empty_cache_that_is_frozen_fails(project: Callable[[str], Project]) -> None:
    scenario = project("tiny")
    done = scenario.build(environment=FROZEN)
    assert done.status != 0
    assert "frozen" in done.stderr
    assert scenario.left_behind() == []
