from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.config.requirements import Extra
from hatch_lower.config.settings import Metadata, ModelSettings, Recipe, Settings, read_settings
from hatch_lower.config.tables import BackendChoice, BenchTable, CacheSettings, MethodLimits, ModelLimits, RecipeLimits
from hatch_lower.errors import ConfigError

LOWER = "tool.hatch.build.hooks.lower"
DIGITS = {"digits": "digits.model:export"}
PUBLIC_KEY = base64.b64encode(bytes(range(32))).decode()
REMOTE = "a URL such as `https://cache.example.org` or `s3://bucket/folder`, without a user name or password"


def read(
    table: Mapping[str, Any] | None = None,
    *,
    entry_points: Mapping[str, str] | None = None,
    packages: Sequence[str] = ("digits",),
    regular: Sequence[str] | None = None,
) -> Settings:
    return read_settings(
        table or {},
        Metadata("digits", "1.0", DIGITS if entry_points is None else entry_points),
        root=Path("project"),
        packages=packages,
        regular=packages if regular is None else regular,
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
    )


def test_everything() -> None:
    settings = read(
        {
            "backends": ["aoti", {"name": "reference", "depth": 2}],
            "recipes": {
                "portable": {"backends": [], "rtol": 1, "verify": False},
                "default": {},
                "null": {"backends": ["null"]},
            },
            "models": {"teacher": {"export": "tools.export:teacher", "recipes": ["portable", "default"]}},
            "package": "digits.models",
            "atol": 0.5,
            "check-megabytes": 0,
            "runtime-requirements": "add",
            "editable": "eager",
            "inputs": ["weights/*.safetensors"],
            "pass-env": ["HF_*"],
            "jobs": 2,
            "executor": "dask:tcp://host:8786",
            "timeout": 60,
            "strict": True,
            "cache": {
                "remote": "s3://bucket/hatch-lower",
                "public-keys": [PUBLIC_KEY],
            },
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
    assert (settings.check_bytes, settings.runtime_requirements, settings.editable) == (0, "add", "eager")
    assert (settings.inputs, settings.pass_env) == (("weights/*.safetensors",), ("HF_*",))
    assert (settings.jobs, settings.timeout) == (2, 60)
    assert settings.executor == "dask:tcp://host:8786"
    assert settings.strict
    assert settings.cache == CacheSettings("s3://bucket/hatch-lower", (PUBLIC_KEY,))


def test_recipes_are_tried_in_the_order_in_which_they_are_written() -> None:
    assert read({"recipes": {"second": {}, "first": {}}}).recipe_order == ("default", "second", "first")
    assert read({"recipes": {"second": {}, "default": {}, "first": {}}}).recipe_order == ("second", "default", "first")


def test_every_wrong_key_and_value_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read({"recipes": {"portable": {"backend": ["aoti"]}}, "jobs": "two", "rtol": -1, "runtime_requirements": "add"})
    assert str(caught.value) == (
        "4 settings of the build hook `lower` are wrong\n"
        f"  found: `{LOWER}.recipes.portable.backend` is not a setting, found an array; "
        "did you mean `backends`? known: `atol`, `backends`, `extra`, `max-drop`, `on-mismatch`, `precision`, `rtol`, "
        "`torch-free`, `verify`\n"
        f'    `{LOWER}.jobs` must be an integer of at least 1, found the string "two"\n'
        f"    `{LOWER}.rtol` must be a number of at least 0, found the number -1.0\n"
        f'    `{LOWER}.runtime_requirements` is not a setting, found the string "add"; '
        "did you mean `runtime-requirements`? known: `atol`, `backends`, `bench`, `cache`, "
        "`check-megabytes`, `editable`, `executor`, `imports`, `inputs`, `jobs`, `keep-weights`, "
        "`models`, `on-mismatch`, `order`, `package`, `pass-env`, `recipes`, `rtol`, "
        "`runtime-requirements`, `strict`, `timeout`, `torch-free`, `variants`, `verify`, `weights`\n"
        "  to do: correct pyproject.toml (or hatch.toml); `hatch-lower schema` describes every setting"
    )


def test_a_recipe_is_torch_free_if_it_says_so_or_the_top_does() -> None:
    table = {"recipes": {"lean": {"torch-free": True}, "other": {}, "whole": {"torch-free": False}}}
    assert read({}).torch_free == ()
    assert read(table).torch_free == ("lean",)
    assert read({"torch-free": True, **table}).torch_free == ("default", "lean", "other")


def test_an_extra_of_a_recipe_is_one_of_the_projects() -> None:
    def extras(name: str) -> Mapping[str, Extra]:
        return read_settings(
            {"recipes": {"portable": {"extra": name}}},
            Metadata("digits", "1", DIGITS, optional_dependencies={"with-torch": ["torch>=2.13"]}),
            root=Path(),
            packages=["digits"],
            regular=["digits"],
        ).extras

    assert extras("With_Torch") == {"portable": Extra("with-torch", ("torch>=2.13",))}
    with pytest.raises(ConfigError) as caught:
        extras("torch")
    assert caught.value.found == (
        f"`{LOWER}.recipes.portable.extra` names no extra of the project, found `torch`; did you mean `with-torch`?"
        " known: `with-torch`"
    )


def test_one_problem_is_singular() -> None:
    with pytest.raises(ConfigError, match=r"^a setting of the build hook `lower` is wrong\n"):
        read({"jobs": 0})


def test_another_path_of_the_table_is_named() -> None:
    with pytest.raises(ConfigError, match=r"`tool\.hatch\.build\.targets\.wheel\.hooks\.lower\.jobs` must be"):
        read_settings(
            {"jobs": 0},
            Metadata("digits", "1", DIGITS),
            root=Path(),
            packages=["digits"],
            regular=["digits"],
            path="tool.hatch.build.targets.wheel.hooks.lower",
        )


VERIFY = '`{}.verify` must be one of true, false, "required", "interpret"'


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"jobs": True}, "`{}.jobs` must be an integer of at least 1, found the boolean true"),
        (
            {"executor": "slurm"},
            '`{}.executor` must be "local", "dask", "dask:ADDRESS", "ray", "ray:ADDRESS" or "module:factory", found the'
            ' string "slurm"',
        ),
        ({"timeout": 0.5}, "`{}.timeout` must be an integer of at least 1, found the number 0.5"),
        ({"rtol": {"float16": 0.1}}, "`{}.rtol` must be a number of at least 0, found a table"),
        ({"atol": 10**400}, "`{}.atol` must be a number of at least 0, found the number inf"),
        ({"atol": float("nan")}, "`{}.atol` must be a number of at least 0, found the number nan"),
        ({"verify": "yes"}, VERIFY + ', found the string "yes"'),
        (
            {"verify": {"enabled": True}},
            VERIFY + ", found a table",
        ),
        ({"verify": 1}, VERIFY + ", found the number 1"),
        ({"package": ""}, '`{}.package` must be a string that is not empty, found the string ""'),
        (
            {"editable": "eagre"},
            '`{}.editable` must be one of "lower", "known", "eager", "skip", found the string "eagre"',
        ),
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
            "`{0}.recipes.default.backends` repeats `{0}.backends`; keep either",
        ),
        (
            {"backends": ["atoi"]},
            "`{}.backends[0]` names no installed backend, found `atoi`; "
            "did you mean `aoti`? known: `aoti`, `cuda`, `executorch`, `null`, `onnxruntime`, `openvino`, `reference`",
        ),
        (
            {"recipes": {"quick": {"backends": [{"name": "nul"}]}}},
            "`{}.recipes.quick.backends[0]` names no installed backend, found `nul`; "
            "did you mean `null`? known: `aoti`, `cuda`, `executorch`, `null`, `onnxruntime`, `openvino`, `reference`",
        ),
        (
            {"backends": [3]},
            "`{}.backends[0]` must be a backend's name, or a table with its `name` and options, found the number 3",
        ),
        ({"backends": [{"isa": "v3"}]}, "`{}.backends[0].name` must be a backend's name, found nothing"),
        (
            {"models": {"digits": {"recipes": ["default", "default"]}}},
            "`{}.models.digits.recipes[1]` names the recipe `default` again",
        ),
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
            "`{}.models.digit` is not the name of a model and has no `export` or checkpoint (`transformers`,"
            " `sentence-transformers`, `timm`); did you mean `digits`? known: `digits`",
        ),
        (
            {"models": {"digits": {"export": "tools:export"}}},
            "`{}.models.digits.export` repeats the model that "
            '`project.entry-points."hatch_lower.models".digits` declares; keep either',
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
        ({"strict": 1}, "`{}.strict` must be true or false, found the number 1"),
        ({"cache": True}, "`{}.cache` must be a table, found the boolean true"),
        (
            {"cache": {"public-key": []}},
            "`{}.cache.public-key` is not a setting, found an array; did you mean `public-keys`? known: "
            "`public-keys`, `remote`",
        ),
        (
            {"cache": {"remote": "cache.example.org"}},
            f'`{{}}.cache.remote` must be {REMOTE}, found the string "cache.example.org"',
        ),
        (
            {"cache": {"public-keys": [PUBLIC_KEY, "c2hvcnQ="]}},
            "`{}.cache.public-keys[1]` must be an ed25519 public key: the base64 of its 32 bytes, "
            'found the string "c2hvcnQ="',
        ),
        (
            {"models": {"digits": {"card": "../card.json"}}},
            "`{}.models.digits.card` must be a JSON file of the project, such as `card.json`, "
            'found the string "../card.json"',
        ),
        (
            {"models": {"digits": {"card": {"task": "x"}}}},
            "`{}.models.digits.card` must be a JSON file of the project, such as `card.json`, found a table",
        ),
        (
            {"bench": {"max-calls-ratio": 1.1, "budget": 1}},
            "`{}.bench.max-calls-ratio` is not a setting, found the number 1.1; did you mean `max-call-ratio`? known: "
            "`budget`, `max-call-ratio`, `max-delegated-loss`, `max-error`, `max-instructions-ratio`, `max-kernels`, "
            "`max-load-ratio`, `max-memory-ratio`, `max-wheel-growth`, `min-delegated`, `models`, "
            "`recipes`, `sizes`, `threads`",
        ),
        (
            {"bench": {"max-call-ratio": "5%"}},
            '`{}.bench.max-call-ratio` must be a number of at least 0, found the string "5%"',
        ),
        (
            {"bench": {"min-delegated": 95}},
            "`{}.bench.min-delegated` must be a number of at least 0 and at most 1, found the number 95.0",
        ),
        (
            {"bench": {"budget": 0}},
            "`{}.bench.budget` must be an integer of at least 1 and at most 86400, found the number 0",
        ),
        ({"bench": {"threads": 2}}, "`{}.bench.threads` must be an array, found the number 2"),
        ({"bench": {"threads": [1, 0]}}, "`{}.bench.threads[1]` must be an integer of at least 1, found the number 0"),
        ({"bench": {"sizes": {"batch": 1}}}, "`{}.bench.sizes` must be an array, found a table"),
        ({"bench": {"sizes": [{}, 32]}}, "`{}.bench.sizes[1]` must be a table, found the number 32"),
        (
            {"bench": {"sizes": [{"batch": 1}, {"batch": 0}]}},
            "`{}.bench.sizes[1].batch` must be an integer of at least 1, found the number 0",
        ),
        (
            {"bench": {"max-wheel-growth": "5 percent"}},
            "`{}.bench.max-wheel-growth` must be a share such as `5%`, or a size such as `200 kB` or `1.5 MiB`, "
            'found the string "5 percent"',
        ),
        (
            {"bench": {"recipes": {"defualt": {}}}},
            "`{}.bench.recipes.defualt` is not the name of a recipe; did you mean `default`? known: `default`",
        ),
        (
            {"bench": {"models": {"digit": {"recipes": {"x": {}}}}}},
            "`{}.bench.models.digit` is not the name of a model; did you mean `digits`? known: `digits`",
        ),
        (
            {
                "recipes": {"portable": {}},
                "models": {"digits": {"recipes": ["default"]}},
                "bench": {"recipes": {"portable": {}}, "models": {"digits": {"recipes": {"portable": {}}}}},
            },
            "`{}.bench.models.digits.recipes.portable` is not the name of a recipe of the model; known: `default`",
        ),
        (
            {"models": {"digits": {"max-drop": 0.1}}},
            "`{}.models.digits.max-drop` limits nothing: the model has no `metric`",
        ),
        (
            {"recipes": {"int8": {"max-drop": 0.1}}},
            "`{}.recipes.int8.max-drop` limits nothing: no model of the recipe has a `metric`",
        ),
        (
            {"recipes": {"int8": {"max-drop": 0.1}}, "models": {"digits": {"recipes": ["default"], "metric": "m:f"}}},
            "`{}.recipes.int8.max-drop` limits nothing: no model of the recipe has a `metric`",
        ),
    ],
)
def test_wrong_setting(table: dict[str, Any], sentence: str) -> None:
    assert problems(table) == [sentence.format(LOWER)]


