"""The choice of `hatch-lower tune` in the project's file: entries stay as written, and files are replaced as wholes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.cli.measure.tune.candidates import TunedCandidate, first_candidates
from hatch_lower.cli.measure.tune.choose import TunedModel
from hatch_lower.cli.measure.tune.write import read_files, write_choices
from hatch_lower.cli.replaced import edited_text
from hatch_lower.config.settings import Metadata, Recipe, Settings, read_settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.config.timed import recipe_digest, timed_settings
from hatch_lower.driver.measured import find_measured
from hatch_lower.errors import ConfigError
from hatch_lower.format.evidence import (
    EVIDENCE_FILE,
    Evidence,
    MeasuredCall,
    Measurement,
    TunedChoice,
    read_evidence,
    write_evidence,
)

pytest.importorskip("tomlkit")

TABLE = "tool.hatch.build.hooks.lower"
PROJECT = """\
# a project
[project]
name = "digits"
version = "1.0"   # first

[project.entry-points."hatch_lower.models"]
digits = "digits:export"

# lowering
[tool.hatch.build.hooks.lower]
backends = ["aoti"]  # of init

[tool.other]
key = 1  # stays
"""
OPENVINO = Recipe("openvino", (BackendChoice("openvino"),))
AOTI = Recipe("default", (BackendChoice("aoti"),))
NEWER = Recipe("aoti-x86-64-v4", (BackendChoice("aoti", {"isa": "x86-64-v4"}),))
INT8 = Recipe("openvino-int8", (BackendChoice("openvino", {"threads": 1}),), precision="int8")
PORTABLE = Recipe("portable")
A, B = Recipe("a"), Recipe("b", (BackendChoice("aoti"),))
RECIPES = {"A": A, "B": B, "OPENVINO": OPENVINO, "AOTI": AOTI, "NEWER": NEWER, "INT8": INT8, "PORTABLE": PORTABLE}


def settings_of(text: str, root: Path, table: str = TABLE, models: tuple[str, ...] = ("digits",)) -> Settings:
    hook = tomllib.loads(text)
    for key in table.split("."):
        hook = hook[key]
    project = Metadata("digits", "1.0", dict.fromkeys(models, "digits:export"))
    return read_settings(hook, project, root=root, packages=["digits"], regular=["digits"], path=table)


def measurement(recipe: Recipe, model: str = "digits", level: str = "x86-64-v3") -> Measurement:
    return Measurement(
        model,
        recipe.name,
        recipe_digest(recipe),
        timed_settings(recipe),
        level,
        1,
        (MeasuredCall("forward", {}, 0.1, 0.1, 0.1),),
        0.1,
        1,
        2,
        3,
        None,
        {"torch": "2.13.0"},
    )


def tuned(ratios: Mapping[str, float], written: tuple[str, ...] = ("default",), model: str = "digits") -> TunedModel:
    """Return the choice of the first recipe; recipes are named by their constants here."""
    recipes = [RECIPES[name] for name in ratios]
    candidates = {recipe.name: TunedCandidate(recipe, recipe.name in written) for recipe in recipes}
    chosen, *_ = candidates.values()
    return TunedModel(
        TunedChoice(model, "x86-64-v3", "latency", chosen.name),
        "default",
        chosen,
        candidates,
        tuple(measurement(recipe, model) for recipe in recipes),
        {RECIPES[name].name: ratio for name, ratio in ratios.items()},
        {},
        True,
    )


def written(root: Path, text: str, *choices: TunedModel, name: str = "pyproject.toml", table: str = TABLE) -> str:
    (root / name).write_bytes(text.encode())
    keys = table if name == "pyproject.toml" else table.removeprefix("tool.hatch.")
    models = ("digits", "faces") if "faces" in text else ("digits",)
    settings = settings_of(text, root, keys, models)
    write_choices(read_files(root, table), settings, choices)
    return (root / name).read_bytes().decode()


def test_a_choice_replaces_the_recipe_default_and_other_entries_stay(tmp_path: Path) -> None:
    found = written(tmp_path, PROJECT, tuned({"OPENVINO": 1.0, "AOTI": 1.3}))
    added = """
[tool.hatch.build.hooks.lower.recipes.openvino]
backends = ["openvino"]

