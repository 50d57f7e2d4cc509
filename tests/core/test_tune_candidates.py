"""Candidates of `hatch-lower tune`: the project's recipes first, then engines with options and precisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hatch_lower.backends import early
from hatch_lower.cli.measure.tune.candidates import (
    first_candidates,
    refuse_no_engine,
    settings_of_candidate,
    settings_text,
    variants,
)
from hatch_lower.config.settings import Metadata, Settings, read_settings
from hatch_lower.errors import ConfigError

NEWER = ["aoti-no-prepack-weights", "aoti-x86-64-v4", "aoti-x86-64-v4-no-prepack-weights"]


def settings_of(**table: Any) -> Settings:
    project = Metadata("digits", "1.0", {"digits": "digits:export", "faces": "digits:export"})
    return read_settings(table, project, root=Path("/project"), packages=["digits"], regular=["digits"])


def names(settings: Settings, *backends: str, precisions: Any = ()) -> list[str]:
    return [each.name for each in first_candidates(settings, "digits", backends, precisions)]


def test_candidates_are_the_recipes_of_the_project_the_portable_recipe_and_each_engine() -> None:
    settings = settings_of(backends=["aoti"], recipes={"fast": {"backends": [{"name": "openvino", "threads": 2}]}})
    assert names(settings) == ["default", "fast", "portable", "onnxruntime", "openvino", "executorch"]


def test_named_backends_replace_the_known_engines() -> None:
    assert names(settings_of(backends=["aoti"]), "openvino") == ["default", "portable", "openvino"]


def test_a_recipe_without_backends_is_the_portable_candidate() -> None:
    assert names(settings_of(), "openvino") == ["default", "openvino"]


def test_precisions_of_the_project_and_of_the_command_line_are_tried_on_each_engine() -> None:
    settings = settings_of(backends=["aoti"], recipes={"small": {"precision": "int8"}})
    found = names(settings, "openvino", precisions=["bfloat16"])
    assert found == [
        *("default", "small", "portable", "openvino"),
        *("portable-bfloat16", "openvino-bfloat16", "openvino-int8"),
    ]


def test_a_taken_name_gets_a_number() -> None:
    settings = settings_of(recipes={"openvino": {"backends": [{"name": "openvino", "threads": 2}]}})
    assert names(settings, "openvino") == ["default", "openvino", "openvino-2"]


@pytest.mark.parametrize(
    ("engine", "level", "threads", "found"),
    [
        ("openvino", "x86-64-v4", 2, ["openvino-1-thread"]),
        ("openvino", "x86-64-v4", 1, []),
        ("executorch", "x86-64-v4", 2, ["executorch-1-thread", "executorch-portable-operators"]),
        ("executorch", "x86-64-v4", 1, ["executorch-portable-operators"]),
        ("aoti", "x86-64-v3", 2, ["aoti-no-prepack-weights"]),
        ("aoti", "aarch64", 2, ["aoti-prepack-weights"]),
        ("aoti", "x86-64-v4-vnni", 2, NEWER),
        ("reference", "x86-64-v4", 2, []),
    ],
)
def test_options_fit_the_machine(engine: str, level: str, threads: int, found: list[str]) -> None:
    candidates = first_candidates(settings_of(), "digits", [engine], ())
    plain = next(each for each in candidates if each.name == engine)
    added = [candidates.add(*each) for each in variants(plain, level, threads)]
    assert [each.name for each in added if each is not None] == found


def test_a_candidate_is_compared_with_eager_also_in_a_project_without_comparisons() -> None:
    assert all(each.recipe.verify for each in first_candidates(settings_of(verify=False), "digits", (), ()))


def test_a_build_of_a_candidate_is_for_one_model_and_recipe() -> None:
    settings = settings_of(backends=["aoti"])
    candidate = next(each for each in first_candidates(settings, "digits", ["openvino"], ()) if each.name == "openvino")
    found = settings_of_candidate(settings, settings.models[1], candidate)
    assert [(model.name, model.recipes) for model in found.models] == [("faces", ("openvino",))]
    assert found.recipe_order == ("openvino",)
    assert found.runtime_requirements == "add"


def test_every_recipe_of_the_model_is_a_candidate_and_an_equal_recipe_of_others_is_none() -> None:
    recipes = {"first": {"rtol": 0.5}, "second": {"torch-free": True}, "other": {}}
    settings = settings_of(recipes=recipes, models={"digits": {"recipes": ["first", "second"]}})
    assert names(settings, "openvino") == ["first", "second", "openvino"]


def test_a_new_candidate_has_the_needs_of_the_first_recipe_of_the_model() -> None:
    recipes = {"own": {"backends": ["aoti"]}, "best": {"torch-free": True, "rtol": 0.5}}
    settings = settings_of(recipes=recipes, models={"digits": {"recipes": ["best"]}})
    candidates = {each.name: each for each in first_candidates(settings, "digits", ["openvino"], ())}
    builds = {name: settings_of_candidate(settings, settings.models[0], each) for name, each in candidates.items()}
    assert {name: each.torch_free for name, each in builds.items()} == {
        "best": ("best",),
        "own": (),
        "openvino": ("openvino",),
    }
    assert candidates["openvino"].recipe.rtol == 0.5


def test_settings_are_shown_with_options_and_precision() -> None:
    settings = settings_of(
        recipes={"fast": {"backends": [{"name": "openvino", "threads": 2}, "aoti"], "precision": "int8"}}
    )
    assert [settings_text(recipe) for recipe in settings.recipes] == [
        "portable",
        "openvino (threads=2) then aoti, int8",
    ]


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_library")
def test_a_named_engine_that_is_not_installed_is_refused() -> None:
    with pytest.raises(ConfigError, match="a named engine is not installed") as error:
        refuse_no_engine(settings_of(), ["openvino"])
    assert "no module `openvino`" in error.value.found
    assert '"hatch-lower[openvino]"' in error.value.hint


@pytest.mark.usefixtures("no_library")
def test_an_environment_without_engines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(ConfigError, match="no engine is installed") as error:
        refuse_no_engine(settings_of(), ())
    assert error.value.found.count("\n") == 3


@pytest.mark.usefixtures("no_library")
def test_a_compiler_is_an_engine() -> None:
    pytest.importorskip("torch")
    refuse_no_engine(settings_of(), ())


def test_an_unknown_backend_is_refused_with_a_near_name() -> None:
    with pytest.raises(ConfigError, match="there is no such backend") as error:
        refuse_no_engine(settings_of(), ["openvno"])
    assert "openvino" in error.value.found
