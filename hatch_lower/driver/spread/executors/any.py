"""Any `concurrent.futures.Executor`, from a function of the user.

These executors cannot end running units. So each unit gets the path of a file that exists, locked, as long as the
build runs: a worker that has seen the file ends the unit as soon as the file is gone or unlocked. Without a common
file system, the running units of a cancelled build are finished, and their answers are dropped.

Executors of jobs, such as submitit's for Slurm, call no callbacks: a thread polls the jobs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pkgutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, InvalidStateError
from pathlib import Path
from typing import Any

from hatch_lower.cache.locks import make_held
from hatch_lower.driver.spread.pool import (
    LostConnectionError,
    LostWorkerError,
    NoWorkerError,
    Reply,
    RunUnit,
    reply_future,
)
from hatch_lower.errors import ExecutorError

MOST_AVOIDED = 8  # refusing workers of a unit: the number of workers is unknown
ASK_SECONDS = 0.2  # between two polls of the jobs
END_SECONDS = 5.0  # the time for cancelled jobs to end


def open_any(name: str, work: Path, where: str, run_unit: RunUnit) -> AnyPool:
    try:
        executor = pkgutil.resolve_name(name)()
    except Exception as error:
        raise ExecutorError(
            f"the executor `{name}` cannot be made",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="name a function without arguments in a module that can be imported where the build runs; an isolated"
            " build needs its distribution in `build-system.requires`",
        ) from error
    if not isinstance(executor, Executor | type) and callable(getattr(executor, "submit", None)):
        executor = JobExecutor(executor)
    if not isinstance(executor, Executor):
        raise ExecutorError(
            f"the factory of the executor `{name}` returned no executor",
            where=where,
            found=f"an object of `{type(executor).__module__}.{type(executor).__qualname__}`",
            hint="it must return a `concurrent.futures.Executor`, or something with its `submit`, such as submitit's",
        )
    return AnyPool(run_unit, executor, work)


class AnyPool:
    def __init__(self, run_unit: RunUnit, executor: Executor, work: Path) -> None:
        self._run_unit = run_unit
        self._executor = executor
        self._running: set[Future[Any]] = set()
        self._wanted = work / f"wanted-{uuid.uuid4().hex}"
        self._held = make_held(self._wanted)

    def submit(self, request: bytes, snapshot: bytes, avoid: frozenset[str]) -> Future[Reply]:
        size = self.size()
        if len(avoid) >= (MOST_AVOIDED if size is None else min(size, MOST_AVOIDED)):
            raise NoWorkerError
        try:
            future = self._executor.submit(run_anywhere, self._run_unit, str(self._wanted), request, snapshot)
        except (BrokenExecutor, RuntimeError) as error:
            raise LostConnectionError(str(error)) from error
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return reply_future(future, executor_error)

    def size(self) -> int | None:
        """Return `_max_workers`, which Python's executors and similar executors have."""
        size = getattr(self._executor, "_max_workers", None)
        return size if isinstance(size, int) and size > 0 else None

    def close(self, *, cancel: bool) -> None:
        with contextlib.suppress(OSError):
            self._wanted.unlink()
        os.close(self._held)
        for future in list(self._running) if cancel else []:
            future.cancel()
        with contextlib.suppress(Exception):
            self._executor.shutdown(wait=not cancel, cancel_futures=cancel)


def executor_error(error: BaseException) -> BaseException:
    if isinstance(error, BrokenExecutor):
        return LostConnectionError(str(error))
    if isinstance(error, CancelledError):
        return LostConnectionError("the executor cancelled a unit")
    return error


def run_anywhere(run_unit: RunUnit, wanted: str, request: bytes, snapshot: bytes) -> tuple[str, bytes]:
    name = f"{socket.gethostname()}:{os.getpid()}"
    return name, run_unit(request, snapshot, still_wanted=watch_file(Path(wanted)), worker=name)


def watch_file(path: Path) -> Callable[[], bool]:
    """Return a function for whether a file is still held by a process, if the file is visible from here."""
    return (lambda: is_held_file(path)) if is_held_file(path) else (lambda: True)


def is_held_file(path: Path) -> bool:
    try:
        file = path.open("rb")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


class JobExecutor(Executor):
    """An executor of Python for an object whose `submit` returns jobs with `done`, `result` and `cancel`."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs
        self._running: dict[Future[Any], Any] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="jobs", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._running[future] = self._jobs.submit(function, *arguments, **named)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the running jobs, and give them a moment to end."""
        self._closed.set()
        self._thread.join()
        deadline = time.monotonic() + END_SECONDS
        for job in self._running.values():
            with contextlib.suppress(Exception):  # the job may be over
                job.cancel()
        with contextlib.suppress(Exception):
            while time.monotonic() < deadline and not all(job.done() for job in self._running.values()):
                time.sleep(ASK_SECONDS)

    def _ask(self) -> None:
        while not self._closed.wait(ASK_SECONDS):
            for future, job in self._running.copy().items():
                if settle_future(future, job):
                    del self._running[future]


def settle_future(future: Future[Any], job: Any) -> bool:
    """If a job is over, set its future; return whether the job is over."""
    with contextlib.suppress(InvalidStateError):  # the future was cancelled meanwhile
        try:
            if not job.done():
                return False
            future.set_result(job.result())
        except Exception as error:
            future.set_exception(job_error(str(error)))
    return True


def job_error(text: str) -> Exception:
    """Return the exception of a failed job: its function's exception, read from the traceback, or a lost worker."""
    head, traced, frames = text.partition("Traceback (most recent call last)")
    if not traced:
        return LostWorkerError(head.strip().partition("\n")[0])
    raised = (line for line in frames.splitlines()[1:] if line and not line[0].isspace())
    return RuntimeError(next(raised, "an unknown exception"))