[tool.hatch.build.hooks.lower.models.digits]
recipes = ["openvino"]
"""
    assert added in found
    assert found.replace(added, "") == PROJECT
    (model,) = settings_of(found, tmp_path).models
    assert model.recipes == ("openvino",)


def test_the_evidence_is_written_beside_the_file(tmp_path: Path) -> None:
    written(tmp_path, PROJECT, tuned({"OPENVINO": 1.0, "AOTI": 1.3}))
    evidence = read_evidence((tmp_path / EVIDENCE_FILE).read_bytes(), "f")
    assert [each.recipe for each in evidence.measurements] == ["default", "openvino"]
    assert evidence.choice("digits", "x86-64-v3") == TunedChoice("digits", "x86-64-v3", "latency", "openvino")
    assert sorted(path.name for path in tmp_path.iterdir()) == [EVIDENCE_FILE, "pyproject.toml"]


def test_a_choice_of_the_present_recipe_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    assert written(tmp_path, PROJECT, tuned({"AOTI": 1.0, "OPENVINO": 1.2})) == PROJECT
    assert (tmp_path / EVIDENCE_FILE).exists()


def test_options_and_precision_are_written_as_they_were_measured(tmp_path: Path) -> None:
    found = written(tmp_path, PROJECT, tuned({"INT8": 1.0, "AOTI": 1.3}))
    assert 'backends = [{name = "openvino", threads = 1}]\nprecision = "int8"\n' in found
    recipe = next(each for each in settings_of(found, tmp_path).recipes if each.name == INT8.name)
    assert recipe_digest(recipe) == recipe_digest(INT8)


@pytest.mark.parametrize(
    ("top", "added"),
    [
        ("", ["rtol = 0.01", 'on-mismatch = "fail"', "torch-free = true"]),
        ("rtol = 0.01\ntorch-free = true\n", ['on-mismatch = "fail"']),
    ],
)
def test_a_new_table_has_the_needs_with_which_the_recipe_was_measured(
    top: str, added: list[str], tmp_path: Path
) -> None:
    own = '[tool.hatch.build.hooks.lower.recipes.a]\nrtol = 0.01\ntorch-free = true\non-mismatch = "fail"\n'
    text = f"[tool.hatch.build.hooks.lower]\n{top}models.digits.recipes = ['a']\n{own}"
    settings = settings_of(text, tmp_path)
    candidates = first_candidates(settings, "digits", ["openvino"], ())
    best = next(each for each in candidates if each.name == "openvino")
    found = written(tmp_path, text, replace(tuned({"OPENVINO": 1.0}), candidates={"openvino": best}, chosen=best))
    table = found.partition("recipes.openvino]\n")[2].partition("\n\n")[0].splitlines()
    assert table == ['backends = ["openvino"]', *added]
    after = settings_of(found, tmp_path)
    assert next(each for each in after.recipes if each.name == "openvino") == best.recipe
    assert "openvino" in after.torch_free


def test_a_recipe_that_is_left_out_keeps_its_earlier_measurement(tmp_path: Path) -> None:
    text = '[tool.hatch.build.hooks.lower]\norder = "measured"\nmodels.digits.recipes = ["a", "b"]\n'
    text += '[tool.hatch.build.hooks.lower.recipes.a]\n[tool.hatch.build.hooks.lower.recipes.b]\nbackends = ["aoti"]\n'
    written(tmp_path, text, tuned({"A": 1.0, "B": 2.0}, ("a", "b")))
    candidates = {recipe.name: TunedCandidate(recipe, is_written=True) for recipe in (A, B)}
    later = replace(tuned({"A": 1.0}, ("a",)), candidates=candidates, left_out={"b": "not installed"})
    found = written(tmp_path, text, later)
    assert set(find_measured(settings_of(found, tmp_path))["digits"]) == {"a", "b"}


NAMED = """\
[tool.hatch.build.hooks.lower]
verify = true

# for old machines
[tool.hatch.build.hooks.lower.recipes.portable]
torch-free = false  # needs torch

# by hand
[tool.hatch.build.hooks.lower.recipes.openvino]
backends = ["openvino"]  # as measured

