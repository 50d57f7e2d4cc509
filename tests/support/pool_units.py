"""What workers do in tests of executors: a request says how long it takes, and how it ends."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any


class UnreadableError(Exception):
    """An exception that is pickled and cannot be unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return int, ("no number",)


class HeldError(Exception):
    """An exception that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


class Unreadable:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return int, ("no number",)


RAISED: Mapping[str, Callable[[], BaseException]] = {
    "unreadable": UnreadableError,
    "held": HeldError,
    "end": SystemExit,
    "cancelled": CancelledError,
    "system": lambda: OSError(28, "No space left on device"),
}
RETURNED: Mapping[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "text": lambda: "made",
    "held": threading.Lock,
    "unreadable": Unreadable,
}


def run_unit(
    request: bytes, snapshot: bytes = b"", still_wanted: Callable[[], bool] = lambda: True, worker: str = ""
) -> bytes:
    asked = json.loads(request)
    note = Path(asked["note"]) if "note" in asked else None
    if note is not None:
        note.write_text(f"{os.getpid()}")
    try:
        until = time.monotonic() + asked.get("seconds", 0.0)
        while time.monotonic() < until:
            if not still_wanted():
                raise RuntimeError("cancelled")
            time.sleep(0.05)
    except BaseException:
        if note is not None:
            note.write_text("cancelled")
        raise
    if "missing" in asked:
        raise ModuleNotFoundError("No module named 'hatch_lower.driver.spread'")
    if "exit" in asked:
        os._exit(1)
    if "raises" in asked:
        raise RAISED[asked["raises"]]()
    if "returns" in asked:
        return RETURNED[asked["returns"]]()  # type: ignore[no-any-return]  # a worker that is none of ours
    return json.dumps([asked.get("answer", "made"), len(snapshot)]).encode()


def make_request(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def two_processes() -> object:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


def jobs() -> object:
    import submitit

    return submitit.LocalExecutor(folder=os.environ["JOBS_FOLDER"])


def no_executor() -> object:
    return {}


def failing() -> object:
    raise OSError("no cluster today")
