"""The ready workflows are valid, and ask for no more than they need."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.venv import REPOSITORY, run

CI = REPOSITORY / "examples" / "ci"
TOOLS = Path(sys.executable).parent
GITHUB: dict[str, Any] = yaml.load((CI / "lower.yml").read_text(), yaml.BaseLoader)  # `on` stays a word
GITLAB: dict[str, Any] = yaml.load((CI / "gitlab.yml").read_text(), yaml.BaseLoader)
(JOB,) = GITHUB["jobs"].values()
STEPS = JOB["steps"]


@pytest.mark.parametrize(("schema", "name"), [("github-workflows", "lower.yml"), ("gitlab-ci", "gitlab.yml")])
def test_a_workflow_has_the_form_that_its_service_publishes(schema: str, name: str) -> None:
    run([TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", CI / name]).check()


def test_the_steps_are_sound_shell(tmp_path: Path) -> None:
    scripts = [step["run"] for step in STEPS if "run" in step] + ["\n".join(GITLAB["lower"]["script"])]
    for number, script in enumerate(scripts):
        (tmp_path / f"{number}.sh").write_text(f"#!/bin/bash -e\n{script}\n")
    run([TOOLS / "shellcheck", *sorted(tmp_path.glob("*.sh"))]).check()


def test_no_step_puts_what_others_write_into_its_shell() -> None:
    assert [step["run"] for step in STEPS if "${{" in step.get("run", "")] == []


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is on no index of Python packages")
def test_actionlint_accepts_the_workflow() -> None:
    run(["actionlint", CI / "lower.yml"]).check()


def test_the_workflow_may_read_the_repository_and_no_more() -> None:
    assert GITHUB["permissions"] == {"contents": "read"}
    assert STEPS[0]["with"] == {"fetch-depth": "0", "persist-credentials": "false"}


def test_a_job_ends_in_time_and_an_older_one_of_the_same_request_at_once() -> None:
    assert int(JOB["timeout-minutes"]) <= 60
    assert "pull_request" in GITHUB["concurrency"]["cancel-in-progress"]


def test_actions_are_pinned_to_a_major_version() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    assert all(name.startswith("actions/") and version[1:].isdigit() for name, version in (u.split("@") for u in used))


def test_the_cache_that_is_restored_is_the_one_that_is_saved() -> None:
    first, last = (step["with"] for step in STEPS if step.get("uses", "").startswith("actions/cache/"))
    assert last == {name: first[name] for name in ("path", "key")}
    assert first["key"].startswith(first["restore-keys"])
