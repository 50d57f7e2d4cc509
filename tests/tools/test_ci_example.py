"""The steps of the ready workflow, run as GitHub would in a repository with a base and a change of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.ci import Runner, make_runner, read_workflow, steps_of
from support.scenarios import Project, only
from support.venv import run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

(JOB,) = read_workflow("lower.yml")["jobs"].values()
STEPS = steps_of(JOB)
GIT = ["git", "-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "init.defaultBranch=main"]


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
    return make_runner(made.root, tmp_path / "runner", {"github.base_ref": "main"})


def run_step(runner: Runner, name: str) -> str:
    """Run a step to its end; return what it said."""
    return runner.run(STEPS[name]).check().output


def test_the_wheel_is_built_with_the_cache_that_is_kept_and_reproduced(runner: Runner, tmp_path: Path) -> None:
    run_step(runner, "Choose the place of the cache")
    run_step(runner, "Build")
    assert only(tmp_path / "two_methods" / "dist", "*.whl")
    assert any((runner.temporary / "hatch-lower").iterdir())
    assert "is reproducible" in run_step(runner, "Build again, elsewhere and otherwise")


def test_a_change_is_compared_with_the_merge_base(runner: Runner, tmp_path: Path) -> None:
    run_step(runner, "Choose the place of the cache")
    run_step(runner, "Build")
    assert "is equal byte by byte, and not timed" in run_step(runner, "Compare with the merge base")
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