def test_max_drop_of_a_recipe_needs_a_metric_of_a_model_with_the_recipe() -> None:
    recipes, models = {"int8": {"max-drop": 0.1}}, {"digits": {"metric": "m:f"}}
    assert read({"recipes": recipes, "models": models}).recipes[1].max_drop == 0.1


def test_every_problem_of_the_table_cache_is_reported_with_the_others() -> None:
    found = problems({"jobs": 0, "cache": {"remote": 3, "public-keys": [1]}})
    assert [each.partition("`")[2].partition("`")[0].removeprefix(f"{LOWER}.") for each in found] == [
        "jobs",
        "cache.remote",
        "cache.public-keys[0]",
    ]


@pytest.mark.parametrize(
    ("url", "accepted"),
    [
        ("http://localhost:8080", True),
        ("https://cache.example.org/team", True),
        ("s3://bucket/folder", True),
        ("file:///srv/cache", True),
        ("abfs://container@account.dfs.core.windows.net/folder", True),
        ("https://cache.example.org/a@b", True),
        ("https://token@cache.example.org", False),
        ("https://user:password@cache.example.org", False),
        ("sftp://user:password@cache.example.org", False),
        ("sftp://cache.example.org/folder", False),
        ("memory://folder", False),
        ("http://[::1]:8080/cache", True),
        ("s3://bucket/a::b", False),
        ("simplecache::s3://bucket/folder", False),
        ("s3://bucket/folder?versionId=1", False),
        ("https://", False),
        ("//cache.example.org", False),
        ("s3://bucket/a b", False),
        ("s3://bucket\n", False),
        ("", False),
    ],
)
def test_a_shared_cache_is_a_url_with_a_scheme_and_without_credentials(url: str, accepted: bool) -> None:
    if accepted:
        assert read({"cache": {"remote": url}}).cache.remote == url
    else:
        assert len(problems({"cache": {"remote": url}})) == 1


