"""Commands of a benchmark, each in its own process group, which ends with the block that waits for the command."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hatch_lower.driver.process import ended_within, is_over, signal_group
from hatch_lower.driver.signals import undisturbed
from hatch_lower.errors import ProcessError

Tell = Callable[[str], None]  # receives progress, a line at a time

GRACE_SECONDS = 10.0  # seconds for an interrupted command to clean up
LAST_LINES = 40
LAST_BYTES = 1 << 20


def run_command(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], tell: Tell | None = None
) -> tuple[int, list[str]]:
    """Run a command to its end; return its status and the lines of both its outputs, of which `tell` hears at once."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = started(command, "a command", cwd=folder, env=dict(environment), **pipes)
    lines = []
    try:
        assert process.stdout is not None
        with process.stdout:
            for data in process.stdout:
                lines.append(data.decode("utf-8", "replace").rstrip())
                if tell is not None:
                    tell(lines[-1])
        ended_within(process, math.inf)  # the command has closed its outputs, usually by ending
    finally:
        with undisturbed():
            end(process)
    return process.returncode, lines


def started(command: Sequence[str], noun: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in its own group, so that the whole group can be ended; `noun` names the process in errors."""
    try:
        return subprocess.Popen(command, start_new_session=True, **options)
    except OSError as error:
        raise ProcessError(
            f"{noun} could not be started",
            where=f"`{command[0]}`",
            found=f"{type(error).__name__}: {error}",
            hint="end other programs, or raise the limits of memory and processes that this runs under",
        ) from error


def run_limited(
    command: Sequence[str],
    noun: str,
    folder: Path | None,
    environment: Mapping[str, str],
    seconds: float,
    lines: BinaryIO | None = None,
) -> tuple[int | None, str]:
    """Run a command with a time limit; return its status (`None` after the limit) and the end of its output.

    The returned output excludes standard output if there is a file of `lines` for standard output.
    """
    # a file, because a pipe stays open as long as any started process
    with tempfile.TemporaryFile() as output:
        process = started(
            command,
            noun,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,  # closed when this process ends, so that a child that reads from stdin ends, too
            stdout=lines or output,
            stderr=output,
        )
        try:
            in_time = ended_within(process, seconds)
        finally:
            kill_group(process)
            assert process.stdin is not None
            process.stdin.close()
        output.seek(max(output.seek(0, os.SEEK_END) - LAST_BYTES, 0))
        return process.returncode if in_time else None, output.read().decode("utf-8", "replace")


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process group as Ctrl-C does, so that a build removes temporary files; then kill the rest."""
    if not is_over(process):
        signal_group(process, signal.SIGINT)
    ended_within(process, GRACE_SECONDS)
    kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    signal_group(process, signal.SIGKILL)
    process.wait()


def last_lines(lines: Sequence[str]) -> str:
    return "\n".join(lines[-LAST_LINES:])
