"""`order = "measured"`: measured times in the manifest, and files that a build refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.config.timed import recipe_digest, timed_settings
from hatch_lower.driver.measured import find_measured, with_measured
from hatch_lower.errors import ConfigError
from hatch_lower.format.evidence import EVIDENCE_FILE, Evidence, MeasuredCall, Measurement, write_evidence
from hatch_lower.format.manifest import FileEntry, MeasuredCalls, MethodSeconds, ModelEntry, RecipeEntry, model_json
from hatch_lower.format.results import ModelResult

FAST, SLOW = Recipe("fast", (BackendChoice("onnxruntime"),)), Recipe("slow")
HINT = 'run `hatch-lower tune --write`, or write `order = "written"`'
FILE = FileEntry("digits/default.json", 1, "0" * 64)


def settings(root: Path, *recipes: Recipe) -> Settings:
    names = tuple(recipe.name for recipe in recipes)
    return Settings(
        root, "digits", "1", (ModelSettings("digits", "digits:export", "digits", names),), recipes, order="measured"
    )


def measurement(recipe: Recipe, level: str = "x86-64-v3", seconds: float = 1e-3, **fields: Any) -> Measurement:
    call = MeasuredCall("forward", {"batch": 2}, seconds, seconds / 2, seconds * 2)
    measured = Measurement(
        model="digits",
        recipe=recipe.name,
        digest=recipe_digest(recipe),
        settings=timed_settings(recipe),
        level=level,
        threads=2,
        calls=(call,),
        load_seconds=0.1,
        memory_bytes=1,
        wheel_bytes=1,
        installed_bytes=1,
        accuracy=None,
        versions={"torch": "2.13.0"},
    )
    return replace(measured, **fields)


def write(root: Path, *measurements: Measurement) -> None:
    (root / EVIDENCE_FILE).write_bytes(write_evidence(Evidence(measurements)))


def calls(level: str, seconds: float) -> MeasuredCalls:
    return MeasuredCalls(level, 2, (MethodSeconds("forward", {"batch": 2}, seconds),))


def test_each_recipe_has_its_measurements_by_level(tmp_path: Path) -> None:
    write(tmp_path, measurement(SLOW), measurement(FAST, "x86-64-v4", 2e-4), measurement(FAST, "x86-64-v3", 3e-4))
    assert find_measured(settings(tmp_path, FAST, SLOW)) == {
        "digits": {
            "fast": (calls("x86-64-v3", 3e-4), calls("x86-64-v4", 2e-4)),
            "slow": (calls("x86-64-v3", 1e-3),),
        }
    }


def test_measurements_of_former_settings_and_recipes_stay_outside(tmp_path: Path) -> None:
    stale = measurement(FAST, "x86-64-v2", digest="0" * 64)
    other = measurement(Recipe("removed"), "x86-64-v4")
    write(tmp_path, stale, other, measurement(FAST), measurement(SLOW))
    (recipes,) = find_measured(settings(tmp_path, FAST, SLOW)).values()
    assert recipes == {"fast": (calls("x86-64-v3", 1e-3),), "slow": (calls("x86-64-v3", 1e-3),)}


def test_the_manifest_has_the_measured_times() -> None:
    recipe = RecipeEntry(FILE, FILE, (), (), (), None, {})
    entry = ModelEntry(("fast", "slow"), None, None, {"fast": recipe, "slow": recipe})
    result = ModelResult("digits", model_json(entry), (), (), (), {}, "2.13.0")
    times = {"fast": (calls("x86-64-v3", 3e-4),), "slow": (calls("x86-64-v3", 1e-3),)}
    timed = replace(entry, recipes={name: replace(recipe, measured=calls) for name, calls in times.items()})
    assert with_measured(result, times).entry == model_json(timed)
    assert "measured" not in result.entry["recipes"]["fast"]


def refusal(root: Path, *recipes: Recipe) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        find_measured(settings(root, *recipes))
    assert caught.value.where.startswith(str(root / EVIDENCE_FILE))
    return caught.value


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    assert str(refusal(tmp_path, FAST)) == (
        'the setting `order = "measured"` needs a file of measured times\n'
        f"  where: {tmp_path / EVIDENCE_FILE}\n  found: no file\n  to do: {HINT}"
    )


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / EVIDENCE_FILE).mkdir()
    assert refusal(tmp_path, FAST).found == "Is a directory"


def test_all_stale_and_missing_measurements_are_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path, measurement(FAST, digest="0" * 64), measurement(FAST, "x86-64-v4", digest="1" * 64))
    error = refusal(tmp_path, FAST, SLOW)
    assert error.what == 'the setting `order = "measured"` lacks measurements of recipes'
    assert error.found == (
        "recipe `fast` of model `digits` was measured with other settings, on x86-64-v3, x86-64-v4\n"
        "recipe `slow` of model `digits` was not measured"
    )
    assert error.hint == HINT


def test_a_file_of_another_project_is_refused(tmp_path: Path) -> None:
    write(tmp_path, measurement(FAST, model="letters"), measurement(FAST, "x86-64-v4", model="words"))
    error = refusal(tmp_path, FAST)
    assert error.what == "the file of measured times is another project's"
    assert error.found == "measurements of `letters`, `words`"
    assert error.hint == HINT


def test_recipes_that_were_measured_on_other_calls_have_no_order(tmp_path: Path) -> None:
    call = MeasuredCall("forward", {"batch": 64}, 1, 1, 1)
    write(tmp_path, measurement(FAST), measurement(SLOW, calls=(call,)))
    assert refusal(tmp_path, FAST, SLOW).found == (
        "recipes `fast` and `slow` of model `digits` were measured on x86-64-v3 with other sizes, methods or threads"
    )
    write(tmp_path, measurement(FAST), measurement(SLOW, threads=1))
    assert "with other sizes, methods or threads" in refusal(tmp_path, FAST, SLOW).found


@pytest.mark.parametrize("contents", [b"", b"{}", b"[1]", b'{"schema": 1, "times": []}'])
def test_a_damaged_file_is_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / EVIDENCE_FILE).write_bytes(contents)
    error = refusal(tmp_path, FAST)
    assert error.what == "the file of measured times is damaged"
    assert "`hatch-lower tune --write`" in error.hint