@pytest.mark.parametrize("size", [0, 31, 33, 48, 64])
def test_a_public_key_has_32_bytes(size: int) -> None:
    assert len(problems({"cache": {"public-keys": [base64.b64encode(bytes(size)).decode() or "="]}})) == 1


def test_limits_are_set_for_recipes_models_and_methods() -> None:
    settings = read(
        {
            "recipes": {"portable": {}},
            "models": {"teacher": {"export": "tools.export:teacher"}},
            "bench": {
                "max-call-ratio": 2,
                "max-wheel-growth": "200 kB",
                "sizes": [{"batch": 1}, {"batch": 32, "tokens": 8}, {}],
                "threads": [1, 2],
                "budget": 60,
                "recipes": {"portable": {"max-load-ratio": 1.5}},
                "models": {
                    "teacher": {"max-kernels": 3, "recipes": {"default": {"min-delegated": 0.95}}},
                    "digits": {"methods": {"forward": {"max-error": 0, "sizes": []}}},
                },
            },
        }
    )
    assert settings.bench == BenchTable(
        max_call_ratio=2.0,
        max_wheel_growth="200 kB",
        sizes=({"batch": 1}, {"batch": 32, "tokens": 8}, {}),
        threads=(1, 2),
        budget=60,
        recipes={"portable": RecipeLimits(max_load_ratio=1.5)},
        models={
            "teacher": ModelLimits(max_kernels=3, recipes={"default": RecipeLimits(min_delegated=0.95)}),
            "digits": ModelLimits(methods={"forward": MethodLimits(max_error=0.0, sizes=())}),
        },
    )


