"""Commands that a benchmark runs: each in a process group of its own, which ends with the block that waits for it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatch_lower.build.process import is_over
from hatch_lower.build.signals import undisturbed
from hatch_lower.errors import ProcessError

Tell = Callable[[str], None]  # is told what is done, a line at a time

GRACE_SECONDS = 10.0  # how long a command may take to clean up when it is interrupted
TICK_SECONDS = 0.01
LAST_LINES = 40


def run_command(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], tell: Tell | None = None
) -> tuple[int, list[str]]:
    """Run a command to its end; return its status and the lines of both its outputs, of which `tell` hears at once."""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ProcessError(
            "a command could not be started",
            where=f"`{command[0]}`",
            found=f"{type(error).__name__}: {error}",
            hint="end other programs, or raise the limits of memory and processes",
        ) from error
    lines = []
    try:
        assert process.stdout is not None
        with process.stdout:
            for data in process.stdout:
                lines.append(data.decode("utf-8", "replace").rstrip())
                if tell is not None:
                    tell(lines[-1])
        ended_within(process, math.inf)  # it has closed its outputs, as a rule by ending
    finally:
        with undisturbed():
            end(process)
    return process.returncode, lines


def started(command: Sequence[str], what: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, so that all of it can be ended; an error calls it `what`."""
    try:
        return subprocess.Popen(command, start_new_session=True, **options)
    except OSError as error:
        raise ProcessError(
            f"{what} could not be started",
            found=f"{type(error).__name__}: {error}",
            hint="end other programs, or raise the limits of memory and processes that this runs under",
        ) from error


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process group as Ctrl-C does, so that a build removes what it has made, and kill what stays of it."""
    if not is_over(process):
        signal_group(process, signal.SIGINT)
    ended_within(process, GRACE_SECONDS)
    kill_group(process)


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process, and leave it its id, by which what it started can be ended."""
    deadline = time.monotonic() + seconds
    while not is_over(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(TICK_SECONDS)
    return True


def kill_group(process: subprocess.Popen[bytes]) -> None:
    signal_group(process, signal.SIGKILL)
    process.wait()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def last_lines(lines: Sequence[str]) -> str:
    return "\n".join(lines[-LAST_LINES:])
