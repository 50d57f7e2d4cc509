"""The timed tier: pairs of processes for undecided figures until the budget is used up; and builds."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.apart import ProcessSettings, divide
from hatch_lower.cli.measure.command import Host, RecipeRefusedError, Tell
from hatch_lower.cli.measure.figures import FEWEST, FigureSubject
from hatch_lower.cli.measure.project import build_wheel
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.frozen import Frozen

SECONDS = 0.3  # of a process for the calls of a subject
SHORTEST = 30.0  # seconds of a request, for any budget
LOAD_THREADS = 1
LOADS = 8  # loads of each side in a pair, an even number
LOAD_METRICS = ("load-seconds", "memory-bytes")
BUILD_METRICS = ("cold-build-seconds", "warm-build-seconds")


class Eager(Frozen):
    """The module of a model's export: its import paths, and the entry point."""

    paths: tuple[str, ...]
    export: str


class TimedWork(Frozen):
    """The work of a pair of processes: calls of a recipe of a model, with a number of threads."""

    model: str
    recipe: str
    threads: int
    calls: tuple[tuple[FigureSubject, Mapping[str, int]], ...]  # with the sizes of dynamic dimensions
    folders: Mapping[str, Path]  # `A`, and if present `B`, to the `_lowered` folder
    eager: Eager | None
    imports: tuple[str, ...] = ()  # modules from the project's settings
    recipes: Mapping[str, str] = field(default_factory=dict)  # side to its recipe, of sides with another recipe
    settings: Mapping[str, ProcessSettings] = field(default_factory=dict)  # side to the settings of its process


@dataclass(slots=True)
class MetricRounds:
    """The measurements of a metric of a subject."""

    rounds: dict[str, list[float]] = field(default_factory=dict)  # side to every value
    # for each pair of processes: side to undisturbed value, and the ratios of A to B and of A to eager
    values: dict[str, list[float]] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)
    eager_ratios: list[float] = field(default_factory=list)

    def add(self, processes: Sequence[Mapping[str, Sequence[float]]]) -> None:
        """Add the measurements of a pair of processes, each the values of its rounds by side."""
        for times in processes:
            for side, each in times.items():
                self.rounds.setdefault(side, []).extend(each)
        pair = pair_values(processes)
        for side, value in pair.items():
            self.values.setdefault(side, []).append(value)
        if "B" in pair:
            self.ratios.append(pair["A"] / pair["B"])
        if "eager" in pair:
            self.eager_ratios.append(pair["A"] / pair["eager"])