def test_every_problem_of_the_table_bench_is_reported_with_the_others() -> None:
    bench = {"sizes": [3, {"a": "x", "b": 0}], "threads": ["1", 0], "models": {"digit": {"max-kernels": -1}}}
    found = problems({"bench": bench, "jobs": 0})
    assert [each.partition("`")[2].partition("`")[0].removeprefix(f"{LOWER}.") for each in found] == [
        "bench.sizes[0]",
        "bench.sizes[1].a",
        "bench.sizes[1].b",
        "bench.threads[0]",
        "bench.threads[1]",
        "bench.models.digit.max-kernels",
        "jobs",
        "bench.models.digit",
    ]


def test_a_wrong_element_does_not_hide_the_next() -> None:
    assert problems({"backends": [3, "atoi"], "recipes": {"x": 1, "y": {"rtol": "a"}}}) == [
        f"`{LOWER}.backends[0]` must be a backend's name, or a table with its `name` and options, found the number 3",
        f"`{LOWER}.recipes.x` must be a table, found the number 1",
        f'`{LOWER}.recipes.y.rtol` must be a number of at least 0, found the string "a"',
        f"`{LOWER}.backends[1]` names no installed backend, found `atoi`; "
        "did you mean `aoti`? known: `aoti`, `cuda`, `executorch`, `null`, `onnxruntime`, `openvino`, `reference`",
    ]


