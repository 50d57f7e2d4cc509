"""What the scheduler asks of an engine: to run units on workers, one future for each.

An engine's own exceptions end in its module: a future's exception is one of those here, or what the worker raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple, Protocol


class RunUnit(Protocol):
    """What a worker does with a request; its process imports it by its name."""

    def __call__(
        self, request: bytes, *attachments: bytes, still_wanted: Callable[[], bool] = ..., worker: str = ...
    ) -> bytes: ...


class Shared:
    """An attachment that many units have: it is sent to a worker once, and is the same one if it is the same object."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Reply(NamedTuple):
    """What has come back from a worker, and the engine's name of it: the answer itself may be anybody's."""

    worker: str
    data: bytes


class LostWorkerError(Exception):
    """The worker ended before it answered."""

    def __init__(self, reason: str, worker: str = "", times: int = 1) -> None:
        super().__init__(reason)
        self.worker = worker  # empty where the engine does not say
        self.times = times  # workers that were lost: an engine may have tried again by itself


class UnreadableError(Exception):
    """A worker raised or returned what cannot be read here."""


class LostConnectionError(Exception):
    """The engine cannot be reached any more; nothing that runs there will be heard of."""


class NoWorkerError(Exception):
    """Every worker that there is was to be avoided."""


class Pool(Protocol):
    """Workers of an engine.

    A future's exception is a `LostWorkerError`, a `LostConnectionError`, or what the worker raised.
    """

    def submit(self, request: bytes, attachments: Sequence[bytes | Shared], avoid: frozenset[str]) -> Future[Reply]:
        """Run a unit on a worker that is not one of `avoid`, if the engine can choose."""

    def size(self) -> int | None:
        """Return how many units the workers that there are now can run at once; `None` if nobody knows."""

    def close(self, *, cancel: bool) -> None:
        """Let the engine go; with `cancel`, end what runs there."""


def reply_of(result: object) -> Reply:
    """Return what has come back, which may be anything: an answer is bytes, and what is none is empty."""
    worker, data = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
    return Reply(worker if isinstance(worker, str) else "a worker", data if type(data) is bytes else b"")


def reply_future(
    future: Future[Any], explain: Callable[[BaseException], BaseException], known: Callable[[Any], Reply] = reply_of
) -> Future[Reply]:
    """Return a future of what has come back; `explain` gives a pool's exception for the engine's, `known` a reply."""
    reply: Future[Reply] = Future()

    def take(done: Future[Any]) -> None:
        try:
            error = CancelledError() if done.cancelled() else done.exception()
            value = None if error is not None else known(done.result())
        except Exception as damage:
            error, value = damage, None
        with suppress(InvalidStateError):  # cancelled here meanwhile
            if error is not None:
                reply.set_exception(explain(error))
            elif value is not None:
                reply.set_result(value)

    future.add_done_callback(take)
    return reply
