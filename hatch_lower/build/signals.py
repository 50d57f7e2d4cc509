"""Signals that end a build or a benchmark: what it has made, started or asked for goes before it does."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A CI job is cancelled with SIGTERM; with SIGHUP a terminal or a connection goes away. Windows has no SIGHUP.
ENDING = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if name in signal.Signals.__members__)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let signals that end this process end it as an exception does: whatever is open closes."""
    # an outer block has done it, or the program that called this has its own way: `nohup` ignores SIGHUP
    usual = [each for each in ENDING if in_main_thread() and signal.getsignal(each) is signal.SIG_DFL]
    for each in usual:
        signal.signal(each, lambda number, frame: sys.exit(128 + number))  # the status that shells say
    try:
        yield
    finally:
        for each in usual:
            signal.signal(each, signal.SIG_DFL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let nobody interrupt a block that removes what was made: a second Ctrl-C would leave it behind."""
    if not in_main_thread():  # signals arrive in the main thread
        yield
        return
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, *ENDING)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