@pytest.mark.parametrize("name", ["CON", "nul", "com1.txt"])
def test_a_model_has_no_name_that_windows_reserves(name: str) -> None:
    found = problems({"recipes": {"aux": {}, "console": {}}}, entry_points={name: "digits.model:export"})
    assert [each.partition("` must")[2] for each in found] == [
        f" have another name: Windows reserves `{reserved}`, and no file can be called so" for reserved in ("aux", name)
    ]


def test_a_model_has_no_name_that_is_too_long_for_a_file() -> None:
    (found,) = problems({}, entry_points={"m" * 300: "digits.model:export"})
    assert found.endswith("…` must have a shorter name: 300 characters; 100 at most")


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
        "its module `tools.export` is in none of the wheel's packages with an `__init__.py` (`a`, `b`)"
    ]
    assert problems(entry_points=outside, packages=[]) == [
        f"`{LOWER}.models.digits.package` must say which package gets the model's files: "
        "its module `tools.export` is in none of the wheel's packages with an `__init__.py` (none)"
    ]


@pytest.mark.parametrize(
    ("module", "regular", "package"),
    [
        ("digits.model", ["digits"], "digits"),
        ("digits.nets.model", ["digits", "digits.nets"], "digits.nets"),
        ("digits.nets.model", ["digits"], "digits"),
        ("acme.vision.model", ["acme.vision"], "acme.vision"),
        ("acme.vision", ["acme.vision"], "acme.vision"),
        ("acme.vision.nets.deep.model", ["acme.vision", "acme.vision.nets.deep"], "acme.vision.nets.deep"),
        ("tools.export", ["acme.vision", "acme.vision.nets"], "acme.vision"),
    ],
)
def test_the_innermost_regular_package_gets_the_files(module: str, regular: list[str], package: str) -> None:
    top = regular[0].partition(".")[0]
    settings = read(entry_points={"digits": f"{module}:export"}, packages=[top], regular=regular)
    assert settings.models[0].package == package


@pytest.mark.parametrize(
    ("module", "regular", "found"),
    [
        ("acme.model", [], "(none), and other distributions may have files in `acme`"),
        ("acme.model", ["acme.vision"], "(`acme.vision`), and other distributions may have files in `acme`"),
        ("tools.export", ["acme.text", "acme.vision"], "(`acme.text`, `acme.vision`)"),
    ],
)
def test_a_namespace_package_gets_files_only_by_name(module: str, regular: list[str], found: str) -> None:
    given = {"entry_points": {"digits": f"{module}:export"}, "packages": ["acme"], "regular": regular}
    assert problems(**given) == [
        f"`{LOWER}.models.digits.package` must say which package gets the model's files: "
        f"its module `{module}` is in none of the wheel's packages with an `__init__.py` {found}"
    ]
    assert read({"package": "acme"}, **given).models[0].package == "acme"


def test_entry_point_with_extras_loses_them() -> None:
    assert (
        read(entry_points={"digits": "digits.model : Net.export [extra]"}).models[0].export == "digits.model:Net.export"
    )


def test_a_recipe_that_must_be_compared_fails_without_its_device() -> None:
    table = {"verify": "required", "recipes": {"lax": {"verify": True}, "unasked": {"verify": False}, "as-above": {}}}
    found = {each.name: (each.verify, each.without_device) for each in read(table).recipes}
    assert found == {
        "default": (True, "fail"),
        "lax": (True, "skip"),
        "unasked": (False, "skip"),
        "as-above": (True, "fail"),
    }