[tool.hatch.build.hooks.lower.models.digits]  # ten classes
recipes = ["portable", "openvino"]
"""


def test_a_chosen_table_moves_to_the_front_and_other_tables_stay_as_alternatives(tmp_path: Path) -> None:
    found = written(tmp_path, NAMED, tuned({"OPENVINO": 1.0, "PORTABLE": 1.3}, ("portable", "openvino")))
    assert list(tomllib.loads(found)["tool"]["hatch"]["build"]["hooks"]["lower"]["recipes"]) == ["openvino", "portable"]
    (model,) = settings_of(found, tmp_path).models
    assert model.recipes == ("openvino", "portable")
    assert sorted(found.split()) == sorted(NAMED.split())
    assert_comments_are_above(found)


@pytest.mark.parametrize(
    "text",
    [
        NAMED,
        "a = [\n  # pairs\n  [1, 2],\n  # more\n  [3],\n]\n# of b\n[b]\n# of c, at the end\n[[c]]\n",
        'a = """\n# no comment\n[no heading]\n"""\n\n# one\n# two\n[b]\n',
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_text_without_changes_stays(text: str, end: str) -> None:
    text = text.replace("\n", end)
    assert edited_text(text, lambda document: None) == text


def assert_comments_are_above(found: str) -> None:
    for comment, recipe in (("# for old machines", "portable"), ("# by hand", "openvino")):
        assert f"\n\n{comment}\n[{TABLE}.recipes.{recipe}]" in found


def test_a_new_recipe_is_the_first_table(tmp_path: Path) -> None:
    found = written(tmp_path, NAMED, tuned({"INT8": 1.0, "PORTABLE": 1.3}, ("portable", "openvino")))
    (model,) = settings_of(found, tmp_path).models
    assert model.recipes == ("openvino-int8", "portable", "openvino")
    assert all(comment in found for comment in ("# needs torch", "# ten classes"))
    assert_comments_are_above(found)


def test_a_new_table_before_others_has_a_single_empty_line_before_it(tmp_path: Path) -> None:
    text = f'[{TABLE}]\nbackends = ["aoti"]\n\n[{TABLE}.recipes.a]\n\n\n[{TABLE}.recipes.b]\nbackends = ["aoti"]\n'
    found = written(tmp_path, text, tuned({"OPENVINO": 1.0, "AOTI": 1.3}))
    assert f'backends = ["aoti"]\n\n[{TABLE}.recipes.openvino]' in found
    assert f"\n\n\n[{TABLE}.recipes.b]" in found


def test_a_choice_for_newer_machines_has_the_best_recipe_of_all_machines_beside_it(tmp_path: Path) -> None:
    found = written(tmp_path, PROJECT, tuned({"NEWER": 1.0, "AOTI": 1.3, "OPENVINO": 1.1}))
    (model,) = settings_of(found, tmp_path).models
    assert model.recipes == ("aoti-x86-64-v4", "openvino")


def test_models_get_their_own_recipes(tmp_path: Path) -> None:
    choices = [tuned({"OPENVINO": 1.0, "AOTI": 2.0}), tuned({"INT8": 1.0, "AOTI": 2.0}, model="faces")]
    text = PROJECT.replace('digits = "digits:export"', 'digits = "digits:export"\nfaces = "digits:export"')
    found = settings_of(written(tmp_path, text, *choices), tmp_path, models=("digits", "faces"))
    assert {model.name: model.recipes for model in found.models} == {
        "digits": ("openvino",),
        "faces": ("openvino-int8",),
    }


def test_the_choice_of_another_level_stays(tmp_path: Path) -> None:
    text = written(tmp_path, PROJECT, tuned({"OPENVINO": 1.0, "AOTI": 2.0}))
    second = tuned({"INT8": 1.0, "OPENVINO": 1.5}, ("openvino",))
    level = replace(second.choice, level="x86-64-v4")
    second = replace(
        second, choice=level, measurements=tuple(replace(m, level=level.level) for m in second.measurements)
    )
    found = written(tmp_path, text, second)
    settings = settings_of(found, tmp_path)
    assert settings.models[0].recipes == ("openvino-int8", "openvino")
    assert settings.order == "measured"
    assert {name: len(calls) for name, calls in find_measured(settings)["digits"].items()} == {
        "openvino-int8": 1,
        "openvino": 2,
    }
    evidence = read_evidence((tmp_path / EVIDENCE_FILE).read_bytes(), "f")
    assert {each.level: each.recipe for each in evidence.choices} == {
        "x86-64-v3": "openvino",
        "x86-64-v4": "openvino-int8",
    }


def hook_of(text: str) -> dict[str, Any]:
    hook: dict[str, Any] = tomllib.loads(text)["tool"]["hatch"]["build"]["hooks"]["lower"]
    return hook


