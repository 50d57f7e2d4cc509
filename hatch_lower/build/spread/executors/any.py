"""Any `concurrent.futures.Executor`, which a function of the user's returns.

Such executors cannot end what runs. So a unit is given the path of a file which is there while the build is: a worker
that has once seen the file ends as soon as it is gone, or nobody holds it. Where workers do not share the file system,
what runs when a build is cancelled is finished and thrown away.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from pathlib import Path
from typing import Any

from hatch_lower.build.spread.executors.jobs import JobExecutor
from hatch_lower.build.spread.pool import LostConnectionError, NoWorkerError, Reply, RunUnit, Shared, reply_future
from hatch_lower.cache.locks import make_held
from hatch_lower.errors import ExecutorError

if sys.platform != "win32":
    import fcntl

MOST_AVOIDED = 8  # workers that may refuse a unit: nobody knows how many there are


def open_any(name: str, work: Path, where: str, run_unit: RunUnit) -> AnyPool:
    module, _, attributes = name.partition(":")
    try:
        factory: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            factory = getattr(factory, attribute)
    except (ImportError, AttributeError) as error:
        raise ExecutorError(
            f"the factory of the executor `{name}` cannot be imported",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="name a module that can be imported where the build runs, and a function in it; a build in an isolated"
            " environment needs its distribution in `build-system.requires`",
        ) from error
    try:
        executor = factory()
    except Exception as error:
        raise ExecutorError(
            f"the factory of the executor `{name}` failed",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="it is called without arguments",
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

    def submit(self, request: bytes, attachments: Sequence[bytes | Shared], avoid: frozenset[str]) -> Future[Reply]:
        size = self.size()
        if len(avoid) >= (MOST_AVOIDED if size is None else min(size, MOST_AVOIDED)):
            raise NoWorkerError
        given = [each.data if isinstance(each, Shared) else each for each in attachments]
        try:
            future = self._executor.submit(run_anywhere, self._run_unit, str(self._wanted), request, *given)
        except (BrokenExecutor, RuntimeError) as error:
            raise LostConnectionError(str(error)) from error
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return reply_future(future, explain)

    def size(self) -> int | None:
        """Return what executors of Python, and those made like them, have as an attribute."""
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


def explain(error: BaseException) -> BaseException:
    if isinstance(error, BrokenExecutor):
        return LostConnectionError(str(error))
    if isinstance(error, CancelledError):
        return LostConnectionError("the executor cancelled a unit")
    return error


def run_anywhere(run_unit: RunUnit, wanted: str, request: bytes, *attachments: bytes) -> tuple[str, bytes]:
    name = f"{socket.gethostname()}:{os.getpid()}"
    return name, run_unit(request, *attachments, still_wanted=watch_file(Path(wanted)), worker=name)


def watch_file(path: Path) -> Callable[[], bool]:
    """Return what says whether somebody still holds a file, if that can be seen from here."""
    if sys.platform == "win32" or not path.exists() or not is_held(path):
        return lambda: True
    return lambda: is_held(path)


def is_held(path: Path) -> bool:
    if sys.platform == "win32":
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
