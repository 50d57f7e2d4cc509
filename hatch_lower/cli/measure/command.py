"""Commands and the measuring process (`Host`) of a benchmark, each in a process group, which ends with its block."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from hatch_lower.cli.measure.figures import thread_variables
from hatch_lower.driver.process import ended_within, is_over, reap, signal_group
from hatch_lower.driver.signals import uninterrupted
from hatch_lower.errors import ProcessError, error_from_json

Tell = Callable[[str], None]  # receives progress, a line at a time

GRACE_SECONDS = 10.0  # seconds for an interrupted command to clean up
LAST_BYTES = 1 << 20


def run_command(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], tell: Tell
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
                tell(lines[-1])
        ended_within(process, math.inf)  # the command has closed its outputs, usually by ending
    finally:
        with uninterrupted():
            end_command(process)
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
            reap(process)
            assert process.stdin is not None
            process.stdin.close()
        output.seek(max(output.seek(0, os.SEEK_END) - LAST_BYTES, 0))
        return process.returncode if in_time else None, output.read().decode("utf-8", "replace")


def end_command(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process group as Ctrl-C does, so that a build removes temporary files; then kill the rest."""
    if not is_over(process):
        signal_group(process, signal.SIGINT)
    ended_within(process, GRACE_SECONDS)
    reap(process)


CHILD_ERROR_LINES = 20


class RecipeRefusedError(Exception):
    """A recipe needs another machine, or a missing package; the text has the reason."""


class Host(AbstractContextManager["Host"]):
    """A process that measures with a number of threads; a request beyond its time limit ends the process."""

    def __init__(self, threads: int, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        # threads that wait without spinning do not slow down the next side
        variables = {**environment, **thread_variables(threads), "OMP_WAIT_POLICY": "passive"}
        command = [sys.executable, "-m", "hatch_lower.cli.measure.worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        try:
            self._process = started(command, "the process that measures", env=variables, **pipes)
        except ProcessError:
            self._errors.close()
            raise
        self.process_group = self._process.pid

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process_group, signal.SIGKILL)
        with suppress(OSError):  # unwritten requests are lost
            self._process.communicate()
        self._errors.close()

    def ask(self, request: Mapping[str, Any], title: str, limit: float) -> Mapping[str, Any]:
        """Return the answer to a request; end the process after `limit` seconds. `title` is for errors."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._read_line(limit)
        except OSError:  # the process has ended
            line = b""
        if line is None:
            self.close()
            raise ProcessError(
                "a measurement took too long and was ended",
                where=title,
                found=f"no result after {limit:.0f} s",
                hint="the method hangs, or is slower than the time that the table `bench` gives: raise `budget`",
            )
        answer: dict[str, Any] = json.loads(line) if line.strip() else {"ended": self._process.wait()}
        if "ended" in answer:
            raise ProcessError("the measuring process has crashed", where=title, found=self._ending(answer["ended"]))
        if "refused" in answer:
            raise RecipeRefusedError(answer["refused"])
        if "error" in answer:
            error = error_from_json(answer["error"])
            error.where = error.where or title
            raise error
        return answer

    def _read_line(self, limit: float) -> bytes | None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], limit)
        return self._process.stdout.readline() if ready else None

    def _ending(self, code: int) -> str:
        ended = (
            f"the process was ended by signal {-code} ({signal.strsignal(-code)})"
            if code < 0
            else f"exit status {code}"
        )
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()[-CHILD_ERROR_LINES:]
        return "\n".join([ended, *lines])
