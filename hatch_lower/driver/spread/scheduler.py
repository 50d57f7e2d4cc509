"""A loop over the futures of an engine: submit units, read answers, retry, and show the units on workers. The loop
knows no engine, no model, no torch. A unit whose worker is lost, or whose answer is wrong, is made again on
another worker. After several failures the unit is given up, and left to the local build.
"""

from __future__ import annotations

import heapq
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from hatch_lower.driver.spread.pool import (
    LostConnectionError,
    LostWorkerError,
    NoWorkerError,
    Reply,
    UnitWork,
    WorkerPool,
)
from hatch_lower.driver.spread.protocol import LacksError, WrongAnswerError
from hatch_lower.errors import ExecutorError
from hatch_lower.events import Event, Reporter
from hatch_lower.frozen import Frozen

LONGEST = 4  # units in the live view: the longest running
QUIET_SECONDS = 30.0  # between two lines without a terminal


class UnitProgress(Frozen):
    made: int
    given_up: int  # and left to the local build
    total: int
    running: Sequence[tuple[UnitWork, float]]  # and for how many seconds
    rest: float | None  # the estimate of the remaining seconds; `None` if unknown
    workers: int | None  # that there are; `None` if nobody knows


class UnitView:
    def __init__(self, reporter: Reporter, project: str, now: Callable[[], float] = time.monotonic) -> None:
        self._reporter = reporter
        self._project = project
        self._now = now
        self._began = now()
        self._told = self._began

    def made(self, work: UnitWork, worker: str, seconds: float) -> None:
        self._told = self._now()
        self._reporter.report(Event("unit", "end", work.name, seconds=seconds, detail=f"on {worker}"))

    def again(self, work: UnitWork, reason: str) -> None:
        self._note(work.name, f"made again: {reason}")

    def given_up(self, work: UnitWork, reason: str) -> None:
        self._note(work.name, f"made by this build: {reason}")

    def said(self, text: str) -> None:
        self._note(self._project, text)

    def show(self, progress: UnitProgress) -> None:
        waiting = progress.total - progress.made - progress.given_up - len(progress.running)
        text = f"{progress.made} of {progress.total} units made, {len(progress.running)} submitted, {waiting} waiting"
        if progress.given_up:
            text += f", {progress.given_up} left to this build"
        if progress.workers == 0:  # a cluster that grows on demand will get workers; another cluster may stay empty
            text += ", no worker is there"
        elif progress.rest is not None:
            text += f", about {duration_text(progress.rest)} left"
        longest = sorted(progress.running, key=lambda row: -row[1])[:LONGEST]
        rows = [f"{duration_text(seconds):>8}  {work.name}" for work, seconds in longest]
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


