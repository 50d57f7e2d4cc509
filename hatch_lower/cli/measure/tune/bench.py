"""The means of `hatch-lower tune`: the project's pipeline lowers candidates, processes of `bench` time candidates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from hatch_lower.cache.store import Store
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.cli.measure.limits import dimensions_of, resolve, tables_for, ways
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.cli.measure.timed import SECONDS, SHORTEST, Eager
from hatch_lower.cli.measure.tune.candidates import Aim, TunedCandidate
from hatch_lower.cli.measure.tune.choose import LoadTimer
from hatch_lower.cli.measure.tune.lowered import LoweredCandidate, SharedFiles, Sizes, examined, lowered_candidate
from hatch_lower.cli.measure.tune.timer import Calls, CandidateTimer
from hatch_lower.config.checkpoint import absolute_export
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.driver.context import ProjectView
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.selection import physical_cores

HEAT_CALLS = 10  # calls of eager in a heat, of which each of two processes makes more


class TunedProject(Frozen):
    settings: Settings
    view: ProjectView
    store: Store
    paths: tuple[str, ...]  # import paths of eager modules


class ProjectBench:
    """Lowers and times candidates of a model of a project."""

    def __init__(self, project: TunedProject, model: ModelSettings, threads: int, budget: float) -> None:
        self.calls: Calls = ()
        self._project = project
        self._model = model
        self._threads = threads
        self._eager = Eager(project.paths, absolute_export(model.export, project.settings.root))
        self._limit = max(budget, SHORTEST)  # seconds of a request
        self._sizes = Sizes()
        self._shared = SharedFiles()

    @contextmanager
    def lowered(self, candidate: TunedCandidate) -> Iterator[LoweredCandidate]:
        project = self._project
        with lowered_candidate(project.settings, self._model, candidate, project.view, project.store) as side:
            if not self.calls:
                self.calls = calls_to_time(project.settings, self._model.name, side, candidate.name, self._threads)
            yield examined(candidate, self._model.name, side, self._limit, self._sizes, self._shared)

    def least_heat(self, timer: LoadTimer) -> float:
        """Return the seconds that a heat beside eager takes at least, by eager's calls; 0 if these are unknown."""
        found = timer.eager_calls(self._model.name)
        return sum(max(2 * SECONDS, HEAT_CALLS * self._at_example_sizes(each, found[each])) for each in found)

    def _at_example_sizes(self, method: str, seconds: float) -> float:
        """Return the seconds of a call, or 0 for a method that is timed at other sizes than the example's."""
        tables = tables_for(self._project.settings.bench, FigureSubject(self._model.name, "", method))
        return 0.0 if resolve(tables, "sizes")[0] else seconds

    def timer(self, candidates: Mapping[str, LoweredCandidate]) -> AbstractContextManager[CandidateTimer]:
        return CandidateTimer(candidates, lambda: self.calls, self._threads, self._eager, os.environ, self._limit)


def calls_to_time(settings: Settings, model: str, side: BenchSide, recipe: str, threads: int) -> Calls:
    """Return the calls to time: each method at the sizes in the table `bench`."""
    calls = []
    for name, method in side.plan(model, recipe).methods.items():
        subject = FigureSubject(model, "", name)
        found = ways(settings.bench, subject, [symbol.name for symbol in dimensions_of(method)])
        sizes = list({tuple(each.items()): each for each, _ in found}.values())
        calls += [(subject.called(each, threads), each) for each in sizes]
    return calls


def threads_for(settings: Settings, model: str, aim: Aim) -> int:
    """Return the number of threads of calls.

    A single thread for throughput, since a server runs a call on each core; else the largest number in the table
    `bench`, or as many as the machine has cores.
    """
    if aim == "throughput":
        return 1
    numbers, setting = resolve(tables_for(settings.bench, FigureSubject(model)), "threads")
    return physical_cores() if setting == "default" else max(numbers)
