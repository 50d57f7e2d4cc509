"""The choice of `hatch-lower tune` with scripted lowering and times: figures of each aim, and candidates left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.tuning import SECONDS, ScriptedBench, settings_of

from hatch_lower.cli.measure.tune import choose as choose_module
from hatch_lower.cli.measure.tune.choose import TunedModel, Wanted, current_recipe, find_wanted_models, tune_recipe
from hatch_lower.cli.measure.tune.lowered import LeftOutError
from hatch_lower.cli.tune_text import accuracy_text, tuned_lines
from hatch_lower.errors import BackendError, CaptureError, ConfigError, ProgramError, VerificationError
from hatch_lower.format.evidence import Evidence, MeasuredAccuracy, TunedChoice

pytest.importorskip("scipy")


@pytest.fixture(autouse=True)
def _all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_module, "tools_error", lambda candidate, settings: None)


def chosen(bench: ScriptedBench, **fields: Any) -> TunedModel:
    wanted = Wanted(settings_of(), "digits", "latency", 600.0, "x86-64-v3", 2, current="default")
    return tune_recipe(replace(wanted, **fields), bench, lambda line: None, lambda: bench.now)


def test_the_fastest_candidate_is_chosen_and_every_candidate_is_measured() -> None:
    bench = ScriptedBench()
    tuned = chosen(bench)
    assert tuned.choice.recipe == "onnxruntime"
    assert {each.recipe for each in tuned.measurements} >= {
        "default",
        "portable",
        "onnxruntime",
        "openvino",
        "executorch",
    }
    assert tuned.ratios["default"] == pytest.approx(2.4)
    assert (tuned.current, tuned.is_certain) == ("default", True)
    assert bench.open == set()


def test_the_interval_of_few_heats_is_the_range_of_the_processes() -> None:
    found = {each.recipe: each.calls[0] for each in chosen(ScriptedBench()).measurements}
    executorch, onnxruntime = found["executorch"], found["onnxruntime"]
    assert (executorch.median, executorch.low, executorch.high) == pytest.approx((2.0, 1.8, 2.2))
    assert (onnxruntime.eager, executorch.eager) == (1.0, 1.0)


def test_the_choice_so_far_stays_among_equal_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECONDS, "openvino", 0.505)
    assert chosen(ScriptedBench()).choice.recipe == "onnxruntime"
    assert chosen(ScriptedBench(), current="openvino").choice.recipe == "openvino"


def test_the_choice_so_far_is_the_level_s_own_or_the_first_recipe() -> None:
    settings = settings_of(recipes={"a": {}, "b": {"backends": ["openvino"]}})
    evidence = Evidence((), (TunedChoice("digits", "x86-64-v4", "latency", "b"),))
    assert current_recipe(settings, "digits", evidence, "x86-64-v4") == "b"
    assert current_recipe(settings, "digits", evidence, "x86-64-v3") == "default"
    assert current_recipe(settings_of(), "digits", evidence, "x86-64-v4") == "default"


def test_options_are_tried_of_engines_that_are_not_much_slower() -> None:
    bench = ScriptedBench()
    chosen(bench)
    assert "onnxruntime-1-thread" in bench.order
    assert not {"openvino-1-thread", "executorch-1-thread", "aoti-no-prepack-weights"} & set(bench.order)


@pytest.mark.parametrize(("single", "chosen_recipe"), [(0.47, "onnxruntime"), (0.44, "onnxruntime-1-thread")])
def test_a_single_thread_is_chosen_for_more_than_a_little(
    single: float, chosen_recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SECONDS, "onnxruntime-1-thread", single)
    tuned = chosen(ScriptedBench())
    assert tuned.choice.recipe == chosen_recipe
    assert tuned.ratios[chosen_recipe] == 1.0
    assert tuned.ratios["onnxruntime-1-thread"] == pytest.approx(single / SECONDS[chosen_recipe])


def test_a_single_thread_that_is_the_choice_so_far_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECONDS, "onnxruntime-1-thread", 0.47)
    assert chosen(ScriptedBench(), current="onnxruntime-1-thread").choice.recipe == "onnxruntime-1-thread"


def test_size_and_memory_have_their_own_figures() -> None:
    assert chosen(ScriptedBench(), aim="size").choice.recipe == "onnxruntime"
    memory = {"portable": 20 << 20, "default": 40 << 20, "onnxruntime": 23 << 20}
    tuned = chosen(ScriptedBench(memory={**memory, "openvino": 90 << 20, "executorch": 60 << 20}), aim="memory")
    assert tuned.choice.recipe == "onnxruntime-1-thread"
    memory["onnxruntime-1-thread"] = 60 << 20
    tuned = chosen(ScriptedBench(memory={**memory, "openvino": 90 << 20, "executorch": 60 << 20}), aim="memory")
    assert tuned.choice.recipe == "onnxruntime", "a difference of 3 MiB does not count, and its size is smaller"


def test_candidates_are_left_out_with_their_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = BackendError("the backend needs libraries", found="no module `executorch`")
    monkeypatch.setattr(
        choose_module, "tools_error", lambda each, settings: missing if each.name == "executorch" else None
    )
    tuned = chosen(
        ScriptedBench(
            {
                "onnxruntime": VerificationError("other values", found="output 0\n  differs"),
                "openvino": BackendError("an operation is unknown"),
                "load portable": LeftOutError("cannot run here: no AVX-512"),
            }
        )
    )
    assert tuned.left_out == {
        "executorch": "not installed: no module `executorch`",
        "onnxruntime": "not verified: other values: output 0; differs",
        "openvino": "refused: an operation is unknown",
        "portable": "cannot run here: no AVX-512",
    }
    assert tuned.choice.recipe == "default"
    lines = list(tuned_lines(tuned))
    assert "left out: portable: cannot run here: no AVX-512" in lines
    assert "digits keeps the recipe `default`" in lines


def test_a_new_recipe_with_the_program_of_another_candidate_is_not_timed() -> None:
    tuned = chosen(ScriptedBench(programs={"onnxruntime-1-thread": "onnxruntime", "portable": "default"}))
    assert tuned.left_out == {
        "portable": "the same program as `default`",
        "onnxruntime-1-thread": "the same program as `onnxruntime`",
    }


def test_every_recipe_of_the_project_is_timed_also_with_equal_programs() -> None:
    wanted = Wanted(settings_of(recipes={"own": {}}), "digits", "latency", 600.0, "x86-64-v3", 2, current="default")
    bench = ScriptedBench(programs={"own": "default"})
    tuned = tune_recipe(wanted, bench, lambda line: None, lambda: bench.now)
    assert {"default", "own"} <= {each.recipe for each in tuned.measurements}


def test_a_fault_of_the_model_is_raised_when_it_repeats() -> None:
    bench = ScriptedBench({name: CaptureError("torch.export could not capture") for name in SECONDS})
    with pytest.raises(CaptureError):
        chosen(bench)
    assert bench.order == ["default", "portable"]


def test_a_model_without_a_verified_candidate_is_refused_with_all_reasons() -> None:
    bench = ScriptedBench({name: VerificationError(f"{name} differs") for name in SECONDS})
    with pytest.raises(ProgramError, match="no candidate is verified and runs on this machine") as error:
        chosen(bench)
    assert error.value.where == "model `digits`"
    assert error.value.found.startswith("default: not verified: default differs\nportable:")


def test_a_budget_that_ends_early_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECONDS, "openvino", 0.55)
    tuned = chosen(ScriptedBench(), budget=8.5)
    assert not tuned.is_certain
    assert "note: the budget ended before the order of the best was certain" in list(tuned_lines(tuned))


def test_a_budget_without_time_for_eager_is_refused_before_candidates_are_lowered() -> None:
    bench = ScriptedBench()
    bench.least = 8.1
    with pytest.raises(ConfigError, match="the budget is too small") as error:
        chosen(bench, budget=8.0)
    assert bench.order == []
    assert error.value.found == "the calls of eager alone, beside at most 4 candidates, take at least 8.1 s"
    assert error.value.hint == "give at least `--budget 17s`, and time for the calls of the candidates"


def test_an_interrupt_closes_lowered_candidates() -> None:
    bench = ScriptedBench({"load openvino": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        chosen(bench)
    assert bench.open == set()


def test_the_table_has_the_choice_first() -> None:
    lines = list(tuned_lines(chosen(ScriptedBench())))
    assert lines[0] == "digits, for latency, on x86-64-v3, 2 threads"
    assert lines[2].split()[:3] == ["recipe", "settings", "call"]
    assert lines[3].split()[:3] == ["→", "onnxruntime", "onnxruntime"]
    assert lines[-2] == "digits gets the recipe `onnxruntime`: `default` has 2.40 times its time"


@pytest.mark.parametrize(
    ("accuracy", "text"),
    [
        (MeasuredAccuracy("error", 1.4901e-08), "error 1.5e-08"),
        (MeasuredAccuracy("metric", 0.9972222, 0.99722221), "metric 0.9972222, eager 0.99722221"),
        (MeasuredAccuracy("metric", 0.997, 1.0), "metric 0.997, eager 1"),
        (MeasuredAccuracy("metric", 0.99999999, 1.0), "metric 0.99999999, eager 1.0"),
        (MeasuredAccuracy("metric", 0.997), "metric 0.997"),
    ],
)
def test_no_rounding_of_a_metric_hides_a_drop(accuracy: MeasuredAccuracy, text: str) -> None:
    assert accuracy_text(accuracy) == text


def test_an_unknown_model_is_refused_with_a_near_name() -> None:
    assert find_wanted_models(settings_of(), None) == ["digits"]
    with pytest.raises(ConfigError, match="the project has no such model") as error:
        find_wanted_models(settings_of(), "digit")
    assert "digits" in error.value.found
