"""The measuring process: start, requests, and end in all cases."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from hatch_lower.cli.measure.command import started
from hatch_lower.cli.measure.figures import thread_variables
from hatch_lower.errors import ProcessError, error_from_json

CHILD_ERROR_LINES = 20


class RefusedError(Exception):
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
            raise RefusedError(answer["refused"])
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
