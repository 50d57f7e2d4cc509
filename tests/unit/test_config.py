from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.config import BackendChoice, ModelSettings, Recipe, Settings, read_settings
from hatch_lower.errors import ConfigError

LOWER = "tool.hatch.build.targets.wheel.hooks.lower"
DIGITS = {"digits": "digits.model:export"}


def read(
    table: Mapping[str, Any] | None = None,
    *,
    entry_points: Mapping[str, str] | None = None,
    packages: Sequence[str] = ("digits",),
) -> Settings:
    return read_settings(
        table or {},
        root=Path("project"),
        name="digits",
        version="1.0",
        entry_points=DIGITS if entry_points is None else entry_points,
        packages=packages,
    )


def problems(table: Mapping[str, Any] | None = None, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(table, **more)
    return caught.value.found.split("\n")


def test_defaults() -> None:
    settings = read()
    assert settings == Settings(
        root=Path("project").absolute(),
        name="digits",
        version="1.0",
        models=(ModelSettings("digits", "digits.model:export", "digits", ("default",)),),
        recipes=(Recipe("default"),),
        recipe_order=("default",),
    )


def test_everything() -> None:
    settings = read(
        {
            "backends": ["aoti", {"name": "reference", "depth": 2}],
            "recipes": {"portable": {"backends": [], "rtol": 1, "verify": False}, "null": {"backends": ["null"]}},
            "recipe-order": ["portable"],
            "models": {"teacher": {"export": "tools.export:teacher", "recipes": ["portable", "default"]}},
            "package": "digits.models",
            "atol": 0.5,
            "check": False,
            "runtime-requirements": "add",
            "editable": "eager",
            "inputs": ["weights/*.safetensors"],
            "pass-env": ["HF_*"],
            "jobs": 2,
            "timeout": 60,
            "seed": 7,
            "dependencies": ["anything"],
            "enable-by-default": False,
            "require-runtime-dependencies": True,
            "require-runtime-features": ["extra"],
        }
    )
    assert settings.recipes == (
        Recipe("portable", (), False, 1.0, 0.5),
        Recipe("default", (BackendChoice("aoti"), BackendChoice("reference", {"depth": 2})), True, 1e-4, 0.5),
        Recipe("null", (BackendChoice("null"),), True, 1e-4, 0.5),
    )
    assert settings.recipe_order == ("portable", "default", "null")
    assert settings.models == (
        ModelSettings("digits", "digits.model:export", "digits.models", ("portable", "default", "null")),
        ModelSettings("teacher", "tools.export:teacher", "digits.models", ("portable", "default")),
    )
    assert (settings.check, settings.runtime_requirements, settings.editable) == (False, "add", "eager")
    assert (settings.inputs, settings.pass_env) == (("weights/*.safetensors",), ("HF_*",))
    assert (settings.jobs, settings.timeout, settings.seed) == (2, 60, 7)


def test_every_wrong_key_and_value_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read({"recipes": {"portable": {"backend": ["aoti"]}}, "jobs": "two", "rtol": -1, "runtime_requirements": "add"})
    assert str(caught.value) == (
        "4 settings of the build hook `lower` are wrong\n"
        f"  found: `{LOWER}.recipes.portable.backend` is not a setting, found an array; "
        "did you mean `backends`? known: `atol`, `backends`, `rtol`, `verify`\n"
        f'    `{LOWER}.jobs` must be an integer of at least 1, found the string "two"\n'
        f"    `{LOWER}.rtol` must be a number of at least 0, found the number -1.0\n"
        f'    `{LOWER}.runtime_requirements` is not a setting, found the string "add"; '
        "did you mean `runtime-requirements`? known: `atol`, `backends`, `check`, `editable`, `inputs`, `jobs`, "
        "`models`, `package`, `pass-env`, `recipe-order`, `recipes`, `rtol`, `runtime-requirements`, `seed`, "
        "`timeout`, `verify`\n"
        "  to do: correct pyproject.toml (or hatch.toml); docs/configuration.md lists every setting"
    )


def test_one_problem_is_singular() -> None:
    with pytest.raises(ConfigError, match=r"^a setting of the build hook `lower` is wrong\n"):
        read({"jobs": 0})


def test_another_path_of_the_table_is_named() -> None:
    with pytest.raises(ConfigError, match=r"`tool\.hatch\.build\.hooks\.lower\.jobs` must be"):
        read_settings(
            {"jobs": 0},
            root=Path(),
            name="digits",
            version="1",
            entry_points=DIGITS,
            packages=["digits"],
            path="tool.hatch.build.hooks.lower",
        )


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"jobs": True}, "`{}.jobs` must be an integer of at least 1, found the boolean true"),
        ({"timeout": 0.5}, "`{}.timeout` must be an integer of at least 1, found the number 0.5"),
        (
            {"seed": -1},
            "`{}.seed` must be an integer of at least 0 and at most 9223372036854775807, found the number -1",
        ),
        ({"atol": float("nan")}, "`{}.atol` must be a number of at least 0, found the number nan"),
        ({"verify": "yes"}, '`{}.verify` must be true or false, found the string "yes"'),
        ({"verify": {"enabled": True}}, "`{}.verify` must be true or false, found a table"),
        ({"package": ""}, '`{}.package` must be a string that is not empty, found the string ""'),
        ({"editable": "eagre"}, '`{}.editable` must be one of "lower", "eager", "skip", found the string "eagre"'),
        ({"inputs": "weights/*"}, '`{}.inputs` must be an array, found the string "weights/*"'),
        ({"inputs": [1]}, "`{}.inputs[0]` must be a string that is not empty, found the number 1"),
        (
            {"inputs": ["../secret"]},
            "`{}.inputs[0]` must be a glob relative to the project and within it, found `../secret`",
        ),
        (
            {"inputs": ["/secret"]},
            "`{}.inputs[0]` must be a glob relative to the project and within it, found `/secret`",
        ),
        ({"recipes": []}, "`{}.recipes` must be a table of tables, found an array"),
        ({"recipes": {"quick": 1}}, "`{}.recipes.quick` must be a table, found the number 1"),
        (
            {"recipes": {"a/b": {}}},
            '`{}.recipes."a/b"` must be named with letters, digits, `_` and `-`: the name becomes a file name',
        ),
        (
            {"backends": ["aoti"], "recipes": {"default": {"backends": []}}},
            "`{0}.recipes.default.backends` says again what `{0}.backends` says; keep one of the two",
        ),
        (
            {"backends": ["atoi"]},
            "`{}.backends[0]` names no installed backend, found `atoi`; "
            "did you mean `aoti`? known: `aoti`, `null`, `reference`",
        ),
        (
            {"recipes": {"quick": {"backends": [{"name": "nul"}]}}},
            "`{}.recipes.quick.backends[0]` names no installed backend, found `nul`; "
            "did you mean `null`? known: `aoti`, `null`, `reference`",
        ),
        (
            {"backends": [3]},
            "`{}.backends[0]` must be a backend's name, or a table with its `name` and options, found the number 3",
        ),
        ({"backends": [{"isa": "v3"}]}, "`{}.backends[0].name` must be a backend's name, found nothing"),
        (
            {"recipe-order": ["defualt"]},
            "`{}.recipe-order[0]` names no recipe, found `defualt`; did you mean `default`? known: `default`",
        ),
        ({"recipe-order": ["default", "default"]}, "`{}.recipe-order[1]` names the recipe `default` again"),
        (
            {"models": {"digits": {"recipes": ["quick"]}}},
            "`{}.models.digits.recipes[0]` names no recipe, found `quick`; known: `default`",
        ),
        (
            {"models": {"digits": {"recipes": []}}},
            "`{}.models.digits.recipes` must name at least one recipe; known: `default`",
        ),
        (
            {"models": {"digit": {"recipes": ["default"]}}},
            "`{}.models.digit` is not the name of a model and has no `export`; did you mean `digits`? known: `digits`",
        ),
        (
            {"models": {"digits": {"export": "tools:export"}}},
            "`{}.models.digits.export` declares a model again that "
            '`project.entry-points."hatch_lower.models".digits` declares; keep one of the two',
        ),
        (
            {"models": {"Digits": {"export": "tools:export"}}},
            '`project.entry-points."hatch_lower.models".digits` differs from the model `Digits` only in case; '
            "the two would share files",
        ),
        (
            {"models": {"teacher": {"export": "tools.export"}}},
            "`{}.models.teacher.export` must be written `module:attribute`, found `tools.export`",
        ),
        (
            {"models": {"../teacher": {"export": "tools:export"}}},
            '`{}.models."../teacher".export` must be named with letters, digits, `_`, `-` and inner dots: '
            "the name becomes a folder",
        ),
        ({"package": "a-b"}, "`{}.package` must be the dotted name of an import package, found `a-b`"),
        (
            {"models": {"digits": {"package": "digit"}}},
            "`{}.models.digits.package` names no package of the wheel, found `digit`; "
            "did you mean `digits`? known: `digits`",
        ),
    ],
)
def test_wrong_setting(table: dict[str, Any], sentence: str) -> None:
    assert problems(table) == [sentence.format(LOWER)]


