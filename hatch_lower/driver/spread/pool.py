"""The scheduler's view of an engine: workers that run units, and a future for each submitted unit.

An engine's own exceptions end in its module. A future's exception is one of the exceptions below, or an exception that
the worker raised.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

# `run_unit`, which a worker calls with a request and its snapshot; the worker's process imports the function by name
RunUnit: TypeAlias = Callable[..., bytes]


@dataclass(frozen=True, slots=True)
class UnitWork:
    """A unit as the scheduler knows it. A build may have thousands."""

    key: str
    name: str
    seconds: float | None = None  # the estimated time; `None` if unknown
    group: str = ""  # a worker that refuses one unit of a group refuses the whole group


class Reply(NamedTuple):
    """A worker's answer in bytes, and the engine's name of the worker. The bytes are not trusted."""

    worker: str
    data: bytes


class LostWorkerError(Exception):
    """The worker ended before it answered."""

    def __init__(self, reason: str, worker: str = "", times: int = 1) -> None:
        super().__init__(reason)
        self.worker = worker  # empty if the engine does not name the worker
        self.times = times  # lost workers: the engine may have retried by itself


class UnreadableError(Exception):
    """A worker raised or returned an object that cannot be unpickled here."""


class LostConnectionError(Exception):
    """The engine cannot be reached any more, and its running units will not answer."""


class NoWorkerError(Exception):
    """All present workers are to be avoided."""


class WorkerPool(Protocol):
    """The workers of an engine."""

    def submit(self, request: bytes, snapshot: bytes, avoid: frozenset[str]) -> Future[Reply]:
        """Run a unit on a worker outside of `avoid`, if the engine can choose; raise `NoWorkerError` without any."""

    def size(self) -> int | None:
        """Return the number of units that the present workers can run at once; `None` if unknown."""

    def close(self, *, cancel: bool) -> None:
        """Release the engine; `cancel` ends the running units."""


def reply_of(result: object) -> Reply:
    """Return a worker's result as a reply. A malformed result becomes an empty answer."""
    worker, data = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
    return Reply(worker if isinstance(worker, str) else "a worker", data if type(data) is bytes else b"")


def reply_future(future: Future[Any], explain: Callable[[BaseException], BaseException]) -> Future[Reply]:
    """Return the future of a reply. `explain` translates the engine's exceptions."""
    reply: Future[Reply] = Future()

    def take(done: Future[Any]) -> None:
        try:
            error = CancelledError() if done.cancelled() else done.exception()
            value = None if error is not None else reply_of(done.result())
        except Exception as damage:
            error, value = damage, None
        with suppress(InvalidStateError):  # the reply was cancelled meanwhile
            if error is not None:
                reply.set_exception(explain(error))
            elif value is not None:
                reply.set_result(value)

    future.add_done_callback(take)
    return reply
