"""The engines of a wheel, and the versions that a matrix tries."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support.engine_wheels import REQUIRED, write_distribution, write_model_wheel

from hatch_lower.cli.matrix.engines import (
    Engine,
    TriedRecipe,
    WheelRequirements,
    choose_trials,
    find_engines,
    is_for_this_machine,
    read_tried_wheel,
)
from hatch_lower.cli.matrix.releases import Release
from hatch_lower.errors import ConfigError, ProgramError

ORT = "onnxruntime>=1.23,<2"


def wheel_of(declared: list[str], **recipes: list[str]) -> WheelRequirements:
    rows = tuple(TriedRecipe("net", name, tuple(texts)) for name, texts in recipes.items())
    return WheelRequirements("net", rows, tuple(map(Requirement, declared)))


def engines(wheel: WheelRequirements, *names: str) -> dict[str, Engine]:
    return {engine.name: engine for engine in find_engines(wheel, names, "net.whl")}


def test_the_recipes_and_requirements_of_a_wheel_are_read(tmp_path: Path) -> None:
    requires = [*REQUIRED, 'gpu-only>=1; sys_platform == "nowhere"', 'other; extra == "more"']
    read = read_tried_wheel(write_model_wheel(tmp_path, requires=requires), None, None)
    assert read.distribution == "digits"
    assert read.recipes == (TriedRecipe("digits", "default", REQUIRED),)
    assert [each.name for each in read.declared] == ["hatch-lower", "numpy", "tiny-engine", "other"]


def test_a_recipe_that_is_not_in_the_wheel_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="there is no such recipe") as caught:
        read_tried_wheel(write_model_wheel(tmp_path), None, "defalt")
    assert "digits, default" in caught.value.found


def test_a_wheel_without_lowered_models_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="there are no lowered models here"):
        read_tried_wheel(write_distribution(tmp_path, "plain", "1.0", {"plain.py": ""}), None, None)


@pytest.mark.parametrize(
    ("requires", "recipes"), [(["x >> 1"], None), (["x; nothing == '1'"], None), (REQUIRED, {"default": ["x >> 1"]})]
)
def test_a_requirement_of_another_form_is_an_error(
    tmp_path: Path, requires: list[str], recipes: dict[str, list[str]] | None
) -> None:
    with pytest.raises(ProgramError, match="the wheel cannot be installed"):
        read_tried_wheel(write_model_wheel(tmp_path, requires=requires, recipes=recipes), None, None)


@pytest.mark.parametrize(
    ("marker", "holds"),
    [('extra == "a"', True), ('python_version < "3" and extra == "a"', False), ('python_version >= "3"', True)],
)
def test_a_requirement_with_a_marker_is_for_this_machine(marker: str, holds: bool) -> None:
    assert is_for_this_machine(Requirement(f"x; {marker}")) == holds


def test_the_range_is_that_of_the_wheel_s_metadata_for_the_recipes_of_the_engine() -> None:
    wheel = wheel_of(
        ["hatch-lower>=0.1", "numpy>=1.26,<2.3", "onnxruntime>=1.24,<1.30", "torch>=2.11"],
        small=["hatch-lower>=0.1", "numpy>=1.26", ORT],
        portable=["hatch-lower>=0.1", "torch>=2.11"],
    )
    (engine,) = engines(wheel).values()
    assert engine.requirement == "onnxruntime>=1.24,<1.30"
    assert engine.source == "the wheel's metadata"
    assert [each.recipe for each in engine.recipes] == ["small"]
    assert sorted(engine.others) == ["numpy<2.3,>=1.26", "numpy>=1.26"]  # no torch: this recipe does not need it


def test_a_range_that_the_metadata_lack_is_that_of_the_recipes() -> None:
    (engine,) = engines(wheel_of([], small=[ORT])).values()
    assert (engine.requirement, engine.source) == (ORT, "the recipes")


def test_a_recipe_that_runs_the_project_s_code_gets_all_dependencies() -> None:
    wheel = wheel_of([ORT, "transformers>=5", 'extra-one; extra == "x"'])
    recipe = TriedRecipe("net", "small", (ORT, "torch>=2.11"), imports=True)
    (engine,) = engines(WheelRequirements("net", (recipe,), wheel.declared)).values()
    assert engine.others == ("torch>=2.11", "extra-one", "transformers>=5")


def test_another_build_of_the_engine_that_the_wheel_requires_is_tried_instead() -> None:
    wheel = wheel_of(["onnxruntime-gpu>=1.24,<2"], small=[ORT], gpu=["onnxruntime-gpu>=1.23,<2"])
    (engine,) = engines(wheel).values()
    assert engine.requirement == "onnxruntime-gpu>=1.24,<2"
    assert [each.recipe for each in engine.recipes] == ["small", "gpu"]
    assert engine.others == ()


def test_each_engine_of_a_wheel_varies_with_the_requirements_of_its_own_recipes() -> None:
    both = ["openvino>=2026.0,<2027", ORT]
    found = engines(wheel_of([], small=[ORT], both=both))
    assert {name: [each.recipe for each in engine.recipes] for name, engine in found.items()} == {
        "onnxruntime": ["small", "both"],
        "openvino": ["both"],
    }
    assert found["openvino"].others == (ORT,)


def test_a_wheel_without_recipes_of_an_engine_is_an_error_that_names_its_recipes() -> None:
    wheel = wheel_of([], portable=["hatch-lower>=0.1", "torch>=2.11"])
    with pytest.raises(ProgramError, match="the wheel has no recipe of an engine") as caught:
        engines(wheel)
    assert caught.value.found == "net, portable: hatch-lower>=0.1, torch>=2.11"
    assert "`--engine torch`" in caught.value.hint
    assert engines(wheel, "Torch")["torch"].requirement == "torch>=2.11"


def test_an_engine_that_no_recipe_requires_is_an_error() -> None:
    with pytest.raises(ProgramError, match="no recipe requires this engine") as caught:
        engines(wheel_of([], small=[ORT]), "openvno")
    assert caught.value.where == "`--engine openvno`"


def test_an_engine_that_is_one_file_has_no_range() -> None:
    with pytest.raises(ConfigError, match="not a range of versions") as caught:
        engines(wheel_of(["onnxruntime @ https://host/x.whl"], small=[ORT]))
    assert caught.value.found == "`onnxruntime @ https://host/x.whl`"


def trials(allowed: str, *releases: str) -> list[str]:
    """Return the versions to try; a release that ends with `!` has no wheel here, and `!` stays."""
    engine = Engine("tiny", SpecifierSet(allowed), "the recipes", (), ())
    listed = [Release(Version(text.removesuffix("!")), "no wheel" if text.endswith("!") else "") for text in releases]
    return [f"{each.version}{'!' if each.reason else ''}" for each in choose_trials(engine, listed, ["the index"])]


def test_the_oldest_version_and_the_newest_of_each_minor_version_are_tried() -> None:
    known = ["1.22.0", "1.23.0", "1.23.1", "1.23.2", "1.24.1", "1.24.4", "1.25.0", "2.0.0"]
    assert trials(">=1.23,<2", *known) == ["1.23.0", "1.23.2", "1.24.4", "1.25.0"]
    assert trials(">=1.24.4", *known) == ["1.24.4", "1.25.0", "2.0.0"]
    assert trials(">=1", "1", "1.0.1", "1.1") == ["1", "1.0.1", "1.1"]


def test_a_version_without_a_wheel_is_shown_beside_the_next_one_with_a_wheel() -> None:
    assert trials(">=1", "1.0.0!", "1.0.1", "1.0.2", "1.1.0!", "1.2.0", "1.2.1!") == [
        *("1.0.0!", "1.0.1", "1.0.2", "1.1.0!", "1.2.0", "1.2.1!"),
    ]


def test_a_range_without_a_version_is_an_error_that_names_the_known_versions() -> None:
    with pytest.raises(ProgramError, match="no version that the wheel allows") as caught:
        trials(">=3", "1.0", "2.0")
    assert caught.value.where == "`tiny>=3`, from the recipes"
    assert caught.value.found == "1.0, 2.0 in the index"
    with pytest.raises(ProgramError) as caught:
        trials(">=3")
    assert caught.value.found == "no version in the index"