def test_a_later_choice_replaces_the_earlier_choice_of_the_level(tmp_path: Path) -> None:
    text = written(tmp_path, PROJECT, tuned({"OPENVINO": 1.0, "AOTI": 2.0}))
    found = hook_of(written(tmp_path, text, tuned({"INT8": 1.0, "OPENVINO": 1.5}, ("openvino",))))
    assert found["models"]["digits"]["recipes"] == ["openvino-int8"]
    assert "order" not in found


def test_models_that_need_different_orders_are_ordered_by_measurements(tmp_path: Path) -> None:
    models = 'models.digits.recipes = ["a", "b"]\nmodels.faces.recipes = ["a", "b"]\n'
    recipes = (
        '[tool.hatch.build.hooks.lower.recipes.a]\n[tool.hatch.build.hooks.lower.recipes.b]\nbackends = ["aoti"]\n'
    )
    text = f"[tool.hatch.build.hooks.lower]\n{models}{recipes}"
    choices = [tuned({"A": 1.0, "B": 2.0}, ("a", "b")), tuned({"B": 1.0, "A": 2.0}, ("a", "b"), model="faces")]
    assert hook_of(written(tmp_path, text, *choices))["order"] == "measured"
    assert hook_of(written(tmp_path, text, choices[0])).get("order") is None


def test_the_table_in_hatch_toml_is_edited_there(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "digits"\n')
    text = "[build.hooks.lower]\nbackends = ['aoti'] # of init\r\n"
    found = written(tmp_path, text, tuned({"OPENVINO": 1.0, "AOTI": 1.3}), name="hatch.toml")
    assert "[build.hooks.lower.recipes.openvino]" in found
    assert "['aoti'] # of init\r\n" in found
    assert (tmp_path / "pyproject.toml").read_text() == '[project]\nname = "digits"\n'


@pytest.mark.parametrize(
    "text",
    [
        '[tool.hatch.build.hooks]\nlower = { backends = ["aoti"] }\n',
        'tool.hatch.build.hooks.lower.backends = ["aoti"]\n',
        '[tool.hatch.build.hooks.lower]\nbackends = ["aoti"]\nrecipes.portable = {}\n',
        '[tool.hatch.build.hooks.lower.recipes.portable]\n[tool.hatch.build.hooks.lower]\nbackends = ["aoti"]\n',
        '[tool.hatch.build.hooks.lower]\nbackends = ["aoti"]\n'
        "[tool.hatch.build.hooks.lower.recipes.portable]\n[tool.x]\n"
        "[tool.hatch.build.hooks.lower.models.digits]\n[tool.hatch.build.hooks.lower.recipes.other]\n",
    ],
)
def test_any_form_of_the_table_is_edited_or_refused_with_the_lines(text: str, tmp_path: Path) -> None:
    choice = tuned({"OPENVINO": 1.0, "AOTI": 1.3})
    if (error := refusal(tmp_path, text, choice)) is None:
        (model,) = settings_of((tmp_path / "pyproject.toml").read_text(), tmp_path).models
        assert model.recipes[0] == "openvino"
        return
    assert error.what == "the hook's table has a form that cannot be edited"
    assert '[tool.hatch.build.hooks.lower.recipes.openvino]\nbackends = ["openvino"]' in error.hint
    assert (tmp_path / "pyproject.toml").read_text() == text
    assert not (tmp_path / EVIDENCE_FILE).exists()


def refusal(root: Path, text: str, choice: TunedModel) -> ConfigError | None:
    try:
        written(root, text, choice)
    except ConfigError as error:
        return error
    return None


CHOSEN = f"""\
[{TABLE}]
backends = ["aoti"]
[{TABLE}.recipes.openvino-int8]
backends = [{{ name = "openvino", threads = 1 }}]
precision = "int8"
[{TABLE}.models.digits]
metric = "digits:accuracy"
recipes = ["openvino-int8"]
"""


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        (CHOSEN.replace('"int8"\n', '"int8"\nmax-drop = 0.1\n'), ""),
        (CHOSEN, '[digits.openvino-int8]\nfloat32 = ["head"]\n'),
        (f"{CHOSEN}[{TABLE}.bench.models.digits.recipes.openvino-int8]\n", ""),
    ],
)
def test_an_earlier_choice_that_other_settings_name_stays_as_an_alternative(
    text: str, precision: str, tmp_path: Path
) -> None:
    (tmp_path / "precision.toml").write_text(precision)
    earlier = Evidence((measurement(INT8),), (TunedChoice("digits", "x86-64-v3", "latency", INT8.name),))
    (tmp_path / EVIDENCE_FILE).write_bytes(write_evidence(earlier))
    found = written(tmp_path, text, tuned({"OPENVINO": 1.0, "INT8": 1.3}, (INT8.name,)))
    (model,) = settings_of(found, tmp_path).models
    assert model.recipes == ("openvino", INT8.name)


