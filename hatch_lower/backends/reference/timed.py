"""A delegate of the reference backend that notes when each of its operations begins."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING

from hatch_lower.backends.reference.run import ReferenceDelegate, read_executor
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.timing import Clock, Run, TimedDelegate, Timing

if TYPE_CHECKING:
    from torch import Tensor

    from hatch_lower.runtime.executor import Executor


class TimedReferenceDelegate(ReferenceDelegate, TimedDelegate):
    def __init__(self, executor: Executor, clock: Clock) -> None:
        super().__init__(executor)
        self._clock = clock
        self._runs: list[Run] = []

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        begin = perf_counter_ns()
        outputs = super().run(inputs)
        self._runs.append(self._clock.take_run(begin, perf_counter_ns()))
        return outputs

    def forget_runs(self) -> None:
        self._runs.clear()

    def take_runs(self) -> Sequence[Run]:
        return self._runs


def load_timed(blob: DelegateBlob, constants: Sequence[Tensor]) -> TimedReferenceDelegate:
    timing = Timing()
    executor = read_executor(blob, timing)
    (clock,) = timing.clocks.values()
    return TimedReferenceDelegate(executor, clock)
