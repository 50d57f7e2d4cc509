"""Builds that a test interrupts: started in a process group of their own, and found by their environment."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.scenarios import Project
from support.venv import child_environment

PATIENCE = 120.0


def start(project: Project, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a build as the leader of a new process group, which is what a shell does."""
    return subprocess.Popen(
        [str(word) for word in project.command()],
        cwd=project.root,
        env=child_environment(project.environment(variables)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], what: str, process: subprocess.Popen[str] | None = None) -> None:
    """Wait until something holds, or fail."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None:
            pytest.fail(f"the build ended before {what}:\n{process.communicate()}")
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def with_variable(name: str, value: str) -> list[int]:
    """Return the processes that were started with a variable."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{name}={value}".encode() in variables:
            found.append(int(folder.name))
    return found


def workers(processes: list[int]) -> list[int]:
    """Return those of some processes that export models."""
    found = []
    for pid in processes:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"hatch_lower.driver.worker" in words:
            found.append(pid)
    return found
