"""A library that notes when its kernels begin, compiled with the backend's option `timers`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hatch_lower.backends.aoti.run import AotiDelegate, bind_library
from hatch_lower.backends.call_map import CallMap
from hatch_lower.backends.instructions import added
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.timing import Run, TimedDelegate

MOST = 1 << 20  # numbers noted per run; a loop may have many


class TimedAotiDelegate(AotiDelegate, TimedDelegate):
    def __init__(self, runner: Any, constants: Sequence[Tensor], call: CallMap, library: ctypes.CDLL) -> None:
        super().__init__(runner, constants, call)
        self._library = library
        library.hatch_lower_kernels.restype = ctypes.c_char_p
        library.hatch_lower_take.restype = ctypes.c_int64
        self._names = library.hatch_lower_kernels().decode().split("\n")
        self._marks = (ctypes.c_int64 * MOST)()
        self._runs: list[Sequence[int]] = []

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        # equal partitions have one library, whose notes belong to the delegate that runs
        self._library.hatch_lower_note(1)
        try:
            return super().run(inputs)
        finally:
            self._library.hatch_lower_note(0)
            count = self._library.hatch_lower_take(self._marks, ctypes.c_int64(MOST))
            self._runs.append(self._marks[: min(count, MOST)])

    def forget_runs(self) -> None:
        self._runs.clear()

    def take_runs(self) -> Sequence[Run]:
        return [run_of(marks, self._names) for marks in self._runs]


def load_timed(blob: DelegateBlob, constants: Sequence[Tensor]) -> AotiDelegate:
    bound = bind_library(blob, constants)
    if not blob.info.get("timers"):
        return AotiDelegate(*bound)
    return TimedAotiDelegate(*bound, ctypes.CDLL(str(blob.path)))


def run_of(marks: Sequence[int], names: Sequence[str]) -> Run:
    """Return a run of a library's marks, numbers and nanoseconds in turns; a kernel runs until the next begins."""
    places = range(0, len(marks) - 2, 2)
    return added(((names[marks[place]],), marks[place + 3] - marks[place + 1]) for place in places)