def pair_values(processes: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return the undisturbed value of each side in a pair of processes."""
    return {
        side: statistics.geometric_mean(fastest_mean(times[side]) for times in processes)
        for side in processes[0]
        if all(side in times for times in processes)
    }


def fastest_mean(rounds: Sequence[float]) -> float:
    """Return the mean of the fastest quarter.

    Other work of the machine makes rounds slower, never faster. On two busy cores the ratio of two such means varies a
    third to a fifth as much as the ratio of medians.
    """
    kept = sorted(rounds)[: max(1, len(rounds) // 4)]
    return statistics.fmean(kept)


Measured = dict[tuple[FigureSubject, str], MetricRounds]
IsDecided = Callable[[FigureSubject, str, MetricRounds], bool]


def measure(
    works: Sequence[TimedWork],
    hosts: Callable[[int], Host],
    budget: float,
    is_decided: IsDecided,
    tell: Tell,
    note: Callable[[str], None],
    refuse: Callable[[str], None],
) -> Measured:
    """Measure calls, loads and memory in pairs of processes.

    Each subject gets at least a pair, then more until `is_decided` or `budget` seconds have passed. `refuse` receives
    recipes that cannot run here, `note` the omitted measurements.
    """
    end = time.monotonic() + budget
    run = TimedRun(hosts, is_decided, max(budget, SHORTEST), note)
    tasks: list[CallTask | LoadTask] = [CallTask(run, work) for work in works]
    tasks += [LoadTask(run, work) for work in load_works(works)]
    for turn in itertools.count():
        open_tasks = [task for task in tasks if task.is_open()]
        for task in open_tasks:
            if turn and time.monotonic() > end:
                return run.measured
            tell(f"pair {turn + 1}: {task.title}")
            try:
                task.measure(turn)
            except RecipeRefusedError as reason:
                refuse(f"{task.title}: {reason}")
                tasks.remove(task)
        if not open_tasks:
            break
    return run.measured


class TimedRun(Frozen):
    hosts: Callable[[int], Host]  # the measuring process for a number of threads
    is_decided: IsDecided
    limit: float  # seconds of a request
    note: Callable[[str], None]
    measured: Measured = field(default_factory=dict)

    def is_open(self, subject: FigureSubject, metric: str) -> bool:
        found = self.measured.get((subject, metric))
        return found is None or not self.is_decided(subject, metric, found)

    def add(self, subject: FigureSubject, metric: str, processes: Sequence[Mapping[str, Sequence[float]]]) -> None:
        self.measured.setdefault((subject, metric), MetricRounds()).add(processes)


class CallTask(Frozen):
    run: TimedRun
    work: TimedWork

    @property
    def title(self) -> str:
        threads = f"{self.work.threads} thread{'s' if self.work.threads > 1 else ''}"
        return f"calls of {self.work.model}/{self.work.recipe}, {threads}"

    def pending(self) -> list[tuple[FigureSubject, Mapping[str, int]]]:
        return [(subject, sizes) for subject, sizes in self.work.calls if self.run.is_open(subject, "call-seconds")]

    def is_open(self) -> bool:
        return bool(self.pending())

    def measure(self, turn: int) -> None:
        calls = self.pending()
        answers = ask_pair(self.run.hosts(self.work.threads), self.work, calls, self.title, self.run.limit)
        for reason in (answer["no eager"] for answer in answers if answer["no eager"]):
            self.run.note(f"{self.work.model} is not compared with eager: {reason}")
        for (subject, _), *processes in zip(calls, *(answer["calls"] for answer in answers), strict=True):
            self.run.add(subject, "call-seconds", processes)


def ask_pair(
    host: Host,
    work: TimedWork,
    calls: Sequence[tuple[FigureSubject, Mapping[str, int]]],
    title: str,
    limit: float,
    seconds: float = SECONDS,
    rest: float = 0.0,
) -> list[Mapping[str, Any]]:
    """Return the answers of a pair of processes, of which the second has the sides in reverse order.

    Sides that cannot share a process have processes of their own, in the same order; eager is beside the first side.

    Args:
        host: starts the processes.
        work: the model and the sides.
        calls: methods and sizes.
        title: of errors.
        limit: seconds of a request.
        seconds: seconds of a process for the calls of a subject.
        rest: seconds of rest before each block of calls.
    """
    request: dict[str, object] = {
        "kind": "calls",
        **common_request(work),
        "calls": [{"method": subject.method, "sizes": dict(sizes)} for subject, sizes in calls],
        "seconds": seconds,
        "rest": rest,
    }
    eager = work.eager and {"paths": list(work.eager.paths), "export": work.eager.export}
    groups = divide(list(work.folders), work.settings)

    def asked(group: Sequence[str], order: Sequence[str]) -> Mapping[str, Any]:
        sides = {side: str(work.folders[side]) for side in group}
        beside = eager if group is groups[0] else None
        return host.ask({**request, "sides": sides, "order": order, "eager": beside}, title, limit)

    forward = merge_answers([asked(group, group) for group in groups])
    backward = merge_answers([asked(group, group[::-1]) for group in reversed(groups)])
    return [forward, backward]


def merge_answers(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the answer of a single process, made of the answers of processes with different sides."""
    calls = [
        {side: times for part in parts for side, times in part.items()}
        for parts in zip(*(answer["calls"] for answer in answers), strict=True)
    ]
    return {"calls": calls, "no eager": "".join(answer["no eager"] for answer in answers)}


def common_request(work: TimedWork) -> dict[str, object]:
    return {
        "model": work.model,
        "recipe": work.recipe,
        "threads": work.threads,
        "recipes": dict(work.recipes),
        "imports": list(work.imports),
        # all sides use the check inputs of the first side that has inputs
        "inputs": [str(folder) for side, folder in work.folders.items() if side not in work.recipes],
    }


class LoadTask(Frozen):
    """Loads of a recipe, each side in its own process."""

    run: TimedRun
    work: TimedWork
    loads: int = LOADS

    @property
    def title(self) -> str:
        return f"loads of {self.work.model}/{self.work.recipe}"

    @property
    def subject(self) -> FigureSubject:
        return FigureSubject(self.work.model, self.work.recipe)

    def is_open(self) -> bool:
        return any(self.run.is_open(self.subject, metric) for metric in LOAD_METRICS)

    def measure(self, turn: int) -> None:
        sides = list(self.work.folders)
        methods = sorted({subject.method for subject, _ in self.work.calls})
        order = sides if turn % 2 else sides[::-1]
        found: dict[str, list[Mapping[str, Any]]] = {side: [] for side in order}
        for again in range(self.loads):
            for side in order if again % 2 else order[::-1]:
                found[side].append(self._ask(side, methods))
        for metric in LOAD_METRICS:
            values = {side: [answer[metric] for answer in answers] for side, answers in found.items()}
            self.run.add(self.subject, metric, [values])
        for method in methods:
            values = {side: [answer["methods"][method] for answer in answers] for side, answers in found.items()}
            self.run.add(FigureSubject(self.work.model, self.work.recipe, method), "first-call-seconds", [values])

    def _ask(self, side: str, methods: Sequence[str]) -> Mapping[str, Any]:
        request = {
            "kind": "load",
            **common_request(self.work),
            "threads": LOAD_THREADS,
            "sides": {"A": str(self.work.folders[side])},
            "methods": methods,
        }
        return self.run.hosts(LOAD_THREADS).ask(request, f"{self.title}, {side}", self.run.limit)


def load_works(works: Iterable[TimedWork]) -> list[TimedWork]:
    # a single work for each recipe, for any numbers of threads
    first: dict[tuple[str, str], TimedWork] = {}
    for work in works:
        first.setdefault((work.model, work.recipe), work)
    return list(first.values())


def has_enough(observations: MetricRounds) -> bool:
    return len(observations.values["A"]) >= FEWEST


def measure_builds(
    sides: Mapping[str, BenchSide], environment: Mapping[str, str], budget: float, is_decided: IsDecided, tell: Tell
) -> Measured:
    """Build all sides in turn, at least once, until `is_decided` or the budget is used up."""
    measured: Measured = {(FigureSubject(), metric): MetricRounds() for metric in BUILD_METRICS}
    end = time.monotonic() + budget
    order = list(sides)
    while True:
        times = {name: build_twice(sides[name], environment, tell) for name in order}
        for at, metric in enumerate(BUILD_METRICS):
            measured[FigureSubject(), metric].add([{name: [seconds[at]] for name, seconds in times.items()}])
        order.reverse()
        if time.monotonic() > end or all(is_decided(*key, found) for key, found in measured.items()):
            return measured


def build_twice(side: BenchSide, environment: Mapping[str, str], tell: Tell) -> list[float]:
    """Return the seconds of a build with an empty cache, and of a second build."""
    assert side.source is not None
    seconds = []
    with work_folder() as work:
        variables = {
            **environment,
            "HATCH_LOWER_CACHE": "on",
            "HATCH_LOWER_CACHE_DIR": str(work / "cache"),
            "HATCH_LOWER_REMOTE_CACHE": "off",
        }
        for target in ("cold", "warm"):
            begin = time.perf_counter()
            build_wheel(side.source, work / target, side.title, variables, tell)
            seconds.append(time.perf_counter() - begin)
    return seconds
