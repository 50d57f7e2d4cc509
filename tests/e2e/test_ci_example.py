"""The steps of the ready workflow, run as GitHub would in a repository with a base and a change of it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.console import make_environment
from support.scenarios import Project, only
from support.venv import REPOSITORY, child_environment, run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

WORKFLOW: dict[str, Any] = yaml.load((REPOSITORY / "examples" / "ci" / "lower.yml").read_text(), yaml.BaseLoader)
(JOB,) = WORKFLOW["jobs"].values()
STEPS = {step["name"]: step for step in JOB["steps"] if "run" in step}
EXPRESSIONS = {"github.base_ref": "main"}
GIT = ["git", "-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "init.defaultBranch=main"]


class Runner:
    """A machine that runs steps: what one writes to `GITHUB_ENV` the next ones find in their environment."""

    def __init__(self, project: Project, folder: Path) -> None:
        self._root = project.root
        self._temporary = folder / "runner"
        self._temporary.mkdir()
        self._variables = {
            "PATH": f"{make_environment(folder / 'venv')}:{child_environment()['PATH']}",
            "RUNNER_TEMP": str(self._temporary),
            "GITHUB_ENV": str(self._temporary / "environment"),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }
        self.cache = self._temporary / "hatch-lower"

    @property
    def summary(self) -> Path:
        return self._temporary / "summary.md"

    def run(self, name: str) -> str:
        """Run a step to its end; return what it said."""
        step = STEPS[name]
        own = {key: re.sub(r"\$\{\{ (\S+) \}\}", value_of, text) for key, text in step.get("env", {}).items()}
        # what GitHub runs for `shell: bash`
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = run(command, cwd=self._root, environment={**self._variables, **own}).check()
        written = self._temporary / "environment"
        if written.exists():
            self._variables |= dict(line.split("=", 1) for line in written.read_text().splitlines())
        return done.output


def value_of(expression: re.Match[str]) -> str:
    return EXPRESSIONS[expression[1]]


def git(root: Path, *words: str | Path) -> None:
    subprocess.run([*GIT, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def runner(project: Callable[[str], Project], tmp_path: Path) -> Runner:
    """A checkout of a change of the documentation, with the branch that it is to be merged into as `origin/main`."""
    made = project("two_methods")
    (made.root / ".gitignore").write_text("dist/\n__pycache__/\n")
    git(made.root, "init", "--quiet")
    git(made.root, "add", "--all")
    git(made.root, "commit", "--quiet", "--message", "base")
    git(made.root, "clone", "--quiet", "--bare", made.root, tmp_path / "origin.git")
    git(made.root, "remote", "add", "origin", tmp_path / "origin.git")
    git(made.root, "fetch", "--quiet", "origin")
    git(made.root, "switch", "--quiet", "--create", "change")
    (made.root / "README.md").write_text("What this is.\n")
    git(made.root, "add", "--all")
    git(made.root, "commit", "--quiet", "--message", "head")
    return Runner(made, tmp_path)


def test_the_wheel_is_built_with_the_cache_that_is_kept_and_reproduced(runner: Runner, tmp_path: Path) -> None:
    runner.run("Choose the place of the cache")
    runner.run("Build")
    assert only(tmp_path / "two_methods" / "dist", "*.whl")
    assert any(runner.cache.iterdir())
    assert "is reproducible" in runner.run("Build again, elsewhere and otherwise")


def test_a_change_is_compared_with_the_merge_base(runner: Runner, tmp_path: Path) -> None:
    runner.run("Choose the place of the cache")
    runner.run("Build")
    assert "is equal byte by byte, and not timed" in runner.run("Compare with the merge base")
    root = tmp_path / "two_methods"
    report = json.loads((root / "dist" / "bench.json").read_text())
    assert report["benchmarks"] == []
    assert report["hatch_lower"]["figures"]
    assert "two_methods" in runner.summary.read_text()
    listed = run([*GIT, "worktree", "list"], cwd=root).check().stdout
    assert len(listed.splitlines()) == 1


def test_every_step_is_run_but_the_installation() -> None:
    known = ["Install", "Choose the place of the cache", "Build", "Build again, elsewhere and otherwise"]
    assert list(STEPS) == [*known, "Compare with the merge base"]
