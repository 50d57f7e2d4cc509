"""It fails well: one paragraph that names the TOML key or the model's line, and nothing is left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from support.scenarios import Project, tree

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

TABLE = "tool.hatch.build.targets.wheel.hooks.lower"
PROJECT_FILES = "pyproject.toml"


def message_of(project: Project, environment: dict[str, str] | None = None) -> str:
    """Build, see that it fails and leaves nothing, and return the paragraph that it fails with."""
    before = tree(project.root)
    done = project.build(environment=environment)
    assert done.status == 1, done.output
    assert "Traceback" not in done.stderr
    assert project.left_behind() == []
    assert tree(project.root) == before
    _, found, paragraph = done.stderr.partition("hatch-lower: ")
    assert found, done.stderr
    return paragraph.strip()


ENTRY_POINTS = {
    "gone": "",
    "not_callable": "",
    "raising": "",
    "wrong_type": "",
    "misfit": "",
    "branching": "",
    "constraint": "",
    "missing_method": "",
    "taken": "",
    "crashing": "",
    "killed": "",
}


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_an_entry_point_that_cannot_be_lowered(project: Callable[[str], Project], entry: str) -> None:
    bad = project("bad_entry")
    bad.edit(PROJECT_FILES, ":ENTRY", f":{entry}")
    assert message_of(bad) == ENTRY_POINTS[entry]


def test_a_module_that_is_missing(project: Callable[[str], Project]) -> None:
    bad = project("bad_entry")
    bad.edit(PROJECT_FILES, "bad_entry.model:ENTRY", "bad_entry.modle:raising")
    assert message_of(bad) == ""


def test_a_module_whose_import_fails(project: Callable[[str], Project]) -> None:
    assert message_of(project("raises_on_import")) == ""


def test_an_entry_point_that_prints_does_not_reach_stdout(project: Callable[[str], Project]) -> None:
    printing = project("bad_entry")
    printing.edit(PROJECT_FILES, ":ENTRY", ":printing")
    done = printing.build().check()
    assert "loading the weights" not in done.stdout
    assert "loading the weights" in done.stderr


def test_every_wrong_key_is_reported_at_once(project: Callable[[str], Project]) -> None:
    assert message_of(project("typo_key")) == ""


def test_an_unknown_backend(project: Callable[[str], Project]) -> None:
    assert message_of(project("unknown_backend")) == ""


def test_an_unknown_recipe(project: Callable[[str], Project]) -> None:
    bad = project("tiny")
    bad.edit(PROJECT_FILES, 'backends = ["null"]', 'backends = ["null"]\nrecipe-order = ["defualt"]')
    assert message_of(bad) == ""


def test_a_model_that_is_declared_twice(project: Callable[[str], Project]) -> None:
    bad = project("tiny")
    with (bad.root / PROJECT_FILES).open("a") as file:
        file.write(f'\n[{TABLE}.models.tiny]\nexport = "tiny.model:export"\n')
    assert message_of(bad) == ""


def test_dependencies_that_do_not_imply_what_the_programs_need(project: Callable[[str], Project]) -> None:
    bad = project("tiny")
    bad.edit(PROJECT_FILES, 'dependencies = ["hatch-lower>=0.1", "torch==2.13.*"]', 'dependencies = ["torch"]')
    assert message_of(bad) == ""


def test_no_compiler(project: Callable[[str], Project]) -> None:
    assert message_of(project("mixed"), {"CXX": "/nowhere/g++", "PATH": "/nowhere"}) == ""


def test_a_time_limit(project: Callable[[str], Project], tmp_path_factory: pytest.TempPathFactory) -> None:
    slow = project("slow")
    slow.edit(PROJECT_FILES, "backends = []", "backends = []\ntimeout = 8")
    marker = tmp_path_factory.mktemp("marker") / "marker"
    assert message_of(slow, {"SLOW_MARKER": str(marker)}) == ""


def test_a_failure_inside_finalize(project: Callable[[str], Project]) -> None:
    bad = project("tiny")
    (bad.root / "tiny" / "_lowered").mkdir()
    (bad.root / "tiny" / "_lowered" / "manifest.json").write_text("{}")
    assert message_of(bad) == ""


def test_a_mismatch_with_eager(project: Callable[[str], Project]) -> None:
    bad = project("tiny")
    bad.edit(PROJECT_FILES, "verify = false        # the null backend computes nothing\n", "")
    assert message_of(bad) == ""


def test_a_failed_model_keeps_what_another_had_finished(project: Callable[[str], Project]) -> None:
    both = project("tiny")
    both.edit(PROJECT_FILES, 'tiny = "tiny.model:export"', 'tiny = "tiny.model:export"\nzz_gone = "tiny.model:gone"')
    message_of(both)
    both.edit(PROJECT_FILES, '\nzz_gone = "tiny.model:gone"', "")
    both.build(environment={"HATCH_LOWER_CACHE": "frozen"}).check()


def test_a_cache_that_cannot_be_written_does_not_fail_the_build(project: Callable[[str], Project]) -> None:
    tiny = project("tiny")
    tiny.cache.write_text("a file where the folder should be")
    tiny.build().check()
    shutil.rmtree(tiny.dist)
