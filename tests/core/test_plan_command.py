"""`hatch-lower plan` and `hatch-lower lower`, as far as they start no process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.scenarios import Project, copy_project

from hatch_lower.cache.recipes import put_cost
from hatch_lower.cache.store import Store
from hatch_lower.cli.entry import main

NAMES = ["two_methods/default", "two_methods/portable", "two_methods"]


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("HATCH_LOWER_CACHE", "HATCH_LOWER_REMOTE_CACHE", "HATCH_LOWER_REMOTE_PUSH"):
        monkeypatch.delenv(name, raising=False)
    return copy_project("two_methods", tmp_path)


def run(scenario: Project, *words: str, **environment: str) -> Result:
    variables = {"HATCH_LOWER_CACHE_DIR": str(scenario.cache), **environment}
    return CliRunner().invoke(main, [*words, "--root", str(scenario.root)], env=variables)


def shown(scenario: Project, *words: str, **environment: str) -> str:
    result = run(scenario, *words, **environment)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_plan_has_every_recipe_and_the_model_that_depends_on_them(scenario: Project) -> None:
    report: dict[str, Any] = json.loads(shown(scenario, "plan", "--json"))
    assert (report["schema"], report["name"]) == (1, "two-methods")
    units = {unit["name"]: unit for unit in report["units"]}
    assert list(units) == NAMES
    assert units["two_methods"]["depends"] == NAMES[:2]
    assert [units[name]["depends"] for name in NAMES[:2]] == [[], []]
    assert [unit["recipe"] for unit in units.values()] == ["default", "portable", None]
    assert {(unit["cached"], unit["seconds"]) for unit in units.values()} == {(False, None)}
    assert len({unit["key"] for unit in units.values()}) == 3


def test_a_plan_for_people_says_what_is_to_be_made_and_what_it_takes(scenario: Project) -> None:
    store = Store(scenario.cache / "v1", "on", pytest.fail)
    put_cost(store, "two-methods", "two_methods/default", 12.34)
    lines = shown(scenario, "plan", "--shards", "2").splitlines()
    assert lines[0] == f"two-methods 1.0 in {scenario.root}"
    rows = [line.split() for line in lines[3:6]]
    assert [row[0] for row in rows] == NAMES
    assert rows[0][2:] == ["to", "make", "12.3"]
    assert lines[7:] == [
        "2 units to make, about 12 s; of 1 nothing is known",
        "",
        "shard 1/2: two_methods/default",
        "shard 2/2: two_methods/portable",
    ]


def test_a_matrix_is_one_line_of_json_with_what_each_job_makes(scenario: Project) -> None:
    (line,) = shown(scenario, "plan", "--json", "--shards", "8").splitlines()
    assert json.loads(line) == {
        "include": [
            {"shard": "1/2", "only": "two_methods/default"},
            {"shard": "2/2", "only": "two_methods/portable"},
        ]
    }


def test_the_key_of_a_unit_is_that_of_its_recipe_alone(scenario: Project) -> None:
    def keys() -> list[str]:
        return [unit["key"] for unit in json.loads(shown(scenario, "plan", "--json"))["units"]]

    before = keys()
    scenario.edit("pyproject.toml", "backends = []", 'backends = ["null"]\nverify = false')
    after = keys()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, False]


@pytest.mark.parametrize("command", ["plan", "lower"])
def test_without_a_cache_there_are_no_units(scenario: Project, command: str) -> None:
    result = run(scenario, command, HATCH_LOWER_CACHE="off")
    assert result.exit_code == 1
    assert "units are made for a cache, and it is off" in result.stderr
    assert "HATCH_LOWER_REMOTE_CACHE" in result.stderr


@pytest.mark.parametrize("mode", ["frozen", "read-only"])
def test_what_is_not_kept_is_not_made(scenario: Project, mode: str) -> None:
    result = run(scenario, "lower", HATCH_LOWER_CACHE=mode)
    assert result.exit_code == 1
    assert f"found: `{mode}`, with which nothing is kept" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shard", "0/3"], "there is no such shard"),
        (["--shard", "4/3"], "there is no such shard"),
        (["--shard", "x"], "there is no such shard"),
        (["--only", "two_method"], "did you mean `two_methods`?"),
        (["--only", "two_methods/defalt"], "did you mean `two_methods/default`?"),
        (["--only", "two_methods/default nothing"], "the project has no such model"),
    ],
)
def test_what_is_asked_for_and_is_not_there_is_one_message(scenario: Project, words: list[str], said: str) -> None:
    result = run(scenario, "lower", *words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert not list(Path(scenario.cache).rglob("records/*/*"))


def test_a_shard_without_units_is_made_at_once_and_says_that_nothing_leaves_the_machine(scenario: Project) -> None:
    said = shown(scenario, "lower", "--shard", "3/3")
    assert said.startswith("0 units: 0 cached before; nothing leaves this machine, for no shared cache is named")
    reads = shown(scenario, "lower", "--shard", "3/3", HATCH_LOWER_REMOTE_CACHE="file:///nowhere")
    assert "nothing leaves this machine, for file:///nowhere is only read (HATCH_LOWER_REMOTE_PUSH=1 sends)" in reads


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "[tool.hatch.build.targets.wheel]",
            "[tool.hatch.build]\nexclude = 3\n\n[tool.hatch.build.targets.wheel]",
            "exclude",
        ),
        ('packages = ["src/two_methods"]', "packages = 3", "packages"),
        ('packages = ["src/two_methods"]', 'packages = ["src/two_methods"]\nexclude = [3]', "exclude"),
        ('version = "1.0"', "version = 1", "version"),
    ],
)
def test_a_field_that_hatchling_refuses_is_named(scenario: Project, old: str, new: str, said: str) -> None:
    scenario.edit("pyproject.toml", old, new)
    result = run(scenario, "plan")
    assert result.exit_code == 1
    assert "hatchling cannot read the project" in result.output
    assert f"{said}`" in result.output
    assert "correct the field that the error names" in result.output


def test_a_hook_that_is_not_installed_is_no_wrong_field(scenario: Project) -> None:
    scenario.edit(
        "pyproject.toml",
        "[tool.hatch.build.targets.wheel]",
        "[tool.hatch.build.hooks.other]\n\n[tool.hatch.build.targets.wheel]",
    )
    result = run(scenario, "plan")
    assert "found: UnknownPluginError: Unknown build hook: other" in result.output
    assert "install the packages that `[build-system] requires` names" in result.output


def test_a_fault_of_hatch_lower_is_no_wrong_field(scenario: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(hook: object, build_data: object) -> None:
        raise TypeError("a fault")

    monkeypatch.setattr("hatch_lower.hatch.project.read_project", fail)
    assert repr(run(scenario, "plan").exception) == "TypeError('a fault')"


def test_a_plan_imports_no_torch(scenario: Project, modules_after: Callable[[str], set[str]]) -> None:
    arguments = ["plan", "--root", str(scenario.root)]
    lines = [
        f"import os; os.environ['HATCH_LOWER_CACHE_DIR'] = {str(scenario.cache)!r}",
        f"from hatch_lower.cli.entry import main; main({arguments!r}, standalone_mode=False)",
    ]
    modules = modules_after("\n".join(lines))
    assert "hatch_lower.driver.units" in modules
    assert "torch" not in modules
