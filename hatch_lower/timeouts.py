"""Calls with a limit of time, for libraries without such a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Result = TypeVar("Result")


def call_within(seconds: float, call: Callable[[], Result], late: Exception) -> Result:
    """Return the result of a call; after `seconds` raise `late`, go on in a thread, and close the result."""
    # Sockets limit the silence of a peer but not the time of an answer: a server may send a header byte by byte. Name
    # servers and the libraries of object stores have no limits that could be set.
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([future], max(seconds, 0)).done:
        future.add_done_callback(close_result)
        raise late
    return future.result()


def close_result(future: Future[Result]) -> None:
    if future.exception() is None and (close := getattr(future.result(), "close", None)) is not None:
        close()
