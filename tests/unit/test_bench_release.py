"""A release as a side of a benchmark, which pip finds in a folder here; and the commands that are run for a side."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from support.processes import is_running, wait_for
from support.sides import PLAIN, write_wheel

from hatch_lower.cli.measure import command, project
from hatch_lower.cli.measure.command import run_command
from hatch_lower.cli.measure.project import released
from hatch_lower.errors import ConfigError, LowerError, ProcessError, ProgramError

pytestmark = pytest.mark.processes


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder where pip looks; no temporary folder is left after a test."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    index = tmp_path / "index"
    index.mkdir()
    yield index
    assert list(temporary.iterdir()) == []


def release_of(index: Path, version: str | None = None, name: str = "digits") -> Any:
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    return released(name, version, environment, lambda line: None)


def refusal(side: Any) -> LowerError:
    with pytest.raises(LowerError) as caught, side:
        pass
    return caught.value


def test_the_newest_release_or_the_one_that_is_named(index: Path) -> None:
    for version in ("1.2", "1.10", "1.11rc1"):
        write_wheel(index / f"digits-{version}-py3-none-any.whl", {"digits": PLAIN}, version=version)
    with release_of(index) as side:
        assert side.title == "digits-1.10-py3-none-any.whl (released)"
        assert list(side.folders) == ["digits"]
        assert side.wheel is not None
        assert side.wheel.read_bytes() == (index / side.wheel.name).read_bytes()
        assert (side.source, side.build) == (None, {})
    with release_of(index, "1.2") as side:
        assert side.title == "digits-1.2-py3-none-any.whl (released)"


def test_a_release_that_pip_does_not_find(index: Path) -> None:
    write_wheel(index / "digits-1.0-py3-none-any.whl", {"digits": PLAIN})
    write_wheel(index / "digits-2.0-py2-none-any.whl", {"digits": PLAIN}, version="2.0")
    (index / "digits-3.0.tar.gz").touch()  # a source distribution is not built
    for version in ("2.0", "3.0", "4.0"):
        error = refusal(release_of(index, version))
        assert (type(error), error.what) == (ProgramError, "there is no such release that could be installed here")
        assert error.where == f"`digits=={version}`"
        assert f"No matching distribution found for digits=={version}" in error.found
        assert "`python -m pip config list`" in error.hint
    assert "Invalid requirement" in refusal(release_of(index, name="--index-url=http://127.0.0.1:1/")).found


def test_a_release_without_lowered_models(index: Path) -> None:
    write_wheel(index / "digits-1.0-py3-none-any.whl", {})
    assert refusal(release_of(index)).what == "there are no lowered models here"


def test_no_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(project.importlib.metadata, "distribution", missing)
    error = refusal(release_of(index))
    assert type(error) is ConfigError
    assert error.what == "pip is not installed here, which finds and downloads releases"
    assert "`python -m ensurepip`" in error.hint


def test_a_command_gives_its_status_and_all_that_it_prints(tmp_path: Path) -> None:
    told: list[str] = []
    code = "import os, sys; print(os.getcwd()); print(os.environ['NAME'], file=sys.stderr); sys.exit(3)"
    environment = {**os.environ, "NAME": "ä", "PYTHONUTF8": "1"}
    status, lines = run_command([sys.executable, "-u", "-c", code], tmp_path, environment, told.append)
    assert (status, lines) == (3, [str(tmp_path), "ä"])
    assert told == lines


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="a command could not be started") as caught:
        run_command([str(tmp_path / "nothing")], tmp_path, os.environ)
    assert "FileNotFoundError" in caught.value.found


@pytest.mark.parametrize("deaf", [False, True])
def test_an_interrupted_command_ends_with_all_that_it_started(
    deaf: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "GRACE_SECONDS", 0.3 if deaf else 60.0)
    code = "import os, signal, subprocess, sys, time\n"
    code += "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" * deaf
    code += "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
    code += "try:\n    print(os.getpid(), child.pid, flush=True)\n    time.sleep(99)\nfinally: open('tidy', 'w')\n"
    group: list[int] = []

    def interrupt(line: str) -> None:
        group.extend(map(int, line.split()))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", code], tmp_path, os.environ, interrupt)
    assert (tmp_path / "tidy").exists() is not deaf
    with pytest.raises(ProcessLookupError):
        os.kill(group[0], 0)
    wait_for(lambda: not is_running(group[1]), "its child to end")


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess, sys\nquiet = subprocess.DEVNULL\n"
    code += (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'], stdout=quiet, stderr=quiet)\n"
    )
    code += "print(child.pid)\n"
    status, (line,) = run_command([sys.executable, "-c", code], tmp_path, os.environ)
    assert status == 0
    wait_for(lambda: not is_running(int(line)), "its child to end")