def test_a_wrong_element_does_not_hide_the_next() -> None:
    assert problems({"backends": [3, "atoi"], "recipes": {"x": 1, "y": {"rtol": "a"}}}) == [
        f"`{LOWER}.backends[0]` must be a backend's name, or a table with its `name` and options, found the number 3",
        f"`{LOWER}.recipes.x` must be a table, found the number 1",
        f'`{LOWER}.recipes.y.rtol` must be a number of at least 0, found the string "a"',
        f"`{LOWER}.backends[1]` names no installed backend, found `atoi`; "
        "did you mean `aoti`? known: `aoti`, `null`, `reference`",
    ]


def test_no_model_names_both_ways_to_declare_one() -> None:
    assert problems({}, entry_points={}) == [
        'the project declares no model; list one under `[project.entry-points."hatch_lower.models"]`, '
        f"or in the hook's own table as `{LOWER}.models.<name>.export`"
    ]


def test_package_of_an_entry_point_outside_the_wheel() -> None:
    outside = {"digits": "tools.export:digits"}
    assert read(entry_points=outside, packages=["digits"]).models[0].package == "digits"
    assert read(entry_points={"digits": "b.c:export"}, packages=["a", "b"]).models[0].package == "b"
    assert problems(entry_points=outside, packages=["a", "b"]) == [
        f"`{LOWER}.models.digits.package` must say which package gets the model's files: "
        "its module `tools.export` is in none of the wheel's packages (`a`, `b`)"
    ]
    assert problems(entry_points=outside, packages=[]) == [
        f"`{LOWER}.models.digits.package` must say which package gets the model's files: "
        "its module `tools.export` is in none of the wheel's packages (none)"
    ]


def test_entry_point_with_extras_loses_them() -> None:
    assert (
        read(entry_points={"digits": "digits.model : Net.export [extra]"}).models[0].export == "digits.model:Net.export"
    )


def test_recipes_default_may_hold_what_the_top_does_not() -> None:
    settings = read({"backends": ["null"], "recipes": {"default": {"verify": False}}})
    assert settings.recipes == (Recipe("default", (BackendChoice("null"),), verify=False),)
    settings = read({"recipes": {"default": {"backends": ["null"]}}})
    assert settings.recipes == (Recipe("default", (BackendChoice("null"),)),)
