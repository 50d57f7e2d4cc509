"""Times of lowered candidates in `bench`'s measuring processes."""

from __future__ import annotations

import statistics
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

from hatch_lower.cli.measure.command import Host, RecipeRefusedError
from hatch_lower.cli.measure.figures import FEWEST, FigureSubject, interval_of
from hatch_lower.cli.measure.timed import (
    LOAD_METRICS,
    SECONDS,
    Eager,
    LoadTask,
    TimedRun,
    TimedWork,
    ask_pair,
    fastest_mean,
    pair_values,
)
from hatch_lower.cli.measure.tune.lowered import LeftOutError, LoweredCandidate
from hatch_lower.cli.measure.tune.race import EAGER, Heat
from hatch_lower.errors import LowerError, ProcessError
from hatch_lower.format.evidence import MeasuredCall

Calls = Sequence[tuple[FigureSubject, Mapping[str, int]]]
LONGEST = 1.0  # seconds of a process for calls: as long as the loads of its candidates, within this limit
# seconds of rest before a block of calls: the threads of an engine wait actively after a call, beside the next engine's
# calls (MobileNetV3, two cores: 1.13 of the time of a process with OpenVINO alone without the rest, 1.04 with it)
REST = 0.002
EAGER_SIDE = "eager"  # the measuring process's name of eager; other sides are letters


class CandidateTimer:
    """Calls and loads of candidates, in processes with a number of threads; a process that ends is started again."""

    def __init__(
        self,
        candidates: Mapping[str, LoweredCandidate],
        calls: Callable[[], Calls],  # known when a candidate is lowered
        threads: int,
        eager: Eager | None,
        environment: Mapping[str, str],
        limit: float,
    ) -> None:
        self.candidates = candidates  # candidates may be added between heats
        self.notes: dict[str, None] = {}
        # candidate to the seconds of each call, for each process
        self.samples: dict[str, list[tuple[float, ...]]] = {}
        self._calls = calls
        self._threads = threads
        self._eager = eager
        self._environment = environment
        self._limit = limit  # seconds of a request
        self._hosts: dict[int, Host] = {}
        self._load_seconds: dict[str, float] = {}

    def __enter__(self) -> CandidateTimer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        while self._hosts:
            self._hosts.popitem()[1].close()

    def _host(self, threads: int) -> Host:
        if threads not in self._hosts:
            self._hosts[threads] = Host(threads, self._environment)
        return self._hosts[threads]

    def heat(self, names: Sequence[str], *, with_eager: bool) -> Heat:
        sides = dict(zip(string.ascii_uppercase, names, strict=False))
        work = replace(self._work(sides), eager=self._eager if with_eager else None)
        title = f"calls of {', '.join(names)}"
        try:
            seconds = min(LONGEST, max(SECONDS, sum(self._load_seconds.get(name, 0.0) for name in names)))
            answers = ask_pair(self._host(self._threads), work, self._calls(), title, self._limit, seconds, REST)
        except ProcessError:
            self._close()
            raise
        for reason in (answer["no eager"] for answer in answers if answer["no eager"]):
            self.notes[f"eager is not timed: {reason}"] = None
        calls = [pair_values(processes) for processes in zip(*(answer["calls"] for answer in answers), strict=True)]
        for answer in answers:
            for side, name in sides.items():
                sample = tuple(fastest_mean(times[side]) for times in answer["calls"])
                self.samples.setdefault(name, []).append(sample)
        names_of = {**sides, EAGER_SIDE: EAGER}
        return {names_of[side]: tuple(call[side] for call in calls) for side in calls[0]}

    def eager_calls(self, model: str) -> dict[str, float]:
        """Return the seconds of a call of eager with its example inputs, by method; no method if eager fails."""
        if self._eager is None:
            return {}
        eager = {"paths": list(self._eager.paths), "export": self._eager.export}
        request = {"kind": "eager", "model": model, "threads": self._threads, "sides": {}, "eager": eager}
        try:
            found: dict[str, float] = self._host(self._threads).ask(request, "calls of eager", self._limit)["calls"]
        except LowerError:  # the lowering, or the first heat, has the whole error
            self._close()
            return {}
        return found

    def load(self, name: str, loads: int) -> dict[str, float]:
        """Return the median seconds and memory of loads; raise `LeftOutError` if the recipe cannot run."""
        run = TimedRun(self._host, lambda *_: False, self._limit, lambda line: None)
        task = LoadTask(run, self._work({"A": name}), loads)
        try:
            task.measure(0)
        except RecipeRefusedError as reason:
            raise LeftOutError(f"cannot run here: {reason}") from reason
        except ProcessError:
            self._close()
            raise
        found = {metric: statistics.median(run.measured[task.subject, metric].rounds["A"]) for metric in LOAD_METRICS}
        self._load_seconds[name] = found["load-seconds"]
        return found

    def _work(self, sides: Mapping[str, str]) -> TimedWork:
        lowered = {side: self.candidates[name] for side, name in sides.items()}
        first, *_ = lowered.values()
        imports = dict.fromkeys(module for each in lowered.values() for module in each.candidate.recipe.imports)
        return TimedWork(
            self._calls()[0][0].model,
            first.candidate.name,
            self._threads,
            tuple(self._calls()),
            {side: each.folder for side, each in lowered.items()},
            None,
            tuple(imports),
            {side: name for side, name in sides.items() if name != first.candidate.name},
            {side: each.process_settings for side, each in lowered.items()},
        )


def times_of_calls(
    calls: Calls, heats: Sequence[Heat], samples: Sequence[tuple[float, ...]], name: str
) -> tuple[MeasuredCall, ...]:
    """Return the times of a candidate's calls over its heats; with few heats, the interval is the samples' range."""
    own = [heat for heat in heats if name in heat]
    found = []
    for at, (subject, sizes) in enumerate(calls):
        seconds = [heat[name][at] for heat in own]
        # eager beside the candidate: medians of different heats are of a machine in different states
        eager = [heat[EAGER][at] / heat[name][at] for heat in own if EAGER in heat]
        median = statistics.median(seconds)
        low, high = (end(sample[at] for sample in samples) for end in (min, max))
        if len(seconds) >= FEWEST:
            interval = interval_of(seconds)
            low, high = interval.low, interval.high
        found.append(
            MeasuredCall(
                subject.method,
                dict(sizes),
                median,
                min(low, median),
                max(high, median),
                median * statistics.geometric_mean(eager) if eager else None,
            )
        )
    return tuple(found)
