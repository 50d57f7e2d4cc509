"""Timed calls: the start of each instruction of a plan, and measurements by the engines.

The code of a program contains timing only if loaded with a `Timing`.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hatch_lower.format.graph import Instruction
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.names import CodeNames

__all__ = ["Clock", "Run", "TimedDelegate", "Timing"]

# Nanoseconds of the instructions of a delegate's run, in order, by ids of the debug map. A key has several ids if the
# engine fuses instructions and cannot time each.
Run = Mapping[tuple[str, ...], float]

REST = -1  # number for the time before the first instruction, and for the return
RESULTS = -2  # number for the time after the last instruction: copies of results, writes of state


class TimedDelegate(Delegate):
    """A loaded blob that measures its instructions."""

    @abstractmethod
    def forget_runs(self) -> None:
        """Forget the runs until now, which were a warm-up. Called at most once."""

    @abstractmethod
    def take_runs(self) -> Sequence[Run]:
        """Return all runs that were not forgotten. Called once, after the last run.

        If an engine knows only the mean over several runs, every run has the mean.
        """


class Clock:
    """Recorder of the start of each instruction of a method; an instruction ends where the next begins."""

    def __init__(self) -> None:
        self.instructions: list[tuple[str, Instruction]] = []  # by number: path in the debug map, and instruction
        self._marks: list[int] = []  # a number, nanoseconds, a number, …

    def beginning(self, path: str, instruction: Instruction, names: CodeNames, now: Callable[[], int]) -> str:
        self.instructions.append((path, instruction))
        return self._line(len(self.instructions) - 1, names, now)

    def ending(self, names: CodeNames, now: Callable[[], int]) -> str:
        return self._line(RESULTS, names, now)

    def _line(self, number: int, names: CodeNames, clock: Callable[[], int]) -> str:
        # two integers instead of a tuple, which the garbage collector would track
        mark, now = names.bind("mark", self._marks.append, "mark"), names.bind("now", clock, "now")
        return f"{mark}({number}); {mark}({now}())"

    def take(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield numbers and nanoseconds of the instructions since the last call, in order.

        The nanoseconds add up to the time from `begin` to `end`.
        """
        marks = [REST, begin, *self._marks, REST, end]
        self._marks.clear()
        for place in range(0, len(marks) - 2, 2):
            yield marks[place], marks[place + 3] - marks[place + 1]

    def forget(self) -> None:
        self._marks.clear()

    def take_run(self, begin: int, end: int) -> Run:
        """Return the instructions since the last call of this method or `take`, in the form of a delegate's run."""
        found: dict[tuple[str, ...], float] = {}
        for number, nanoseconds in self.take(begin, end):
            if number >= 0:
                key = (self.instructions[number][0],)
                found[key] = found.get(key, 0) + nanoseconds
        return found


class Timing:
    def __init__(self) -> None:
        self.clocks: dict[str, Clock] = {}  # of each method
        self.delegates: dict[int, Delegate] = {}  # by their index in the plan
        self._runs: dict[int, list[Run]] = {}

    def clock(self, method: str) -> Clock:
        return self.clocks.setdefault(method, Clock())

    def load(self, index: int, kind: type[Delegate], blob: DelegateBlob, constants: Sequence[Any]) -> Delegate:
        self._collect(index)  # the runs of the delegate that is replaced
        module, _, name = kind.timed.partition(":")
        load = getattr(importlib.import_module(module), name) if module else kind.load
        loaded: Delegate = load(blob, constants)
        self.delegates[index] = loaded
        return loaded

    def forget_runs(self) -> None:
        self._runs.clear()
        for clock in self.clocks.values():
            clock.forget()
        for delegate in self.delegates.values():
            if isinstance(delegate, TimedDelegate):
                delegate.forget_runs()

    def take_runs(self, index: int) -> Sequence[Run]:
        """Return the runs of a delegate, empty if the delegate does not measure. Called after the last run."""
        self._collect(index)
        return self._runs.pop(index, [])

    def _collect(self, index: int) -> None:
        delegate = self.delegates.get(index)
        if isinstance(delegate, TimedDelegate):
            self._runs.setdefault(index, []).extend(delegate.take_runs())
