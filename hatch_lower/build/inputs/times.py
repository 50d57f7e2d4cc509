"""Who asks for the time of a file: `os.stat` and its kin are asked by everyone who wants to know what is at a path.

A call counts if it is made by other code than the standard library's, or through a function of the standard library
that gives times: `os.stat(path)` and `os.path.getmtime(path)` count, `os.path.exists(path)` does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from hatch_lower.build.inputs.readers import Exchanged, exchange
from hatch_lower.build.inputs.roots import OWN_PACKAGE, SITE_NAMES, standard_library

GETTERS = frozenset({"getctime", "getmtime", "lstat", "stat"})
"""Functions of the standard library from which whoever calls them gets times: of `os.path`, and methods of `Path`."""
PATHS = "pathlib"
"""The module whose other methods call `Path.stat` to see what is there."""
COMPARES_TIMES = "filecmp.py"
FROZEN = "<frozen "
LIBRARY = tuple(f"{folder}/" for folder in standard_library())


def wrap_times(exchanged: Exchanged, note: Callable[[Any], None]) -> None:
    """Watch the calls of `os.stat`, `os.lstat` and `os.fstat` that get times."""
    for name in ("stat", "lstat", "fstat"):
        exchange(exchanged, name, lambda original: timing_function(original, note, asks_for_times))


def wrap_scans(exchanged: Exchanged, note: Callable[[Any], None]) -> None:
    """Watch the calls of `os.scandir` by others than the standard library: the entries have a `stat` of their own."""
    exchange(exchanged, "scandir", lambda original: timing_function(original, note, is_called_by_others))


def timing_function(original: Any, note: Callable[[Any], None], counts: Callable[[FrameType], bool]) -> Any:
    """Return a stand-in for a function that is given a path or a descriptor first."""

    def timing(*arguments: Any, **named: Any) -> Any:
        if counts(sys._getframe(1)):
            path = next(iter((*arguments, *named.values())), ".")
            folder = named.get("dir_fd")
            note(path if folder is None else os.path.join(f"/proc/self/fd/{folder}", path))
        return original(*arguments, **named)

    timing.__name__ = timing.__qualname__ = original.__name__
    timing.__doc__ = original.__doc__
    return timing


def asks_for_times(frame: FrameType) -> bool:
    """Return whether a call from this frame gets the time of a file for code that wants it."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_name in GETTERS and is_library(caller.f_code.co_filename):
        caller = caller.f_back
    if caller is None:
        return True
    file = caller.f_code.co_filename
    if not is_library(file):
        return is_called_by_others(caller)
    return PATHS not in file if caller is not frame else file.endswith(COMPARES_TIMES)


def is_called_by_others(frame: FrameType) -> bool:
    """Return whether a frame is neither of the standard library nor of this package."""
    file = frame.f_code.co_filename
    return not is_library(file) and not file.startswith(f"{OWN_PACKAGE}/")


def is_library(file: str) -> bool:
    """Return whether a source file is the standard library's."""
    if file.startswith(FROZEN):
        return True
    root = next((root for root in LIBRARY if file.startswith(root)), None)
    return root is not None and file[len(root) :].partition("/")[0] not in SITE_NAMES
