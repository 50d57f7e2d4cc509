"""Dask: a scheduler at an address, or a cluster for this build alone.

The snapshot for all units is a task of its own, not scattered data: Dask repeats the task where a worker is lost.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import distributed

from hatch_lower.driver.spread.pool import (
    LostConnectionError,
    LostWorkerError,
    NoWorkerError,
    Reply,
    RunUnit,
    UnreadableError,
    reply_future,
)
from hatch_lower.errors import ExecutorError

CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 5.0
LOGS = ("distributed", "distributed.client")
# A worker that cannot unpickle a task ends, and Dask waits for another worker. So the task holds objects of Python
# alone, and a worker without hatch-lower, or with an older version, answers with an exception. Dask waits for ever for
# a result that cannot be pickled there or unpickled here. So a malformed answer is sent as an empty answer.
TASK = (
    "(lambda name, data: (f'{name}', data if type(data) is bytes else b''))"
    f"(*__import__('importlib').import_module({__name__!r}).run_on_dask(function, request, snapshot, avoid))"
)


def open_pool(address: str, jobs: int, where: str, run_unit: RunUnit) -> DaskPool:
    """Connect to a scheduler: at the address, or at the address in Dask's configuration, or of a new cluster."""
    import dask

    address = address or dask.config.get("scheduler-address", "") or ""
    with contextlib.ExitStack() as opened:
        opened.enter_context(dask_silenced())
        try:
            cluster = None
            if not address:
                options = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
                cluster = call_unwarned(distributed.LocalCluster, processes=True, **options)
                opened.callback(close_quietly, cluster)
            options = {"timeout": CONNECT_SECONDS, "set_as_default": False}
            client = call_unwarned(distributed.Client, cluster or address, **options)
            opened.callback(close_quietly, client)
            return DaskPool(run_unit, client, opened.pop_all())
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            raise ExecutorError(
                "the scheduler of Dask cannot be reached" if address else "a cluster of Dask cannot be started",
                where=where,
                found=f"{address}: {error}" if address else f"{type(error).__name__}: {error}",
                hint='name the address that the scheduler prints when it starts: "dask:tcp://host:8786"',
            ) from error


@contextlib.contextmanager
def dask_silenced() -> Iterator[None]:
    """Silence Dask's log about events that the build handles itself."""
    before = {log: log.level for log in map(logging.getLogger, LOGS)}
    for log in before:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in before.items():
            log.setLevel(level)


def call_unwarned(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*arguments, **options)


def close_quietly(opened: Any) -> None:
    with contextlib.suppress(Exception):
        call_unwarned(opened.close, timeout=CLOSE_SECONDS)


class DaskPool:
    """A client; `opened` is closed with it."""

    def __init__(self, run_unit: RunUnit, client: Any, opened: contextlib.ExitStack) -> None:
        self._run_unit = run_unit
        self._client = client
        self._opened = opened
        self._executor = client.get_executor(pure=False, retries=0)
        self._share = functools.cache(lambda snapshot: call_unwarned(client.submit, bytes, snapshot, pure=False))
        self._running: set[Future[Any]] = set()

    def submit(self, request: bytes, snapshot: bytes, avoid: frozenset[str]) -> Future[Reply]:
        workers = self._workers() if avoid else {}
        allowed = sorted(workers.keys() - avoid)
        if workers and not allowed:
            raise NoWorkerError
        with self._connected():
            # if all allowed workers are gone when the unit's turn comes, Dask takes any worker
            options = {"workers": allowed, "allow_other_workers": True} if allowed else {}
            names = {"function": task_name(self._run_unit), "request": request, "snapshot": self._share(snapshot)}
            names["avoid"] = avoid if allowed else frozenset()
            # Dask warns of large arguments
            future = call_unwarned(self._executor.submit, eval, TASK, names, **options)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return reply_future(future, self._explain)

    def size(self) -> int:
        return sum(self._workers().values())

    def close(self, *, cancel: bool) -> None:
        with contextlib.suppress(Exception):
            if cancel:
                for future in list(self._running):
                    future.cancel()
            self._share.cache_clear()
        self._opened.close()

    def _workers(self) -> dict[str, int]:
        """Return the number of threads by worker."""
        with self._connected():
            return dict(self._client.nthreads())

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        if self._client.status != "running":
            raise LostConnectionError("its scheduler does not answer")
        try:
            yield
        except (OSError, RuntimeError) as error:
            raise LostConnectionError(str(error)) from error

    def _explain(self, error: BaseException) -> BaseException:
        if isinstance(error, distributed.KilledWorker):
            worker = getattr(error.last_worker, "address", "")
            times = int(getattr(error, "allowed_failures", 0)) + 1
            # Dask also counts workers that had the unit only in their queue
            return LostWorkerError(f"{times} workers that had it ended", worker, 2)
        if isinstance(error, CancelledError | OSError):
            if self._client.status != "running":
                return LostConnectionError("its scheduler does not answer")
            lost = "its task was cancelled" if isinstance(error, CancelledError) else f"{type(error).__name__}: {error}"
            return LostWorkerError(lost)
        if error.args and isinstance(error.args[0], bytes):  # a pickled exception
            return UnreadableError("an exception of a class that is not here")
        return error


def task_name(run_unit: Any) -> str:
    return f"{run_unit.__module__}:{run_unit.__qualname__}"


def run_on_dask(function: str, request: bytes, snapshot: bytes, avoid: frozenset[str]) -> tuple[str, bytes]:
    """Make a unit on a worker; the unit ends when the scheduler drops the task.

    An idle worker steals a queued unit, even a unit that is to avoid the worker. The stolen unit goes back.
    """
    worker = distributed.get_worker()
    if worker.address in avoid and distributed.get_client().nthreads().keys() - avoid:
        raise distributed.Reschedule
    key = worker.get_current_task()
    run_unit: RunUnit = pkgutil.resolve_name(function)

    def still_wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing"

    return worker.address, run_unit(request, snapshot, still_wanted=still_wanted, worker=worker.address)
