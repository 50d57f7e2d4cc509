"""Commands that a benchmark runs: their status, output, interruption and leftover processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from support.processes import is_running, wait_for

from hatch_lower.cli.measure import command
from hatch_lower.cli.measure.command import run_command
from hatch_lower.errors import ProcessError

pytestmark = pytest.mark.processes


def test_a_command_gives_its_status_and_all_that_it_prints(tmp_path: Path) -> None:
    told: list[str] = []
    code = "import os, sys; print(os.getcwd()); print(os.environ['NAME'], file=sys.stderr); sys.exit(3)"
    environment = {**os.environ, "NAME": "ä", "PYTHONUTF8": "1"}
    status, lines = run_command([sys.executable, "-u", "-c", code], tmp_path, environment, told.append)
    assert (status, lines) == (3, [str(tmp_path), "ä"])
    assert told == lines


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="a command could not be started") as caught:
        run_command([str(tmp_path / "nothing")], tmp_path, os.environ, lambda line: None)
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
    status, (line,) = run_command([sys.executable, "-c", code], tmp_path, os.environ, lambda line: None)
    assert status == 0
    wait_for(lambda: not is_running(int(line)), "its child to end")
