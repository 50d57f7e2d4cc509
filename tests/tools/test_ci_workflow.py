"""The ready workflows are valid, and ask for no more than they need."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from support.ci import EXAMPLES as CI
from support.ci import read_workflow, steps_of
from support.venv import REPOSITORY, run

from hatch_lower.cli.main import main

TOOLS = Path(sys.executable).parent
GITHUB, GITLAB = read_workflow("lower.yml"), read_workflow("gitlab.yml")
(JOB,) = GITHUB["jobs"].values()
STEPS = JOB["steps"]


SHARDS = read_workflow("shards.yml")
GITLAB_SHARDS = read_workflow("gitlab-shards.yml")
ENGINES, GITLAB_ENGINES = read_workflow("engines.yml"), read_workflow("gitlab-engines.yml")
HUBS = [GITHUB, SHARDS, ENGINES]
EVERY_STEP = [step for hub in HUBS for job in hub["jobs"].values() for step in job["steps"]]


def needs(tool: str) -> pytest.MarkDecorator:
    """Skip a test where a command is neither in this environment nor on the path."""
    missing = not (TOOLS / tool).exists() and shutil.which(tool) is None
    return pytest.mark.skipif(missing, reason=f"{tool} is not installed")


@needs("check-jsonschema")
@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("github-workflows", "lower.yml"),
        ("github-workflows", "shards.yml"),
        ("github-workflows", "engines.yml"),
        ("gitlab-ci", "gitlab.yml"),
        ("gitlab-ci", "gitlab-engines.yml"),
        ("gitlab-ci", "gitlab-shards.yml"),
        ("github-workflows", "../../.github/workflows/test.yml"),
        ("github-workflows", "../../.github/workflows/release.yml"),
    ],
)
def test_a_workflow_has_the_form_that_its_service_publishes(schema: str, name: str) -> None:
    run(["check-jsonschema", "--builtin-schema", f"vendor.{schema}", CI / name]).check()


def test_the_project_s_own_workflows_may_read_and_only_the_publishing_job_gets_an_identity() -> None:
    test, release = (read_workflow(f"../../.github/workflows/{name}.yml") for name in ("test", "release"))
    assert test["permissions"] == release["permissions"] == {"contents": "read"}
    jobs = {**test["jobs"], **release["jobs"]}
    assert {name: job["permissions"] for name, job in jobs.items() if "permissions" in job} == {
        "publish": {"id-token": "write"}
    }
    assert [step["run"] for job in jobs.values() for step in job["steps"] if "${{" in step.get("run", "")] == []


def test_the_project_s_own_tests_run_on_the_pythons_that_its_metadata_names() -> None:
    matrix = read_workflow("../../.github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = [kind.removeprefix("Programming Language :: Python :: ") for kind in project["classifiers"]]
    assert matrix["python"] == [version for version in named if version.startswith("3.")]
    assert matrix["torch"][0] == "2.13"


@needs("shellcheck")
def test_the_steps_are_sound_shell(tmp_path: Path) -> None:
    scripts = [step["run"] for step in EVERY_STEP if "run" in step]
    scripts += ["\n".join(GITLAB["lower"]["script"]), "\n".join(GITLAB_ENGINES["engines"]["script"])]
    scripts += ["\n".join(GITLAB_SHARDS[job]["script"]) for job in ("lower", "wheel")]
    for number, script in enumerate(scripts):
        (tmp_path / f"{number}.sh").write_text(f"#!/bin/bash -e\n{script}\n")
    run(["shellcheck", *sorted(tmp_path.glob("*.sh"))]).check()


def test_no_step_puts_what_others_write_into_its_shell() -> None:
    assert [step["run"] for step in EVERY_STEP if "${{" in step.get("run", "")] == []


@needs("actionlint")  # on no index of Python packages
def test_actionlint_accepts_the_workflows() -> None:
    run(["actionlint", CI / "lower.yml", CI / "shards.yml", CI / "engines.yml"]).check()


def test_a_workflow_may_read_the_repository_and_no_more() -> None:
    assert [hub["permissions"] for hub in HUBS] == [{"contents": "read"}] * len(HUBS)
    assert STEPS[0]["with"] == {"fetch-depth": "0", "persist-credentials": "false"}
    checkouts = [step["with"] for step in EVERY_STEP if step.get("uses", "").startswith("actions/checkout@")]
    assert {checkout["persist-credentials"] for checkout in checkouts} == {"false"}


def test_only_the_job_that_makes_units_of_reviewed_code_has_the_key_that_signs() -> None:
    assert SHARDS["on"] == {"push": {"branches": ["main"]}}
    holders = [
        name for name, job in SHARDS["jobs"].items() for step in job["steps"] if "SIGNING_KEY" in str(step.get("env"))
    ]
    assert holders == ["lower"]
    assert "SIGNING_KEY" not in str(SHARDS["env"])


def test_the_machines_of_a_build_install_the_same_and_the_last_one_makes_nothing() -> None:
    installs = [
        step["run"] for job in SHARDS["jobs"].values() for step in job["steps"] if step.get("name") == "Install"
    ]
    assert len(installs) == 3
    assert set(installs) == set(GITLAB_SHARDS[".machine"]["before_script"])
    assert steps_of(SHARDS["jobs"]["wheel"])["Build"]["env"] == {"HATCH_LOWER_CACHE": "frozen"}
    assert GITLAB_SHARDS["wheel"]["script"][0].startswith("HATCH_LOWER_CACHE=frozen ")


def test_a_job_ends_in_time_and_an_older_one_of_the_same_request_at_once() -> None:
    assert max(int(job["timeout-minutes"]) for hub in HUBS for job in hub["jobs"].values()) <= 60
    assert "pull_request" in GITHUB["concurrency"]["cancel-in-progress"]


def test_the_engines_are_tried_every_night_by_the_same_commands_in_both_services() -> None:
    assert [entry["cron"].split()[2:] for entry in ENGINES["on"]["schedule"]] == [["*", "*", "*"]]
    assert GITLAB_ENGINES["engines"]["rules"] == [{"if": '$CI_PIPELINE_SOURCE == "schedule"'}]
    commands = [step["run"] for step in ENGINES["jobs"]["engines"]["steps"] if "run" in step]
    assert commands == GITLAB_ENGINES["engines"]["script"]
    # parsed alone: the options of the last command exist
    words = commands[-1].split()
    assert words[:2] == ["hatch-lower", "check"]
    assert main.commands["check"].make_context("check", words[2:]).params["is_matrix"]


def test_actions_are_pinned_to_a_major_version() -> None:
    used = [step["uses"] for step in EVERY_STEP if "uses" in step]
    assert used
    assert all(name.startswith("actions/") and version[1:].isdigit() for name, version in (u.split("@") for u in used))


def test_the_cache_that_is_restored_is_the_one_that_is_saved() -> None:
    first, last = (step["with"] for step in STEPS if step.get("uses", "").startswith("actions/cache/"))
    assert last == {name: first[name] for name in ("path", "key")}
    assert first["key"].startswith(first["restore-keys"])
