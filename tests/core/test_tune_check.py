"""`hatch-lower tune --check` with scripted times: the choice in the evidence beside the other candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.tuning import SECONDS, ScriptedBench, settings_of

from hatch_lower.cli.measure.tune import choose as choose_module
from hatch_lower.cli.measure.tune.check import CheckedModel, check_choice, verdict_lines
from hatch_lower.cli.measure.tune.choose import Wanted, tune_recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, ConfigError, ProgramError
from hatch_lower.format.evidence import Evidence

pytest.importorskip("scipy")

LEVEL = "x86-64-v3"
WRITTEN = {
    "recipes": {"onnxruntime": {"backends": ["onnxruntime"]}},
    "models": {"digits": {"recipes": ["onnxruntime"]}},
}


@pytest.fixture(autouse=True)
def _all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_module, "tools_error", lambda candidate, settings: None)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """The measurements of a choice among the scripted candidates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose_module, "tools_error", lambda candidate, settings: None)
        bench = ScriptedBench()
        wanted = Wanted(settings_of(), "digits", "latency", 600.0, LEVEL, 2, current="default")
        tuned = tune_recipe(wanted, bench, lambda line: None, lambda: bench.now)
    return Evidence().with_model(tuned.choice, tuned.measurements)


def checked(evidence: Evidence, bench: ScriptedBench, limit: float = 1.1, **fields: Any) -> CheckedModel:
    wanted = Wanted(settings_of(**WRITTEN), "digits", "latency", 600.0, LEVEL, 2, current="default")
    return check_choice(replace(wanted, **fields), evidence, limit, bench, lambda line: None, lambda: bench.now)


def test_a_choice_that_is_still_the_best_is_kept(evidence: Evidence) -> None:
    bench = ScriptedBench()
    found = checked(evidence, bench)
    assert sorted(bench.order) == sorted(each.recipe for each in evidence.measurements)
    assert (found.better, found.undecided) == ({}, {})
    assert list(verdict_lines(found)) == ["digits: no candidate is better than `onnxruntime` by more than 1.1"]


def test_a_candidate_that_has_become_better_is_named(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECONDS, "openvino", 0.4)
    found = checked(evidence, ScriptedBench())
    assert list(found.better) == ["openvino"]
    (line,) = verdict_lines(found)
    assert (
        line == "better: `openvino` has 0.80 of the figure of `onnxruntime`, for latency, in digits; the limit is 1.1"
    )


def test_a_difference_within_the_limit_is_no_failure(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECONDS, "openvino", 0.4)
    assert checked(evidence, ScriptedBench(), 1.3).better == {}


def test_an_open_ratio_is_not_decided(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECONDS, "openvino", 0.4)
    found = checked(evidence, ScriptedBench(), budget=7.0)
    assert (list(found.undecided), found.better) == (["openvino"], {})
    assert next(verdict_lines(found)).startswith("not decided: `openvino` has 0.80 (")


def test_a_check_refuses_a_budget_without_time_for_eager_before_candidates_are_lowered(evidence: Evidence) -> None:
    bench = ScriptedBench()
    bench.least = 8.1
    with pytest.raises(ConfigError, match="the budget is too small"):
        checked(evidence, bench, budget=8.0)
    assert bench.order == []


def test_a_size_is_compared_exactly(evidence: Evidence) -> None:
    choice = replace(evidence.choices[0], aim="size")
    found = checked(evidence.with_model(choice, evidence.measurements), ScriptedBench(), aim="size")
    assert found.better == {}
    assert found.ratios["openvino"].low == found.ratios["openvino"].high == pytest.approx(230 / 130)


def test_a_candidate_that_is_no_longer_installed_is_left_out(evidence: Evidence) -> None:
    found = checked(evidence, ScriptedBench({"openvino": BackendError("an operation is unknown")}))
    lines = list(verdict_lines(found))
    assert lines[0] == "left out: openvino: refused: an operation is unknown"
    assert lines[-1] == "digits: no measured candidate is better than `onnxruntime` by more than 1.1"


def test_a_choice_that_cannot_be_measured_is_an_error(evidence: Evidence) -> None:
    with pytest.raises(ProgramError, match="the chosen recipe cannot be measured") as error:
        checked(evidence, ScriptedBench({"onnxruntime": BackendError("an operation is unknown")}))
    assert error.value.where == "digits/onnxruntime"


def test_another_level_has_no_choice(evidence: Evidence) -> None:
    with pytest.raises(ConfigError, match="no choice for the model `digits` was measured") as error:
        checked(evidence, ScriptedBench(), level="x86-64-v4")
    assert error.value.found == "a choice for x86-64-v3; this machine is x86-64-v4"
    assert "`hatch-lower tune --write`" in error.value.hint


def test_a_project_without_the_chosen_recipe_is_refused(evidence: Evidence) -> None:
    with pytest.raises(ConfigError, match="does not have the recipe that was chosen") as error:
        checked(evidence, ScriptedBench(), settings=settings_of())
    assert error.value.found == "`onnxruntime`; the project has `default`"


@pytest.mark.parametrize(
    "settings", [{"backends": ["x"]}, {"backends": [], "precision": "int3"}, {"backends": [], "of-a-newer-version": 1}]
)
def test_settings_that_are_no_recipe_are_refused(evidence: Evidence, settings: dict[str, Any]) -> None:
    damaged = [replace(each, settings=settings) for each in evidence.measurements]
    with pytest.raises(ConfigError, match="settings that are no recipe"):
        checked(evidence.with_model(evidence.choices[0], damaged), ScriptedBench())


@pytest.mark.parametrize("name", ["../outside", "a/b", "two\nlines", "x" * 500])
def test_a_measured_name_that_cannot_be_a_file_name_is_refused(evidence: Evidence, name: str) -> None:
    *others, last = (each for each in evidence.measurements if each.recipe != evidence.choices[0].recipe)
    (chosen,) = (each for each in evidence.measurements if each.recipe == evidence.choices[0].recipe)
    damaged = [*others, chosen, replace(last, recipe=name)]
    bench = ScriptedBench()
    with pytest.raises(ConfigError, match="settings that are no recipe") as error:
        checked(evidence.with_model(evidence.choices[0], damaged), bench)
    assert error.value.where.startswith(f"lowering-times.json, recipe {name!r:.20}")
    assert bench.order == []


def test_the_project_decides_the_settings_of_its_recipes(evidence: Evidence) -> None:
    changed = {**WRITTEN, "recipes": {"onnxruntime": {"backends": [{"name": "onnxruntime", "threads": 1}]}}}
    bench = ScriptedBench()
    seen = []
    lowered = bench.lowered
    bench.lowered = lambda candidate: seen.append(candidate.recipe) or lowered(candidate)  # type: ignore[method-assign]
    checked(evidence, bench, settings=settings_of(**changed))
    (recipe,) = (each for each in seen if each.name == "onnxruntime")
    assert recipe.backends == (BackendChoice("onnxruntime", {"threads": 1}),)
