"""The suite itself: runs inherit nothing from the shell that started them, and `tests/run` leaves out what passed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__)
PRINT = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_interrupts_reach_a_test_and_its_processes() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert subprocess.check_output([sys.executable, "-c", PRINT], text=True) == "True\n"


@pytest.mark.parametrize("jobs", ["0", "1"])
def test_interrupts_reach_tests_of_a_run_in_the_background(jobs: str) -> None:
    chosen = f"{HERE}::{test_interrupts_reach_a_test_and_its_processes.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses", jobs, chosen]
    ignoring = ["bash", "-c", 'trap "" INT; exec "$@"', "bash", *command]
    done = subprocess.run(ignoring, cwd=HERE.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


PYTHON = """#!/bin/sh
case "$2" in pip | compileall) exit 0 ;; esac
exec {} "$@"
"""
TESTS = """import pytest
def test_always(): pass
@pytest.mark.rest
def test_of_the_rest(): pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with two tests of its own, and an environment that installs nothing."""
    for name in ("pyproject.toml", "tests/run", "tests/conftest.py", "tests/support"):
        source, copy = HERE.parents[2] / name, tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
    python = tmp_path / "environment" / "bin" / "python"
    for path, text in ((python, PYTHON.format(sys.executable)), (tmp_path / "tests/core/test_own.py", TESTS)):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    python.chmod(0o755)
    return tmp_path


def test_the_rest_of_the_tests_leaves_out_what_passed(checkout: Path) -> None:
    settings = {"PYTHON": sys.executable, "TESTS_VENV": str(checkout / "environment"), "TESTS_JOBS": "0"}
    said = []
    for arguments in ([], ["--rest"], [], ["--all"]):
        command = ["bash", str(checkout / "tests" / "run"), *arguments]
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout.splitlines()[-1].strip("= ").rpartition(" in ")[0])
    first = "1 passed, 1 deselected"
    assert said == [first, first, first, "2 passed"]
