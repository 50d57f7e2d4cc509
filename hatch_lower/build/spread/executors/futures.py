"""Futures of engines as futures of a pool."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any

from hatch_lower.build.spread.pool import Reply


def reply_future(
    future: Future[Any], explain: Callable[[BaseException], BaseException], known: Callable[[Any], Reply] = Reply._make
) -> Future[Reply]:
    """Return a future of what has come back.

    Args:
        future: the engine's.
        explain: returns the exception that a pool's future has for one of the engine's.
        known: makes a reply of the result.
    """
    reply: Future[Reply] = Future()

    def take(done: Future[Any]) -> None:
        try:
            error = CancelledError() if done.cancelled() else done.exception()
            value = None if error is not None else known(done.result())
        except Exception as damage:  # a worker that returns something else than it was asked for
            error, value = damage, None
        with suppress(InvalidStateError):  # cancelled here meanwhile
            if error is not None:
                reply.set_exception(explain(error))
            elif value is not None:
                reply.set_result(value)

    future.add_done_callback(take)
    return reply
