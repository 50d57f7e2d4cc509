"""The steps of a workflow, run as a CI service would run them: one shell each, in a folder that is a checkout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.console import make_environment
from support.venv import REPOSITORY, Finished, child_environment, run

yaml = pytest.importorskip("yaml")

EXAMPLES = REPOSITORY / "examples" / "ci"
EXPRESSION = re.compile(r"\$\{\{ (\S+) \}\}")


def read_workflow(name: str) -> dict[str, Any]:
    """Return a workflow of the examples; `on` stays a word."""
    workflow: dict[str, Any] = yaml.load((EXAMPLES / name).read_text(), yaml.BaseLoader)
    return workflow


def steps_of(job: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the steps of a GitHub job that run something, by name."""
    return {step["name"]: step for step in job["steps"] if "run" in step}


@dataclass
class Runner:
    """A machine that runs steps: what one writes to `GITHUB_ENV` the next ones find in their environment.

    Args:
        root: the checkout.
        temporary: a folder of the machine's own, which exists.
        commands: a folder with the commands that steps use.
        expressions: what stands in the place of `${{ … }}` in the variables of steps.
        variables: of the job.
    """

    root: Path
    temporary: Path
    commands: Path
    expressions: Mapping[str, str]
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> Path:
        """The file of the job's summary."""
        return self.temporary / "summary.md"

    def run(self, step: Mapping[str, Any]) -> Finished:
        """Run a step to its end."""
        own = {key: EXPRESSION.sub(self.value_of, text) for key, text in step.get("env", {}).items()}
        # what GitHub runs for `shell: bash`
        done = self.shell(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], own)
        self.variables |= self.written("environment")
        return done

    def shell(self, command: list[str], variables: Mapping[str, str]) -> Finished:
        """Run a command in the checkout with the variables of the job and some of its own."""
        given = {
            "PATH": f"{self.commands}:{child_environment()['PATH']}",
            "RUNNER_TEMP": str(self.temporary),
            "GITHUB_ENV": str(self.temporary / "environment"),
            "GITHUB_OUTPUT": str(self.temporary / "output"),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }
        return run(command, cwd=self.root, environment={**given, **self.variables, **variables})

    def written(self, name: str) -> dict[str, str]:
        """Return what steps have written to the file for variables, or for outputs."""
        path = self.temporary / name
        return dict(line.split("=", 1) for line in path.read_text().splitlines()) if path.exists() else {}

    def value_of(self, expression: re.Match[str]) -> str:
        """Return what an expression stands for; those that a test does not name fail it."""
        return self.expressions[expression[1]]


def make_runner(
    root: Path, folder: Path, expressions: Mapping[str, str], variables: Mapping[str, str] | None = None
) -> Runner:
    """Return a machine for a checkout, with an environment of its own in `folder`, which is made."""
    folder.mkdir()
    return Runner(root, folder, make_environment(folder / "venv"), expressions, dict(variables or {}))
