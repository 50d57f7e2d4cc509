"""Reads of the clock and of the system's random numbers: no inputs, for they are never again what they were.

A model that is made from them is another one in each export, and the same again while its export is not needed. Most
who ask for the time print it, so nothing follows from it but a line of the build.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from hatch_lower.build.inputs.readers import Exchanged

CLOCKS = ("time", "time_ns", "localtime", "gmtime", "ctime")
RANDOM: tuple[tuple[ModuleType, str], ...] = ((os, "urandom"), (os, "getrandom"), (random, "_urandom"))
BETWEEN = frozenset({"random", "secrets", "uuid"})
"""Modules that ask the system for random numbers on behalf of others; NumPy's generators without a seed do so too."""


def wrap_clocks(exchanged: Exchanged, note: Callable[[FrameType, str], None]) -> None:
    """Watch the functions of Python that ask for the time or for random numbers of the system.

    Args:
        exchanged: to put them back.
        note: is told the frame that asked, and what for.
    """
    for name in CLOCKS:
        exchanged.put(time, name, lambda original: noting(original, note))
    for owner, name in RANDOM:
        exchanged.put(owner, name, lambda original: noting(original, note, "random numbers of the system"))


def noting(original: Any, note: Callable[[FrameType, str], None], what: str = "") -> Any:
    """Return a stand-in for a function that tells who calls it, and what for.

    Args:
        original: the function.
        note: is told.
        what: it gives; empty for a clock, which gives the time unless it has an argument.
    """

    def stand_in(*arguments: Any) -> Any:
        if what or not arguments:
            frame = sys._getframe(1)
            while frame.f_globals.get("__name__") in BETWEEN and frame.f_back is not None:
                frame = frame.f_back
            note(frame, what or f"time.{original.__name__}")
        return original(*arguments)

    stand_in.__name__ = stand_in.__qualname__ = original.__name__
    stand_in.__doc__ = original.__doc__
    stand_in._torchdynamo_disable = True  # type: ignore[attr-defined]  # dynamo says that it cannot follow a clock
    return stand_in
