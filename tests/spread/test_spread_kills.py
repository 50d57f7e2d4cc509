"""Builds whose workers are killed again and again, while the shared cache and the scheduler come and go: for long runs.

Each of it by itself is in short ones: `test_spread` and `test_executors` kill workers and close schedulers,
`test_scheduler` kills twenty in simulated time, and `test_run_unit` finds what killed ones have left.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cache_server import cache_server
from support.clusters import cluster
from support.processes import start, wait_for, with_variable
from support.proxy import proxy
from support.scenarios import Project, only, sha256

from hatch_lower.cache.remote.signing import new_key_pair
from hatch_lower.driver.inputs.preload import UNFINISHED

pytestmark = [pytest.mark.isolated, pytest.mark.slow, pytest.mark.long]

# kinds of entries whose values grow: what exports have read, and what recipes took
REWRITTEN = frozenset({"manifest", "unit", "cost"})
KILLS, MODELS, WORKERS = 20, 10, 3
MOST_SECONDS = 400.0


@pytest.fixture
def slow(project: Callable[[str], Project]) -> Project:
    """A project whose models take a while to export."""
    slow = project("two_methods")
    entry = 'two_methods = "two_methods.model:export"\n'
    names = [f'model{number} = "two_methods.model:export"\n' for number in range(MODELS)]
    slow.edit("pyproject.toml", entry, "".join(names))
    slow.edit("src/two_methods/model.py", "    tokens = ", "    import time\n\n    time.sleep(2)\n    tokens = ")
    return slow


def family(pid: int) -> list[int]:
    """Return a process and all that it started, down to the last."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def kill_some(running: Any, process: subprocess.Popen[str], events: Mapping[int, Callable[[], object]]) -> int:
    """Kill workers at random moments as long as a build runs, all that are wanted; return how many were."""
    chance = random.Random(8)
    killed = 0
    while killed < KILLS and process.poll() is None:
        time.sleep(chance.uniform(0.5, 4.0))
        workers = [worker.pid for worker in running.workers.values() if worker.pid and len(family(worker.pid)) > 1]
        if not workers:
            continue
        victim = chance.choice(workers)
        # some lose all at once, of others the children notice by themselves
        for pid in family(victim) if chance.random() < 0.5 else [victim]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed += 1
        events.get(killed, nothing)()
    return killed


def nothing() -> None:
    pass


def test_workers_that_are_killed_change_nothing(slow: Project, tmp_path: Path) -> None:
    wheel = sha256(slow.wheel())
    pair = new_key_pair()
    keys = {"HATCH_LOWER_PUBLIC_KEYS": pair.public, "HATCH_LOWER_SIGNING_KEY": pair.private}
    machine, temporary = tmp_path / "machine", tmp_path / "temporary"
    temporary.mkdir()
    place = replace(slow, dist=tmp_path / "elsewhere", cache=tmp_path / "parent")
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(contextlib.ExitStack())
        server = served.enter_context(cache_server(tmp_path / "served"))
        shared = {"HATCH_LOWER_REMOTE_CACHE": server.url, "HATCH_LOWER_REMOTE_PUSH": "1", **keys}
        running = stack.enter_context(cluster(machine, WORKERS, shared))
        way = stack.enter_context(proxy(running.scheduler_address))

        def serve_again() -> None:
            served.enter_context(cache_server(tmp_path / "served", port=int(server.url.rpartition(":")[2])))

        variables = {**shared, "HATCH_LOWER_EXECUTOR": f"dask:{way.address}", "TMPDIR": str(temporary)}
        process = start(place, {**variables, "HATCH_VERBOSE": "1"})
        with ThreadPoolExecutor(1) as thread:
            said = thread.submit(process.communicate)
            killed = kill_some(
                running, process, {KILLS // 3: served.close, KILLS // 2 + 1: way.cut, KILLS * 2 // 3 + 1: serve_again}
            )
            output = "".join(said.result(MOST_SECONDS))
        print(output)  # how many units were left to the build
        assert process.returncode == 0, output
        assert killed == KILLS, output
        assert "two-methods: the executor was lost: its scheduler does not answer" in output
        assert sha256(only(place.dist, "*.whl")) == wheel
        wait_for(lambda: not with_variable("HATCH_LOWER_REMOTE_CACHE", server.url), "what workers started to end")
        # the next unit on that machine removes what the killed ones left
        (slow.root / "src/two_methods/scale.txt").write_text("2.0")
        done = replace(place, dist=tmp_path / "next").build(environment=variables).check()
        assert "answered wrongly" not in done.output
    for folder in (machine / "temporary", temporary):
        assert list(folder.glob("hatch-lower-*")) == []
    files = [*machine.rglob("*"), *place.cache.rglob("*")]
    assert [path for path in files if path.suffix == ".part" or path.name.startswith(UNFINISHED)] == []
    results = Counter(path for path in server.sent() if server.kind_of(path) not in REWRITTEN)
    assert len(results) > 2 * MODELS
    assert set(results.values()) == {1}
