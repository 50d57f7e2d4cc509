"""Simulated workers, and a clock that jumps to whatever happens next: what the scheduler does takes no time on it."""

from __future__ import annotations

import heapq
import queue
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from hatch_lower.driver.spread.pool import LostConnectionError, LostWorkerError, NoWorkerError, Reply, UnitWork
from hatch_lower.driver.spread.protocol import Lack, LacksError, WrongAnswerError
from hatch_lower.driver.spread.scheduler import Scheduler, UnitProgress
from hatch_lower.errors import CaptureError

# Seconds that a unit takes on a worker, and what comes back
Make = Callable[[str, str], tuple[float, bytes | BaseException]]


@dataclass(eq=False)
class Task:
    key: str
    avoid: frozenset[str]
    future: Future[Reply] = field(default_factory=Future)
    over: bool = False


class SimulatedEngine:
    """Workers that begin units in the order in which they come; pool and clock in one."""

    def __init__(self, workers: int, make: Make, *, known: bool = True) -> None:
        self.workers = {f"worker-{number}": None for number in range(workers)}
        self.opened = 0
        self.closed: list[bool] = []
        self.most_submitted = 0
        self.time = 0.0
        self._make = make
        self._known = known  # whether it says how many workers there are
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._waiting: deque[Task] = deque()
        self._running: dict[str, Task | None] = dict.fromkeys(self.workers)
        self._free = deque(self.workers)
        self._submitted = 0

    # pool

    def open(self) -> SimulatedEngine:
        self.opened += 1
        return self

    def submit(self, request: bytes, snapshot: bytes, avoid: frozenset[str]) -> Future[Reply]:
        if avoid >= self._running.keys():
            raise NoWorkerError
        task = Task(request.decode(), avoid)
        self._submitted += 1
        self.most_submitted = max(self.most_submitted, self._submitted)
        self._waiting.append(task)
        self._dispatch()
        return task.future

    def size(self) -> int | None:
        return len(self._running) if self._known else None

    def close(self, *, cancel: bool) -> None:
        self.closed.append(cancel)
        self._waiting.clear()
        for worker, task in self._running.items():
            if task is not None:
                task.over = True
                self._running[worker] = None
        self._free = deque(self._running)
        self._submitted = 0

    # clock

    def now(self) -> float:
        return self.time

    def wait(self, finished: queue.SimpleQueue[Future[Reply]], seconds: float) -> Future[Reply] | None:
        until = self.time + seconds
        while finished.empty() and self._events and self._events[0][0] <= until:
            self.time, _, happen = heapq.heappop(self._events)
            happen()
        if not finished.empty():
            return finished.get()
        self.time = until
        return None

    # what happens

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, happen))

    def kill(self, worker: str) -> None:
        """End a worker; another one takes its place."""
        task = self._running.pop(worker)
        if worker in self._free:
            self._free.remove(worker)
        self._count += 1
        new = f"worker-{self._count}-new"
        self._running[new] = None
        self._free.append(new)
        if task is not None:
            self._finish(task, LostWorkerError("killed", worker))
        self._dispatch()

    def kill_one(self, choose: Callable[[Sequence[str]], str]) -> None:
        self.kill(choose(sorted(self._running)))

    def running(self, key: str) -> list[str]:
        """Return the workers that make a unit now."""
        return [worker for worker, task in self._running.items() if task is not None and task.key == key]

    def disconnect(self) -> None:
        for task in [*self._waiting, *self._running.values()]:
            if task is not None:
                self._finish(task, LostConnectionError("connection closed"))

    def _dispatch(self) -> None:
        passed: list[Task] = []
        while self._free and self._waiting:
            task = self._waiting.popleft()
            worker = next((worker for worker in self._free if worker not in task.avoid), None)
            if worker is None:
                passed.append(task)
                continue
            self._free.remove(worker)
            self._running[worker] = task
            seconds, data = self._make(worker, task.key)
            self.at(self.time + seconds, self._ending(worker, task, data))
        self._waiting.extendleft(reversed(passed))

    def _ending(self, worker: str, task: Task, data: bytes | BaseException) -> Callable[[], None]:
        def end() -> None:
            if not task.over:
                self._running[worker] = None
                self._free.append(worker)
                self._finish(task, data if isinstance(data, BaseException) else Reply(worker, data))
                self._dispatch()

        return end

    def _finish(self, task: Task, result: Reply | BaseException) -> None:
        task.over = True
        self._submitted -= 1
        if isinstance(result, Reply):
            task.future.set_result(result)
        else:
            task.future.set_exception(result)


class SimulatedDesk:
    """Knows units by their keys. An answer is one word."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def request(self, work: UnitWork) -> tuple[bytes, bytes]:
        return work.key.encode(), b""

    def read(self, work: UnitWork, reply: Reply) -> None:
        word = reply.data.decode()
        if word == "made":
            self.made.append(work.key)
            return
        if word == "refused":
            raise LacksError(Lack("g++", "g++ 13", ""))
        if word == "failed":
            raise CaptureError("the model is wrong", where=work.name)
        raise WrongAnswerError(word)


class RecordingWatcher:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.shown: list[UnitProgress] = []

    def made(self, work: UnitWork, worker: str, seconds: float) -> None:
        self.lines.append(f"{work.name} made on {worker} in {seconds:g} s")

    def again(self, work: UnitWork, reason: str) -> None:
        self.lines.append(f"{work.name} again: {reason}")

    def given_up(self, work: UnitWork, reason: str) -> None:
        self.lines.append(f"{work.name} given up: {reason}")

    def said(self, text: str) -> None:
        self.lines.append(text)

    def show(self, progress: UnitProgress) -> None:
        self.shown.append(progress)


def making(works: Iterable[UnitWork]) -> Make:
    """Return what workers do that make every unit in the time that it is said to take."""
    seconds = {work.key: work.seconds or 1.0 for work in works}
    return lambda worker, key: (seconds[key], b"made")


def scheduler_of(engine: SimulatedEngine, desk: SimulatedDesk, watcher: RecordingWatcher | None = None) -> Scheduler:
    return Scheduler(engine.open, desk, watcher or RecordingWatcher(), engine)


def makespan(works: Sequence[UnitWork], workers: int) -> float:
    """Return the simulated seconds in which workers make units."""
    engine = SimulatedEngine(workers, making(works))
    desk = SimulatedDesk()
    assert scheduler_of(engine, desk).run(works) == {}
    assert len(desk.made) == len(works)
    return engine.now()


def shortest_makespan(works: Sequence[UnitWork], workers: int) -> float:
    """Return a time in which it cannot be done faster: all workers busy, or the longest unit."""
    seconds = [work.seconds or 0.0 for work in works]
    return max(sum(seconds) / workers, *seconds)


def mixed_units(count: int, seed: int) -> list[UnitWork]:
    """Return units of mixed costs: short ones and long ones."""
    chance = random.Random(seed)
    costs = (lambda: chance.uniform(1, 5), lambda: chance.lognormvariate(2, 1), lambda: chance.uniform(30, 120))
    return [UnitWork(str(number), f"unit {number}", chance.choice(costs)()) for number in range(count)]
