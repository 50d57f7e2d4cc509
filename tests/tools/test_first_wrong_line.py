"""A project whose engine has a fault: the build leaves the operation out or names its line, as `localize` does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.scenarios import Project, copy_project, only, sha256

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
    made = copy_project("tiny", tmp_path_factory.mktemp("localized"))
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


def localize(project: Project, *args: str) -> Result:
    return CliRunner().invoke(main, ["localize", *args], env=project.environment())


def test_a_build_leaves_the_operation_out_and_finds_that_again(faulty: Project, tmp_path: Path) -> None:
    root = Path(shutil.copytree(faulty.root, tmp_path / "tiny"))
    copied = Project(root, tmp_path / "dist", tmp_path / "cache")
    done = copied.build().check()
    assert "relu at tiny/model.py:12: `reference` computes the operation wrongly on random inputs" in done.output
    wheel = only(copied.dist, "*.whl")
    shown = CliRunner().invoke(main, ["inspect", str(wheel), "--json"]).stdout
    method = json.loads(shown)[0]["models"]["tiny"]["recipes"]["default"]["methods"]["forward"]
    known = {"op": "aten.relu.default", "module": "", "source": "tiny/model.py:12", "backend": "reference"}
    (left_out,) = method["left_out"]
    assert {**left_out, **known} == left_out
    assert method["delegated"] < method["nodes"]
    digest = sha256(wheel)
    copied.build(environment={"HATCH_LOWER_CACHE": "frozen"}).check()
    assert sha256(only(copied.dist, "*.whl")) == digest


def test_a_build_that_is_to_fail_names_the_line(faulty: Project) -> None:
    faulty.edit("pyproject.toml", '["reference"]', '["reference"]\non-mismatch = "fail"')
    done = faulty.build(environment={"HATCH_LOWER_CACHE": "refresh"})  # it has seen the same graph
    assert done.status != 0
    assert "the lowered method computes other numbers than the eager module" in done.stderr
    assert LINE in done.stderr


def test_the_command_names_the_line_in_the_projects_folder(faulty: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(faulty.root)
    done = localize(faulty, "tiny", "forward", "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["schema"], report["model"], report["same_program"]) == (1, "tiny", None)
    (finding,) = report["findings"]
    assert finding["verdict"] == "operation"
    assert finding["operations"] == [{"op": "aten.relu.default", "module": "", "source": "tiny/model.py:12"}]
    done = localize(faulty, "nothing")
    assert done.exit_code == 1
    assert "there is no" in done.stderr


def test_a_wheel_that_holds_another_program_is_said_to(
    faulty: Project, right_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(faulty.root)
    done = localize(faulty, str(right_wheel))
    assert done.exit_code == 1
    assert LINE in done.stdout
    assert "the named wheel or package has other delegates" in done.stdout


def test_a_wheel_without_its_project_is_refused(
    right_wheel: Path, faulty: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = localize(faulty, str(right_wheel))
    assert done.exit_code == 1
    assert "error: the model's project is unknown" in done.stderr
    assert "run this in the project's folder" in done.stderr


def test_a_wheel_whose_model_its_project_no_longer_declares_is_refused(
    right_wheel: Path, faulty: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = Project(Path(shutil.copytree(faulty.root, tmp_path / "renamed")), tmp_path / "dist", tmp_path / "cache")
    renamed.edit("pyproject.toml", 'tiny = "tiny.model:export"', 'renamed = "tiny.model:export"')
    monkeypatch.setattr("hatch_lower.cli.measure.project.editable_project", lambda distribution: renamed.root)
    monkeypatch.chdir(tmp_path)
    done = localize(renamed, str(right_wheel))
    assert done.exit_code == 1
    assert "the project has no such model" in done.stderr
    assert "run this in the project that the model comes from\n" in done.stderr


def test_two_names_of_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = copy_project("tiny", tmp_path)
    monkeypatch.chdir(project.root)
    done = localize(project, "tiny", "--model", "other")
    assert done.exit_code == 2
    assert "`tiny` and `--model other` both name a model: give only one of them." in done.stderr
