"""Executors of jobs, such as submitit's for Slurm: what they return is asked whether it is done, and calls nobody."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from typing import Any

from hatch_lower.build.spread.pool import LostWorkerError

ASK_SECONDS = 0.2  # between two rounds of asking
END_SECONDS = 5.0


class JobExecutor(Executor):
    """Makes an executor of Python's of an object whose `submit` returns jobs with `done`, `result` and `cancel`."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs
        self._running: dict[Future[Any], Any] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="jobs", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        job = self._jobs.submit(function, *arguments, **named)
        future: Future[Any] = Future()
        self._running[future] = job
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop asking; jobs that run are cancelled, and have a moment to end."""
        self._closed.set()
        self._thread.join()
        for job in self._running.values():
            with contextlib.suppress(Exception):  # it may be over
                job.cancel()
        deadline = time.monotonic() + END_SECONDS
        with contextlib.suppress(Exception):
            while time.monotonic() < deadline and not all(job.done() for job in self._running.values()):
                time.sleep(ASK_SECONDS)

    def _ask(self) -> None:
        while not self._closed.wait(ASK_SECONDS):
            for future, job in self._running.copy().items():
                if is_settled(future, job):
                    del self._running[future]


def is_settled(future: Future[Any], job: Any) -> bool:
    """Give a future what its job came to, if that is over."""
    if future.cancelled():
        with contextlib.suppress(Exception):
            job.cancel()
        return True
    try:
        if not job.done():
            return False
        result = job.result()
    except Exception as error:
        with contextlib.suppress(InvalidStateError):  # it was cancelled meanwhile
            future.set_exception(reason_of(str(error)))
    else:
        with contextlib.suppress(InvalidStateError):
            future.set_result(result)
    return True


def reason_of(text: str) -> Exception:
    """Return what a job's error means: what its function raised, of which it has the traceback, or that it is lost."""
    head, traced, frames = text.partition("Traceback (most recent call last)")
    if not traced:
        return LostWorkerError(head.strip().partition("\n")[0])
    raised = (line for line in frames.splitlines()[1:] if line and not line[0].isspace())
    return RuntimeError(next(raised, "it does not say what"))
