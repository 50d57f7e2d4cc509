"""Which unit is submitted next, and what becomes of its answer. No engine, no model and no torch is known here.

A unit whose worker is lost, or whose answer is wrong, is made again on another worker; what has failed several times is
given up, and left to the local build. A unit that fails ends the build, and so does one that every worker refuses.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeAlias

from hatch_lower.build.spread.graph import State, UnitGraph, Work
from hatch_lower.build.spread.pool import LostConnectionError, LostWorkerError, NoWorkerError, Pool, Reply, Shared
from hatch_lower.build.spread.protocol import LacksError, WrongAnswerError
from hatch_lower.build.spread.view import Progress, UnitView
from hatch_lower.errors import ExecutorError

MOST_LOST = 4  # workers that a unit may lose: it may be what ends them
MOST_WRONG = 3  # wrong answers to one unit
MOST_REFUSED_AGAIN = 8  # refusals of one unit by workers that were to be avoided: the engine cannot choose
MOST_CONNECTIONS = 3  # times that an engine is connected to before a unit is made
MANY = 1.5  # units are many if they take a cluster that much longer than the longest chain of them takes
PATIENCE_SECONDS = 5.0  # that one waits for other workers than those that refuse: one may just be starting again
LONGEST_TEXT = 400  # characters of what a worker raised
TICK_SECONDS = 0.5  # between two looks at how many workers there are


class Desk(Protocol):
    """Writes requests and reads answers: all that is known of what units are."""

    def request(self, work: Work, *, divisible: bool) -> tuple[bytes, Sequence[bytes | Shared]]:
        """Return the request for a unit, and attachments; `divisible`: it may ask that others make parts of it."""

    def read(self, work: Work, reply: Reply) -> Sequence[Work] | None:
        """Take what has come back; return the units that are needed first, some made already, or `None` if it is made.

        Raises a `LacksError` if the worker refuses the unit, a `LostWorkerError` if the unit was killed there, a
        `WrongAnswerError`, or the error with which the unit has failed.
        """


Finished: TypeAlias = tuple[State, int, "Future[Reply]"]


class Clock:
    def now(self) -> float:
        return time.monotonic()

    def wait(self, finished: queue.SimpleQueue[Finished], seconds: float) -> Finished | None:
        """Return the next of what has finished, or `None` after some seconds."""
        with suppress(queue.Empty):
            return finished.get(timeout=seconds)
        return None


class Scheduler:
    def __init__(self, open_pool: Callable[[], Pool], desk: Desk, view: UnitView, clock: Clock) -> None:
        self._open_pool = open_pool
        self._desk = desk
        self._view = view
        self._clock = clock
        self._graph = UnitGraph(())
        self._running: dict[str, State] = {}
        self._finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._refused: dict[str, dict[str, str]] = {}  # by group and worker: what it lacks
        self._unserved: dict[str, float] = {}  # groups whose units no worker takes, and since when
        self._given_up: dict[str, str] = {}
        self._connections = 0
        self._lost = False
        self._shown = float("-inf")

    def run(self, works: Iterable[Work]) -> dict[str, str]:
        """Have units made, and those that they turn out to need; return the keys of those given up, and why."""
        self._graph = UnitGraph(works)
        pool: Pool | None = None
        finished = False
        try:
            while self._graph.over < len(self._graph.states):
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

    def _connect(self) -> Pool | None:
        """Return an engine; if it was lost and cannot be had again, all that is left is given up."""
        self._connections += 1
        self._unserved.clear()  # other workers may have come
        try:
            return self._open_pool()
        except ExecutorError as error:
            if not self._lost:
                raise
            self._give_up_all(f"{error.what}: {error.found}")
            return None

    def _turn(self, pool: Pool) -> None:
        waits = self._submit(pool)
        self._show(pool)
        if not self._running and not waits:
            self._give_up_all("units wait for each other")
            return
        finished = self._clock.wait(self._finished, TICK_SECONDS)
        while finished is not None:
            self._settle(*finished)
            finished = None if self._finished.empty() else self._finished.get()

    def _show(self, pool: Pool) -> None:
        now = self._clock.now()
        if now - self._shown < TICK_SECONDS:
            return
        self._shown = now
        graph = self._graph
        running = [(state.work, now - state.began) for state in self._running.values()]
        rest = None
        if graph.estimates:
            longest = max((state.chain - now + state.began for state in self._running.values()), default=0.0)
            done = sum(min(seconds, self._running[work.key].seconds) for work, seconds in running)
            rest = max((graph.left - done) / max(len(running), 1), longest, 0.0)
        given_up = graph.over - graph.made
        self._view.show(Progress(graph.made, given_up, len(graph.states), running, rest, pool.size()))

    # submitting

    def _submit(self, pool: Pool) -> bool:
        """Submit units; return whether one waits for another worker than there are."""
        room = self._room(pool.size())
        while room is None or len(self._running) < room:
            state = self._graph.next_ready()
            if state is None:
                break
            try:
                future = self._submit_one(pool, state)
            except LostConnectionError:
                self._graph.make_ready(state)
                raise
            except NoWorkerError:
                now = self._clock.now()
                if now - self._unserved.setdefault(state.work.group, now) < PATIENCE_SECONDS:
                    self._graph.make_ready(state)
                    return True
                self._refuse(state)
                self._give_up(state, "every worker refused it or answered wrongly")
                continue
            state.stage, state.began = "running", self._clock.now()
            self._unserved.pop(state.work.group, None)
            self._running[state.work.key] = state
            future.add_done_callback(noted(self._finished, state))
        return False

    def _room(self, size: int | None) -> int | None:
        """Return how many units may be at the engine: all that it has not begun is begun before what comes later."""
        # Where the length of a chain decides, none waits there, and the next of a chain follows at once. Where the
        # number of units decides, workers need not wait for the parent, and a cluster that grows on demand sees what
        # there is.
        if size is None:
            return None
        size = max(size, 1)
        chain = max([self._graph.longest_ready(), *(state.chain for state in self._running.values())])
        return 2 * size if self._graph.left > MANY * size * chain else size

    def _submit_one(self, pool: Pool, state: State) -> Future[Reply]:
        size = pool.size()
        # worth another export if it would take longer than its share of what is left
        divisible = size is None or state.seconds * size > self._graph.left
        request, attachments = self._desk.request(state.work, divisible=divisible)
        refused = frozenset(self._refused.get(state.work.group, ()))
        try:
            return pool.submit(request, attachments, refused | state.avoid)
        except NoWorkerError:
            if state.avoid <= refused:
                raise
            # a worker that was lost, or has answered wrongly, is better than none
            return pool.submit(request, attachments, refused)

    # answers

    def _settle(self, state: State, attempt: int, future: Future[Reply]) -> None:
        if state.stage != "running" or state.attempt != attempt:
            return
        error = future.exception()
        if isinstance(error, LostConnectionError):
            raise error
        self._stop(state)
        if error is None:
            self._take(state, future.result())
        elif isinstance(error, LostWorkerError):
            self._take_loss(state, error, f"its worker was lost: {error}")
        else:
            self._take_exception(state, error)

    def _take_loss(self, state: State, error: LostWorkerError, reason: str) -> None:
        state.lost += error.times
        state.avoid |= {error.worker} - {""}
        self._try_again(state, reason, enough=state.lost >= MOST_LOST)

    def _stop(self, state: State) -> None:
        del self._running[state.work.key]
        state.stage = "waiting"
        state.attempt += 1

    def _take(self, state: State, reply: Reply) -> None:
        try:
            needs = self._desk.read(state.work, reply)
        except LacksError as error:
            self._take_refusal(state, reply.worker, str(error))
        except WrongAnswerError as error:
            state.wrong += 1
            state.avoid |= {reply.worker}
            reason = f"{reply.worker} answered wrongly: {error}"
            self._try_again(state, reason, enough=state.wrong >= MOST_WRONG)
        except LostWorkerError as error:
            self._take_loss(state, error, f"{reply.worker}: {error}")
        else:
            if needs is None:
                self._connections = 0
                self._graph.end(state, "made")
                self._view.made(state.work, reply.worker, self._clock.now() - state.began)
            elif not self._graph.need(state, needs):
                self._give_up(state, "what it needs cannot be made before it")

    def _take_refusal(self, state: State, worker: str, lacks: str) -> None:
        refused = self._refused.setdefault(state.work.group, {})
        state.refused_again += worker in refused
        refused[worker] = lacks
        enough = state.refused_again >= MOST_REFUSED_AGAIN
        if enough:
            self._refuse(state)
        self._try_again(state, f"{worker} refused it: {lacks}", enough=enough)

    def _refuse(self, state: State) -> None:
        """Raise the error for a unit that every worker refuses, unless one of them was lost or answered wrongly."""
        if state.avoid or not (refused := self._refused.get(state.work.group)):
            return
        raise ExecutorError(
            "no worker can make a unit of this build",
            where=f"`{state.work.name}`",
            found="\n".join(f"{worker}: {lacks}" for worker, lacks in sorted(refused.items())),
            hint='install on the workers what this build has here, or build with `executor = "local"`',
        )

    def _take_exception(self, state: State, error: BaseException) -> None:
        # a worker answers whatever a unit does: what it raises is a matter of its environment
        state.lost += 1
        reason = f"{type(error).__name__}: {first_line(error)}"
        if state.lost >= MOST_LOST:
            raise ExecutorError(
                "the executor's workers cannot run units",
                where=f"`{state.work.name}`",
                found=reason,
                hint="install hatch-lower on the workers, in the version that is installed here",
            ) from error
        self._try_again(state, f"the worker raised {reason}", enough=False)

    def _try_again(self, state: State, reason: str, *, enough: bool) -> None:
        if enough:
            self._give_up(state, reason)
        else:
            self._view.again(state.work, reason)
            self._graph.make_ready(state)

    def _give_up(self, state: State, reason: str) -> None:
        """Leave a unit, and all that waits for it, to the local build."""
        doomed = [(state, reason)]
        while doomed:
            each, why = doomed.pop()
            if not each.over:
                self._given_up[each.work.key] = why
                self._view.given_up(each.work, why)
                waited = self._graph.end(each, "given up")
                doomed += [(other, f"`{each.work.name}`, which it needs, was given up") for other in waited]

    def _give_up_all(self, reason: str) -> None:
        for state in list(self._graph.states.values()):
            self._give_up(state, reason)

    def _forget_running(self, reason: str) -> None:
        """Submit again what ran when the connection was lost, or give up all that is left."""
        self._lost = True
        self._view.said(f"the executor was lost: {reason}")
        for state in list(self._running.values()):
            self._stop(state)
            state.lost += 1
            self._try_again(state, reason, enough=state.lost >= MOST_LOST)
        if self._connections >= MOST_CONNECTIONS:
            self._give_up_all(f"the executor was lost: {reason}")


def first_line(error: BaseException) -> str:
    """Return the beginning of an exception's text: some engines add what the worker's stack was."""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # of a class of anybody's
        return "its text cannot be read"
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def noted(finished: queue.SimpleQueue[Finished], state: State) -> Callable[[Future[Reply]], None]:
    attempt = state.attempt  # what an earlier attempt brings counts no more
    return lambda future: finished.put((state, attempt, future))
