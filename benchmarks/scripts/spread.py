"""`spread.py [ENGINE…]`: how units spread over workers, as a table; engines are `dask`, `ray` and `processes`.

Simulated workers have a simulated clock, and the scheduler is the real one: what it takes itself, in seconds and bytes,
is measured. An engine has two workers on this machine. Units that only wait are also run by eight threads.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))
os.environ["PYTHONPATH"] = sys.path[0]  # workers import it too

from support.pool_units import make_request, run_unit  # noqa: E402
from support.simulated import (  # noqa: E402
    RecordingWatcher,
    SimulatedDesk,
    SimulatedEngine,
    making,
    mixed_units,
    scheduler_of,
    shortest_makespan,
)

from hatch_lower.driver.spread.executors.choose import opener  # noqa: E402
from hatch_lower.driver.spread.pool import Reply, UnitWork, WorkerPool  # noqa: E402
from hatch_lower.driver.spread.scheduler import Scheduler, UnitClock  # noqa: E402

UNITS, WORKERS = 32, 8
NO_OPS = 500
WAIT_SECONDS = 1.0
KILLS = 20


class JsonDesk:
    """Units that do nothing, or wait."""

    def __init__(self, seconds: float) -> None:
        self._request = make_request(seconds=seconds)

    def request(self, work: UnitWork) -> tuple[bytes, bytes]:
        return self._request, b""

    def read(self, work: UnitWork, reply: Reply) -> None:
        assert json.loads(reply.data)[0] == "made"


def main(*engines: str) -> None:
    """Print the rows."""
    print("| measure | to reach | reached |\n|---|---|---|")
    equal = [UnitWork(str(number), str(number), seconds=10.0) for number in range(UNITS)]
    faster = simulated(equal, 1) / simulated(equal, WORKERS)
    row(f"{UNITS} equal units on {WORKERS} simulated workers, by one", "at least 7", f"{faster:.2f}")
    for count in (1000, 10_000):
        ratios, seconds = [], []
        for seed in range(5):
            works = mixed_units(count, seed)
            began = time.process_time()
            ratios.append(simulated(works, 100) / shortest_makespan(works, 100))
            seconds.append(time.process_time() - began)
        row(
            f"{count:,} mixed units on 100 simulated workers: makespan by its bound",
            "at most 1.15",
            f"{max(ratios):.3f}",
        )
        each = f"{min(seconds) / count * 1e6:.0f} µs and {memory(count) / count:.0f} bytes a unit"
        row(f"{count:,} units: what the scheduler itself takes", "linear", each)
    row(f"{KILLS} kills of 8 simulated workers", "each unit once", killed(equal))
    for engine in engines:
        with pool_of(engine) as open_pool:
            took = real(open_pool, NO_OPS, 0.0)
            each = f"{took / NO_OPS * 1e3:.1f} ms"
            row(f"{engine}: {NO_OPS} units that do nothing, 2 workers", "at most 30 ms a unit", each)
    with ThreadPoolExecutor(WORKERS) as eight:
        took = real(lambda: ThreadPool(eight), UNITS, WAIT_SECONDS)
    faster = UNITS * WAIT_SECONDS / took
    row(f"{UNITS} units that wait {WAIT_SECONDS:g} s, on {WORKERS} threads, by one", "at least 7", f"{faster:.2f}")


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def simulated(works: list[UnitWork], workers: int) -> float:
    engine = SimulatedEngine(workers, making(works))
    assert scheduler_of(engine, SimulatedDesk()).run(works) == {}
    return engine.now()


def memory(count: int) -> int:
    """Return the bytes that the scheduler takes beyond the units themselves."""
    works = mixed_units(count, 0)
    tracemalloc.start()
    simulated(works, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def killed(works: list[UnitWork]) -> str:
    engine = SimulatedEngine(WORKERS, making(works))
    chance = random.Random(0)
    for number in range(KILLS):
        engine.at(1.0 + 2.0 * number, lambda: engine.kill_one(chance.choice))
    desk = SimulatedDesk()
    given_up = scheduler_of(engine, desk).run(works)
    return f"{len(set(desk.made))} units made {len(desk.made)} times, {len(given_up)} given up"


class ThreadPool:
    """Threads of this process as a pool that stays open."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    def submit(self, request: bytes, snapshot: bytes, avoid: frozenset[str]) -> object:
        return self._executor.submit(lambda: Reply("thread", run_unit(request)))

    def size(self) -> int:
        return WORKERS

    def close(self, *, cancel: bool) -> None:
        pass


@contextmanager
def pool_of(engine: str) -> Iterator[Callable[[], WorkerPool]]:
    name = {"processes": "support.pool_units:two_processes"}.get(engine, engine)
    with tempfile.TemporaryDirectory() as folder:
        yield opener(name, name, 2, Path(folder), run_unit)


def real(open_pool: Callable[[], object], count: int, seconds: float) -> float:
    """Return the seconds that units take, without those to connect and for the first of each worker."""
    pool = open_pool()
    for _ in range(2):
        waited = [pool.submit(make_request(seconds=0.2), b"", frozenset()) for _ in range(2)]
        for future in waited:
            future.result()
    works = [UnitWork(str(number), str(number)) for number in range(count)]
    began = time.perf_counter()
    ends: list[float] = []

    class Timed(RecordingWatcher):
        def made(self, work: UnitWork, worker: str, seconds: float) -> None:
            ends.append(time.perf_counter())

    given_up = Scheduler(lambda: pool, JsonDesk(seconds), Timed(), UnitClock()).run(works)
    assert given_up == {}
    assert len(ends) == count
    return ends[-1] - began


if __name__ == "__main__":
    main(*sys.argv[1:])
