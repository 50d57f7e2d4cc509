"""Signals that end a build or a benchmark: temporary files, child processes and remote tasks are removed first."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A CI job is cancelled with SIGTERM; with SIGHUP a terminal or a connection goes away. Windows has no SIGHUP.
ENDED_BY = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if name in signal.Signals.__members__)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn signals that end this process into an exception, so that open contexts are closed."""
    # an outer block handles signals already, or the caller has its own handlers: `nohup` ignores SIGHUP
    usual = [each for each in ENDED_BY if in_main_thread() and signal.getsignal(each) is signal.SIG_DFL]
    for each in usual:
        signal.signal(each, lambda number, frame: sys.exit(128 + number))  # the exit status that shells report
    try:
        yield
    finally:
        for each in usual:
            signal.signal(each, signal.SIG_DFL)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Block interrupts while a cleanup runs: a second Ctrl-C would leave files behind."""
    if not in_main_thread():  # signals arrive in the main thread
        yield
        return
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, *ENDED_BY)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
