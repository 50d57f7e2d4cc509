"""A project whose engine has a fault: the build names the line, and `hatch-lower localise` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.scenarios import Project, copy_project

from hatch_lower.cli.entry import main

FAULT = """\

from hatch_lower.exir.backend import backend_api
from hatch_lower.exir.dialects._ops import ops
from hatch_lower.exir.graph.surgery import copy_program

made = backend_api.make_request


def make_request(method, spec, backend, program):
    program = copy_program(program, lambda target: ops.edge.aten.abs.default if "relu" in str(target) else target)
    return made(method, spec, backend, program)


backend_api.make_request = make_request
"""
LINE = "first wrong: relu at tiny/model.py:12, inside partition 1 of reference: its inputs are eager's own"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = copy_project("tiny", tmp_path_factory.mktemp("localised"))
    made.edit("pyproject.toml", '["null"]', '["reference"]')
    made.edit("pyproject.toml", "verify = false        # the null backend computes nothing\n", "")
    return made


@pytest.fixture(scope="module")
def right_wheel(project: Project) -> Path:
    """The wheel of the project before its engine has a fault."""
    return project.wheel()


@pytest.fixture(scope="module")
def faulty(project: Project, right_wheel: Path) -> Project:
    path = project.root / "tiny" / "model.py"
    path.write_text(path.read_text() + FAULT)
    return project


def localise(project: Project, *args: str) -> Result:
    return CliRunner().invoke(main, ["localise", *args], env=project.environment())


def test_a_build_whose_comparison_fails_names_the_line(faulty: Project) -> None:
    done = faulty.build(environment={"HATCH_LOWER_CACHE": "refresh"})  # it has seen the same graph
    assert done.status != 0
    assert "the lowered method computes something else than the eager module" in done.stderr
    assert LINE in done.stderr


def test_the_command_names_the_line_in_the_projects_folder(faulty: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(faulty.root)
    done = localise(faulty, "tiny", "forward", "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["schema"], report["model"], report["same_program"]) == (1, "tiny", None)
    (finding,) = report["findings"]
    assert finding["verdict"] == "operation"
    assert finding["operations"] == [{"op": "aten.relu.default", "module": "", "source": "tiny/model.py:12"}]
    done = localise(faulty, "nothing")
    assert done.exit_code == 1
    assert "there is no" in done.stderr


def test_a_wheel_that_holds_another_program_is_said_to(faulty: Project, right_wheel: Path) -> None:
    done = localise(faulty, str(right_wheel), "--project", str(faulty.root))
    assert done.exit_code == 1
    assert LINE in done.stdout
    assert "what was named holds other delegates than the project as it is now" in done.stdout


def test_a_wheel_without_its_project_is_refused(
    right_wheel: Path, faulty: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = localise(faulty, str(right_wheel))
    assert done.exit_code == 1
    assert "error: the project that the model comes from is not known" in done.stderr
    assert "name it with `--project`" in done.stderr
