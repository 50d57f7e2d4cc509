"""The display of units on workers: a live view on a terminal, elsewhere lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hatch_lower.driver.spread.pool import Work
from hatch_lower.events import Event, Reporter
from hatch_lower.frozen import Frozen

LONGEST = 4  # units in the live view: the longest running
QUIET_SECONDS = 30.0  # between two lines without a terminal


class Progress(Frozen):
    made: int
    given_up: int  # and left to the local build
    total: int
    running: Sequence[tuple[Work, float]]  # and for how many seconds
    rest: float | None  # the estimate of the remaining seconds; `None` if unknown
    workers: int | None  # that there are; `None` if nobody knows


class UnitView:
    def __init__(self, reporter: Reporter, project: str, now: Callable[[], float] = time.monotonic) -> None:
        self._reporter = reporter
        self._project = project
        self._now = now
        self._began = now()
        self._told = self._began

    def made(self, work: Work, worker: str, seconds: float) -> None:
        self._told = self._now()
        self._reporter.report(Event("unit", "end", work.name, seconds=seconds, detail=f"on {worker}"))

    def again(self, work: Work, reason: str) -> None:
        self._note(work.name, f"made again: {reason}")

    def given_up(self, work: Work, reason: str) -> None:
        self._note(work.name, f"made by this build: {reason}")

    def said(self, text: str) -> None:
        self._note(self._project, text)

    def show(self, progress: Progress) -> None:
        waiting = progress.total - progress.made - progress.given_up - len(progress.running)
        text = f"{progress.made} of {progress.total} units made, {len(progress.running)} submitted, {waiting} waiting"
        if progress.given_up:
            text += f", {progress.given_up} left to this build"
        if progress.workers == 0:  # a cluster that grows on demand will get workers; another cluster may stay empty
            text += ", no worker is there"
        elif progress.rest is not None:
            text += f", about {duration(progress.rest)} left"
        longest = sorted(progress.running, key=lambda row: -row[1])[:LONGEST]
        rows = [f"{duration(seconds):>8}  {work.name}" for work, seconds in longest]
        self._reporter.report(Event("units", "live", self._project, detail="\n".join([text, *rows])))
        now = self._now()
        if now - self._told >= QUIET_SECONDS:
            self._told = now
            self._reporter.report(Event("units", "going", self._project, seconds=now - self._began, detail=text))

    def close(self) -> None:
        self._reporter.report(Event("units", "live", self._project))

    def _note(self, name: str, text: str) -> None:
        self._told = self._now()
        self._reporter.report(Event("units", "note", name, detail=text))


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
