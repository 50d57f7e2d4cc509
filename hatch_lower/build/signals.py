"""Signals that end a build or a benchmark: what it has made, started or asked for goes before it does."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM, with which a CI job is cancelled, end this process as an exception does: whatever is open closes."""
    if not in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # an outer block has done it, or the program that called this has its own way
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the status that shells say
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let nobody interrupt a block that removes what was made: a second Ctrl-C would leave it behind."""
    if not in_main_thread():  # signals arrive in the main thread
        yield
        return
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
