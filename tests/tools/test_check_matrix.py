"""`hatch-lower check --matrix`: fresh environments with versions of an engine, right and wrong ones."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from packaging.specifiers import SpecifierSet
from support.engine_wheels import (
    CRASHING,
    DOUBLING,
    REQUIRED,
    TORCH_FREE,
    WRONG,
    files_below,
    write_distribution,
    write_engine,
    write_model_wheel,
)
from support.lowered import floats
from support.processes import wait_for
from support.venv import child_environment, find_links
from support.weights import checkpoint, write_outside

from hatch_lower.cli.entry import main
from hatch_lower.cli.matrix.command import MatrixOptions, environment_opener, refuse_missing_weights
from hatch_lower.cli.matrix.engines import Engine, WheelRequirements
from hatch_lower.cli.matrix.environment import Workshop, find_uv, make_workshop, write_own_wheel
from hatch_lower.cli.matrix.places import IndexPlaces, read_places
from hatch_lower.driver.contents import find_contents
from hatch_lower.errors import ConfigError, FetchError, ProgramError

PYPROJECT = """\
[project]
name = "digits"
version = "1.0"
dependencies = [
  "hatch-lower>=0.1",
  "numpy>=1.26",
  "tiny-engine>=1,<3",  # the engine
]
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of engines, which installers look into beside the configured places."""
    folder = tmp_path / "engines"
    folder.mkdir()
    places = find_links(folder)
    monkeypatch.setenv("PIP_FIND_LINKS", " ".join(places))
    monkeypatch.setenv("TMPDIR", str(temporary := tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    temporary.mkdir()
    return folder


@pytest.mark.isolated
@pytest.mark.slow
def test_a_wrong_engine_and_one_that_crashes_are_found_and_left_out_of_the_requirement(
    tmp_path: Path, engines: Path
) -> None:
    bodies = {"1.0.0": DOUBLING, "1.0.1": DOUBLING, "1.1.0": WRONG, "1.2.0": CRASHING, "2.0.0": TORCH_FREE}
    for version, body in {**bodies, "2.1.0rc1": WRONG, "3.0.0": WRONG}.items():
        write_engine(engines, version, body)
    write_engine(engines, "2.2.0", tag="cp27-cp27m-win32")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    wheel = write_model_wheel(tmp_path, requires=[*REQUIRED, "torch>=2.11"])  # torch for other recipes
    done = run(wheel, "--matrix", "--write", "--json", "--root", tmp_path)
    assert done.exit_code == 1, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [(row["version"], row["method"], row["result"]) for row in rows] == [
        ("1.0.0", "forward", "passed"),
        ("1.0.1", "forward", "passed"),
        ("1.1.0", "forward", "wrong number"),
        ("1.2.0", "", "fails"),
        ("2.0.0", "forward", "passed"),
        ("2.2.0", "", "not installable"),
    ]
    assert rows[2]["largest_error"] == 2.0
    assert rows[2]["detail"].startswith("`output`: largest absolute error 2")
    assert rows[3]["detail"] == "the process was ended by SIGABRT"
    assert {row["installed"].get("tiny-engine", row["version"]) == row["version"] for row in rows} == {True}
    wanted = "tiny-engine>=1,!=1.1.*,!=1.2.*,<2.3"
    assert f"tiny-engine>=1,<3 → {wanted}" in done.stderr
    assert (tmp_path / "pyproject.toml").read_text() == PYPROJECT.replace("tiny-engine>=1,<3", wanted)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.isolated
@pytest.mark.slow
def test_without_uv_pip_installs(tmp_path: Path, engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.cli.matrix.environment.find_uv", lambda: ())
    write_engine(engines, "1.0.0")
    done = run(write_model_wheel(tmp_path), "--matrix")
    assert done.exit_code == 0, done.output
    assert "tiny-engine>=1,<3 (the wheel's metadata): 1 version, 1 passed" in done.stdout


@pytest.mark.isolated
def test_an_installer_that_refuses_is_named(tmp_path: Path, engines: Path) -> None:
    write_engine(engines, "1.0.0")
    wheel = write_model_wheel(tmp_path, recipes={"default": [*REQUIRED, "numpy>=99"]})
    done = run(wheel, "--matrix", "--json")
    assert done.exit_code == 1, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert row["detail"].startswith("it cannot be installed: ")
    assert "numpy>=99" in row["detail"]


@pytest.mark.parametrize(
    ("output", "error", "text"),
    [
        ("error sending request", FetchError, "the index of packages cannot be read"),
        ("error: No space left on device (os error 28)", ConfigError, "no environment can be made here"),
    ],
)
def test_a_machine_that_cannot_install_is_no_fault_of_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, error: type[Exception], text: str
) -> None:
    # in place of uv: makes an environment, and fails to install
    (tmp_path / "uv").write_text(f"#!/bin/sh\n[ $1 = venv ] || {{ echo '{output}'; exit 1; }}\n")
    (tmp_path / "uv").chmod(0o755)
    places = IndexPlaces(("http://127.0.0.1:9/simple",))  # down
    workshop = Workshop(tmp_path, tmp_path, tmp_path, (str(tmp_path / "uv"),), places)
    engine = Engine("tiny-engine", SpecifierSet(), "the recipes", (), ())
    opened = environment_opener(workshop, WheelRequirements("digits", (), ()), MatrixOptions())
    with pytest.raises(error, match=text), opened(engine, "1.0"):
        pass


def test_an_interrupted_check_removes_its_environment(tmp_path: Path, engines: Path) -> None:
    waiting = tmp_path / "waiting"
    write_engine(engines, "1.0.0")
    # in place of uv: says that it has begun, and waits
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "uv").write_text(f"#!/bin/sh\nmkdir -p \"$(eval echo \\${{$#}})\"\ntouch '{waiting}'\nexec sleep 600\n")
    (commands / "uv").chmod(0o755)
    environment = child_environment()
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    command = [sys.executable, "-m", "hatch_lower", "check", str(write_model_wheel(tmp_path)), "--matrix"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        wait_for(waiting.exists, "the environment", process)
        assert [path.name for path in (tmp_path / "temporary").glob("*/environment")] == ["environment"]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert list((tmp_path / "temporary").iterdir()) == []


def test_an_index_that_cannot_be_reached_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1:9/simple")
    done = run(write_model_wheel(tmp_path), "--matrix")
    assert done.exit_code == 1
    assert "the index of packages cannot be read" in done.stderr
    assert "http://127.0.0.1:9/simple/tiny-engine/" in done.stderr
    assert "secret" not in done.stderr


def test_a_requirement_that_cannot_be_written_is_refused_before_an_index_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    done = run(write_model_wheel(tmp_path), "--matrix", "--write", "--root", tmp_path)
    assert done.exit_code == 1
    assert "there is no project to write" in done.stderr


def test_the_options_of_a_matrix_need_it(tmp_path: Path) -> None:
    text = "`--engine` and `--write` belong to `--matrix`."
    refused = {
        ("--write",): text,
        ("--engine", "x"): text,
        ("--matrix", "--root", "."): "`--root` belongs to `--write`.",
    }
    for options, reason in refused.items():
        done = run(write_model_wheel(tmp_path), *options)
        assert done.exit_code == 2
        assert reason in done.stderr


def test_a_name_and_a_folder_without_wheels_are_no_wheel(tmp_path: Path) -> None:
    for target in ("digits", f"{tmp_path}/"):
        done = run(target, "--matrix")
        assert done.exit_code == 1
        assert "`--matrix` installs a wheel, and this is no wheel" in done.stderr
        assert "its folder with a slash or a dot: `dist/`, `./dist`" in done.stderr


def test_a_wheel_without_an_engine_is_refused_with_its_recipes(tmp_path: Path) -> None:
    wheel = write_model_wheel(tmp_path, recipes={"portable": ["hatch-lower>=0.1", "torch>=2.11"]})
    done = run(wheel, "--matrix")
    assert done.exit_code == 1
    assert "digits, portable: hatch-lower>=0.1, torch>=2.11" in done.stderr


def test_hatch_lower_s_own_wheel_has_its_code_and_its_entry_points(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(write_own_wheel(tmp_path)) as archive:
        members = archive.namelist()
        (points,) = (archive.read(name).decode() for name in members if name.endswith("/entry_points.txt"))
    assert "hatch_lower/cli/matrix/child.py" in members
    assert "[hatch_lower.delegates]" in points
    assert [name for name in members if "__pycache__" in name] == []


def test_uv_is_the_command_or_the_installed_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_uv() in ((sys.executable, "-m", "uv"), ())
    (tmp_path / "uv").touch(mode=0o755)
    assert find_uv() == (str(tmp_path / "uv"),)


def test_the_wheels_of_a_workshop_are_copies(tmp_path: Path) -> None:
    wheel = write_model_wheel(tmp_path)
    (tmp_path / "work").mkdir()
    workshop: Workshop = make_workshop(tmp_path / "work", wheel, IndexPlaces())
    assert workshop.wheel.read_bytes() == wheel.read_bytes()
    assert workshop.wheel.parent == tmp_path / "work/wheels"
    assert find_contents(workshop.wheel)[0].models == ("digits",)


def test_weights_that_are_not_here_are_no_fault_of_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = write_outside(tmp_path / "_lowered", {"model.safetensors": checkpoint({"w": floats(1, 2)})})
    files = {f"digits/_lowered/{path.relative_to(lowered)}": path.read_bytes() for path in files_below(lowered)}
    wheel = write_distribution(tmp_path, "digits", "1.0", files)
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "weights"))
    with pytest.raises(ProgramError, match="weights of the model are not on this machine") as caught:
        refuse_missing_weights(wheel, {"digits"})
    assert f"run `hatch-lower fetch {wheel} --from URL`" in caught.value.hint
    refuse_missing_weights(wheel, {"other"})


def test_folders_of_weights_are_found_from_the_folder_of_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", "one:/two")
    workshop = Workshop(tmp_path, tmp_path, tmp_path, (), IndexPlaces())
    assert workshop.variables()["HATCH_LOWER_WEIGHTS"] == f"{tmp_path}/one:/two"


def test_pip_s_settings_of_this_environment_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://one.invalid/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    places = read_places({})
    assert (places.indexes[0], places.links) == ("https://one.invalid/simple", ("/a", "/b"))