def test_a_choice_comes_before_a_recipe_default_that_was_not_measured(tmp_path: Path) -> None:
    found = written(tmp_path, PROJECT, tuned({"OPENVINO": 1.0, "PORTABLE": 1.3}, ()))
    settings = settings_of(found, tmp_path)
    assert settings.models[0].recipes == ("openvino", "default")
    assert {recipe.name: recipe.backends for recipe in settings.recipes}["default"] == AOTI.backends


TWO = PROJECT.replace('digits = "digits:export"', 'digits = "digits:export"\nfaces = "digits:export"')


def test_a_new_recipe_is_no_recipe_of_another_model(tmp_path: Path) -> None:
    found = settings_of(
        written(tmp_path, TWO, tuned({"OPENVINO": 1.0, "AOTI": 2.0})), tmp_path, models=("digits", "faces")
    )
    assert {model.name: model.recipes for model in found.models} == {"digits": ("openvino",), "faces": ("default",)}


def test_another_model_whose_order_changes_is_named(tmp_path: Path) -> None:
    text = f'[{TABLE}.recipes.a]\n[{TABLE}.recipes.b]\nbackends = ["aoti"]\n[{TABLE}.models]\n'
    text += 'digits.recipes = ["a", "b"]\nfaces.recipes = ["a", "b"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    settings = settings_of(text, tmp_path, models=("digits", "faces"))
    found = write_choices(read_files(tmp_path, TABLE), settings, [tuned({"B": 1.0, "A": 2.0}, ("a", "b"))])
    assert found.misplaced == (("faces", "a", "b"),)


def test_stale_measurements_give_no_measured_order(tmp_path: Path) -> None:
    text = written(tmp_path, PROJECT, tuned({"OPENVINO": 1.0, "AOTI": 2.0}))
    evidence = read_evidence((tmp_path / EVIDENCE_FILE).read_bytes(), "f")
    other = Evidence(
        tuple(replace(each, level="x86-64-v4", digest="0" * 64) for each in evidence.measurements),
        tuple(replace(each, level="x86-64-v4") for each in evidence.choices),
    )
    (tmp_path / EVIDENCE_FILE).write_bytes(write_evidence(other))
    found = hook_of(written(tmp_path, text, tuned({"INT8": 1.0, "AOTI": 1.5}, ("openvino",))))
    assert found["models"]["digits"]["recipes"] == ["openvino-int8", "openvino"]
    assert "order" not in found


def test_a_file_with_the_line_ends_of_windows_keeps_these(tmp_path: Path) -> None:
    found = written(tmp_path, PROJECT.replace("\n", "\r\n"), tuned({"INT8": 1.0, "AOTI": 1.3}))
    assert "openvino-int8" in found
    assert "\n" not in found.replace("\r\n", "")


@pytest.mark.parametrize("name", ["pyproject.toml", EVIDENCE_FILE])
def test_a_file_that_has_changed_meanwhile_is_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    files = read_files(tmp_path, TABLE)
    (tmp_path / name).write_text("# edited")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="a file has changed since the measurement began") as error:
        write_choices(files, settings_of(PROJECT, tmp_path), [tuned({"OPENVINO": 1.0, "AOTI": 1.3})])
    assert error.value.where == str(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_evidence_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / EVIDENCE_FILE).mkdir()
    with pytest.raises(ConfigError, match="a file cannot be read") as error:
        read_files(tmp_path, TABLE)
    assert (error.value.where, error.value.found) == (str(tmp_path / EVIDENCE_FILE), "Is a directory")


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "pyproject.toml").symlink_to(tmp_path / "real" / "pyproject.toml")
    write_choices(read_files(tmp_path, TABLE), settings_of(PROJECT, tmp_path), [tuned({"OPENVINO": 1.0, "AOTI": 1.3})])
    assert (tmp_path / "pyproject.toml").is_symlink()
    assert "recipes.openvino" in (tmp_path / "real" / "pyproject.toml").read_text()