def duration_text(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


MOST_FAILED = 4  # lost workers and wrong answers of a unit, which may be the cause itself; or exceptions
MOST_REFUSED_AGAIN = 8  # refusals of a unit by workers that were to be avoided: the engine cannot choose
MOST_CONNECTIONS = 3  # connections to an engine without a unit made between
PATIENCE_SECONDS = 5.0  # the wait for a worker that does not refuse: a worker may be about to start
LONGEST_TEXT = 400  # characters of a worker's exception
TICK_SECONDS = 0.5  # between two looks at the number of workers


class Desk(Protocol):
    """Writes the requests for units, and reads the answers."""

    def request(self, work: UnitWork) -> tuple[bytes, bytes]:
        """Return the request for a unit, and the snapshot beside it."""

    def read(self, work: UnitWork, reply: Reply) -> None:
        """Keep the results of an answer.

        Raises a `LacksError` if the worker refuses the unit, a `LostWorkerError` if the unit was killed there, a
        `WrongAnswerError`, or the error with which the unit failed.
        """


@dataclass(slots=True, eq=False)
class UnitState:
    work: UnitWork
    seconds: float
    number: int
    began: float = 0.0
    failed: int = 0  # lost workers and wrong answers
    raised: int = 0
    refused_again: int = 0
    avoid: frozenset[str] = frozenset()  # workers that were lost with the unit, or answered wrongly


class UnitClock:
    def now(self) -> float:
        return time.monotonic()

    def wait(self, finished: queue.SimpleQueue[Future[Reply]], seconds: float) -> Future[Reply] | None:
        """Return the next finished future, or `None` after some seconds."""
        with suppress(queue.Empty):
            return finished.get(timeout=seconds)
        return None


class Scheduler:
    def __init__(self, open_pool: Callable[[], WorkerPool], desk: Desk, view: UnitView, clock: UnitClock) -> None:
        self._open_pool = open_pool
        self._desk = desk
        self._view = view
        self._clock = clock
        self._ready: list[tuple[float, int, UnitState]] = []  # a heap: the longest unit first
        self._running: dict[Future[Reply], UnitState] = {}
        self._finished: queue.SimpleQueue[Future[Reply]] = queue.SimpleQueue()
        self._refused: dict[str, dict[str, str]] = {}  # by group and worker: the lacks
        self._unserved: dict[str, float] = {}  # by group without a worker: the time since when
        self._given_up: dict[str, str] = {}
        self._made = self._total = 0
        self._left = 0.0  # seconds of the units that are neither made nor given up
        self._estimated = False
        self._connections = 0
        self._lost = False
        self._size: int | None = None
        self._looked = float("-inf")

    def run(self, works: Sequence[UnitWork]) -> dict[str, str]:
        """Have units made; return the keys of the units that were given up, with the reasons."""
        known = [work.seconds for work in works if work.seconds is not None]
        usual = sum(known) / len(known) if known else 1.0  # unknown lengths count as the average
        self._total, self._estimated = len(works), bool(known)
        for number, work in enumerate(works):
            self._push(UnitState(work, usual if work.seconds is None else work.seconds, number))
        self._left = sum(state.seconds for _, _, state in self._ready)
        pool: WorkerPool | None = None
        finished = False
        try:
            while self._ready or self._running:
                if pool is None:
                    pool = self._connect()
                    continue
                try:
                    self._turn(pool)
                except LostConnectionError as error:
                    lost, pool = pool, None
                    lost.close(cancel=False)
                    self._forget_running(str(error))
            finished = True
        finally:
            if pool is not None:
                pool.close(cancel=not finished)
        return self._given_up

    def _connect(self) -> WorkerPool | None:
        """Open the engine. If a lost engine cannot be opened again, give up all units that are left."""
        self._connections += 1
        self._unserved.clear()  # other workers may have come
        self._looked = float("-inf")
        try:
            return self._open_pool()
        except ExecutorError as error:
            if not self._lost:
                raise
            self._give_up_all(f"{error.what}: {error.found}")
            return None

    def _turn(self, pool: WorkerPool) -> None:
        now = self._clock.now()
        if is_tick := now - self._looked >= TICK_SECONDS:
            self._looked, self._size = now, pool.size()
        self._submit(pool)
        if is_tick:
            self._show(now)
        future = self._clock.wait(self._finished, TICK_SECONDS)
        while future is not None:
            if (state := self._running.get(future)) is not None:  # else a future of a lost connection
                self._settle(future, state)
            future = None if self._finished.empty() else self._finished.get()

    def _show(self, now: float) -> None:
        running = [(state.work, now - state.began) for state in self._running.values()]
        left = [max(state.seconds - now + state.began, 0.0) for state in self._running.values()]
        done = sum(state.seconds for state in self._running.values()) - sum(left)
        rest = max((self._left - done) / max(len(running), 1), *left, 0.0) if self._estimated else None
        self._view.show(UnitProgress(self._made, len(self._given_up), self._total, running, rest, self._size))

    # submitting

    def _submit(self, pool: WorkerPool) -> None:
        """Submit twice as many units as there are workers: no worker waits, and a growing cluster sees the demand."""
        size = self._size
        while self._ready and (size is None or len(self._running) < 2 * max(size, 1)):
            state = heapq.heappop(self._ready)[-1]
            group = state.work.group
            try:
                future = self._submit_one(pool, state)
            except LostConnectionError:
                self._push(state)
                raise
            except NoWorkerError:
                now = self._clock.now()
                if now - self._unserved.setdefault(group, now) < PATIENCE_SECONDS:
                    self._push(state)
                    return
                self._refuse(state)
                self._give_up(state, "every worker refused the unit or answered wrongly")
                continue
            state.began = self._clock.now()
            self._unserved.pop(group, None)
            self._running[future] = state
            future.add_done_callback(self._finished.put)

    def _submit_one(self, pool: WorkerPool, state: UnitState) -> Future[Reply]:
        request, snapshot = self._desk.request(state.work)
        refused = frozenset(self._refused.get(state.work.group, ()))
        try:
            return pool.submit(request, snapshot, refused | state.avoid)
        except NoWorkerError:
            if state.avoid <= refused:
                raise
            # a worker that was lost, or has answered wrongly, is better than no worker
            return pool.submit(request, snapshot, refused)

    # answers

    def _settle(self, future: Future[Reply], state: UnitState) -> None:
        error = future.exception()
        if isinstance(error, LostConnectionError):
            raise error
        del self._running[future]
        if error is None:
            self._take(state, future.result())
        elif isinstance(error, LostWorkerError):
            self._take_failure(state, f"its worker was lost: {error}", error.worker, error.times)
        else:
            self._take_exception(state, error)

    def _take_failure(self, state: UnitState, reason: str, worker: str, times: int = 1) -> None:
        state.failed += times
        state.avoid |= {worker} - {""}
        self._try_again(state, reason, enough=state.failed >= MOST_FAILED)

    def _take(self, state: UnitState, reply: Reply) -> None:
        try:
            self._desk.read(state.work, reply)
        except LacksError as error:
            self._take_refusal(state, reply.worker, str(error))
        except WrongAnswerError as error:
            self._take_failure(state, f"{reply.worker} answered wrongly: {error}", reply.worker)
        except LostWorkerError as error:
            self._take_failure(state, f"{reply.worker}: {error}", reply.worker)
        else:
            self._connections = 0
            self._made += 1
            self._left -= state.seconds
            self._view.made(state.work, reply.worker, self._clock.now() - state.began)

    def _take_refusal(self, state: UnitState, worker: str, lacks: str) -> None:
        refused = self._refused.setdefault(state.work.group, {})
        state.refused_again += worker in refused
        refused[worker] = lacks
        enough = state.refused_again >= MOST_REFUSED_AGAIN
        if enough:
            self._refuse(state)
        self._try_again(state, f"{worker} refused: {lacks}", enough=enough)

    def _refuse(self, state: UnitState) -> None:
        """Raise the error of a unit that all workers refuse, except after a lost worker or a wrong answer."""
        if state.avoid or not (refused := self._refused.get(state.work.group)):
            return
        raise ExecutorError(
            "no worker can make a unit of this build",
            where=f"`{state.work.name}`",
            found="\n".join(f"{worker}: {lacks}" for worker, lacks in sorted(refused.items())),
            hint='install the same on the workers as here, or build with `executor = "local"`',
        )

    def _take_exception(self, state: UnitState, error: BaseException) -> None:
        # a failing unit is an answer: an exception comes from the worker's environment
        state.raised += 1
        reason = f"{type(error).__name__}: {error_line(error)}"
        if state.raised >= MOST_FAILED:
            raise ExecutorError(
                "the executor's workers cannot run units",
                where=f"`{state.work.name}`",
                found=reason,
                hint="install hatch-lower on the workers, in the version that is installed here",
            ) from error
        self._try_again(state, f"the worker raised {reason}", enough=False)

    def _try_again(self, state: UnitState, reason: str, *, enough: bool) -> None:
        if enough:
            self._give_up(state, reason)
        else:
            self._view.again(state.work, reason)
            self._push(state)

    def _push(self, state: UnitState) -> None:
        heapq.heappush(self._ready, (-state.seconds, state.number, state))

    def _give_up(self, state: UnitState, reason: str) -> None:
        """Leave a unit to the local build."""
        self._given_up[state.work.key] = reason
        self._left -= state.seconds
        self._view.given_up(state.work, reason)

    def _give_up_all(self, reason: str) -> None:
        while self._ready:
            self._give_up(heapq.heappop(self._ready)[-1], reason)

    def _forget_running(self, reason: str) -> None:
        """Submit again the units that ran when the connection was lost, or give up all units that are left."""
        self._lost = True
        self._view.said(f"the executor was lost: {reason}")
        running, self._running = self._running, {}
        for state in running.values():
            self._take_failure(state, reason, "")
        if self._connections >= MOST_CONNECTIONS:
            self._give_up_all(f"the executor was lost: {reason}")


def error_line(error: BaseException) -> str:
    """Return the beginning of an exception's text: some engines append the worker's stack."""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # of an unknown class
        return "its text cannot be read"
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
