"""The suite itself: what its runs do not inherit from the shell that started them."""

from __future__ import annotations

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
