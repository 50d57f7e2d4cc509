"""Calls that are timed: when each instruction of a plan began, and what the engines measured meanwhile.

Only a program that is loaded with a `Timing` has any of this in its code.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

from hatch_lower.format.graph import Instruction
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.names import Names

__all__ = ["Clock", "Run", "TimedDelegate", "Timing"]

# Nanoseconds of the instructions of one run of a delegate, in order. An instruction is named by its id in the debug
# map; by several where the engine computes them as one, of which it knows no more.
Run = Mapping[tuple[str, ...], float]

REST = -1  # the number of what is before the first instruction, and of the return
RESULTS = -2  # of what is behind the last: copies of results, and state that is written


class TimedDelegate(Delegate):
    """A loaded blob that measures its instructions."""

    @abstractmethod
    def forget_runs(self) -> None:
        """Forget the runs until now, which were to warm up; it is called once at most."""

    @abstractmethod
    def take_runs(self) -> Sequence[Run]:
        """Return all runs that were not forgotten; it is called once, and none comes after it.

        Where an engine knows the mean of several runs only, it is that of each of them.
        """


class Clock:
    """Notes when the instructions of one method begin; one runs until the next one begins."""

    def __init__(self) -> None:
        self.instructions: list[tuple[str, Instruction]] = []  # by number: the path in the debug map, and what it is
        self._marks: list[int] = []  # a number, nanoseconds, a number, …

    def beginning(self, path: str, instruction: Instruction, names: Names) -> str:
        self.instructions.append((path, instruction))
        return self._line(len(self.instructions) - 1, names)

    def ending(self, names: Names) -> str:
        return self._line(RESULTS, names)

    def _line(self, number: int, names: Names) -> str:
        # two integers and no tuple: nothing for the garbage collector to look at
        mark, now = names.bind("mark", self._marks.append, "mark"), names.bind("now", perf_counter_ns, "now")
        return f"{mark}({number}); {mark}({now}())"

    def take(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the numbers of what ran since the last call, in order, with nanoseconds; together `begin` to `end`."""
        marks = [REST, begin, *self._marks, REST, end]
        self._marks.clear()
        for place in range(0, len(marks) - 2, 2):
            yield marks[place], marks[place + 3] - marks[place + 1]

    def forget(self) -> None:
        self._marks.clear()

    def take_run(self, begin: int, end: int) -> Run:
        """Return what ran since the last call of this or of `take`, as a delegate tells it."""
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
        self._collect(index)  # of one that is replaced
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
        """Return the runs of a delegate; none if it does not measure them. None comes after this."""
        self._collect(index)
        return self._runs.pop(index, [])

    def _collect(self, index: int) -> None:
        delegate = self.delegates.get(index)
        if isinstance(delegate, TimedDelegate):
            self._runs.setdefault(index, []).extend(delegate.take_runs())