def test_recipes_default_may_hold_what_the_top_does_not() -> None:
    settings = read({"backends": ["null"], "recipes": {"default": {"verify": False}}})
    assert settings.recipes == (Recipe("default", (BackendChoice("null"),), verify=False),)
    settings = read({"recipes": {"default": {"backends": ["null"]}}})
    assert settings.recipes == (Recipe("default", (BackendChoice("null"),)),)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
URL = f"hf://org/name@{COMMIT}/model.safetensors"


@pytest.mark.parametrize(("value", "weights"), [(URL, (URL,)), ([URL], (URL,)), ("file", ("file",)), ([], ())])
def test_weights_are_a_url_or_several_or_a_file(value: object, weights: tuple[str, ...]) -> None:
    (model,) = read({"weights": value}).models
    assert model.weights == weights


def test_a_table_of_a_model_does_not_name_the_distribution() -> None:
    assert read({"models": {"teacher": {"export": "tools.export:teacher"}}}).name == "digits"


def test_weights_of_a_model_come_before_those_at_the_top() -> None:
    models = {"digits": {"weights": []}, "teacher": {"export": "tools.export:teacher"}}
    digits, teacher = read({"weights": URL, "models": models}).models
    assert (digits.weights, teacher.weights) == ((), (URL,))


def test_every_problem_of_weights_is_reported_with_the_others() -> None:
    allowed = (
        '"file", "hub" or `https://example.org/model.safetensors`, `hf://org/name@<commit>/model.safetensors`,'
        " `s3://bucket/model.safetensors`, or a URL of `gs`, `az`, `abfs` or `file`"
    )
    branch = "hf://org/name@main/model.safetensors"
    table = {"weights": ["weights.safetensors", branch], "models": {"digits": {"weights": 1}}, "jobs": 0}
    assert problems(table) == [
        f'`{LOWER}.weights[0]` must be {allowed} (it is no URL), found the string "weights.safetensors"',
        f"`{LOWER}.weights[1]` must be {allowed} (`main` may become another commit: write the 40 hexadecimal digits of"
        f' a commit behind the `@`, as shown on the page of the repository), found the string "{branch}"',
        f"`{LOWER}.models.digits.weights` must be an array or a string, found the number 1",
        f"`{LOWER}.jobs` must be an integer of at least 1, found the number 0",
    ]
    assert problems({"weights": [URL, URL]}) == [f"`{LOWER}.weights[1]` names `{URL}` again"]
    assert problems({"models": {"digits": {"weights": ["file", URL]}}}) == [
        f'`{LOWER}.models.digits.weights` must be `"file"` alone, or URLs: a build looks into files or writes one'
    ]


@pytest.mark.parametrize("recipe", [None, "leave-out", "fail"])
def test_a_recipe_without_on_mismatch_has_that_of_the_top(recipe: str | None) -> None:
    table = {"on-mismatch": "fail", "recipes": {"fast": {} if recipe is None else {"on-mismatch": recipe}}}
    assert {each.name: each.on_mismatch for each in read(table).recipes} == {
        "default": "fail",
        "fast": recipe or "fail",
    }


def with_file(name: str) -> dict[str, Any]:
    return {"recipes": {"fast": {"backends": [{"name": "null", "choices": {"file": name}, "plain": {"file": 1}}]}}}


def test_an_option_in_a_file_has_the_contents_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "choices.json").write_text('{"format": 1}')
    (_, fast) = read(with_file("choices.json")).recipes
    assert fast.backends == (BackendChoice("null", {"choices": {"format": 1}, "plain": {"file": 1}}),)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("absent.json", "names a file that cannot be read, found `absent.json`: No such file or directory"),
        ("wrong.json", "names a file that is no JSON, found `wrong.json`: Expecting value: line 1 column 1 (char 0)"),
        ("../x.json", 'must be a JSON file of the project, such as `card.json`, found "../x.json"'),
        ("large.json", "must have at most 16 MiB, found `large.json` with more"),
    ],
)
def test_a_wrong_file_of_an_option_is_a_problem(
    name: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "wrong.json").write_text("?")
    with (tmp_path / "project" / "large.json").open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert problems(with_file(name)) == [f"`{LOWER}.recipes.fast.backends[0].choices.file` {found}"]
