"""Executors on real clusters of two workers: units that run, end, are cancelled, and workers and schedulers that go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from support.pool_units import RAISED, RETURNED, make_request, run_unit
from support.processes import is_running

from hatch_lower.driver.spread.executors.choose import opener
from hatch_lower.driver.spread.pool import LostConnectionError, LostWorkerError, NoWorkerError, WorkerPool
from hatch_lower.errors import ExecutorError

pytestmark = [pytest.mark.processes, pytest.mark.slow]
TESTS = Path(__file__).parents[1]
NOBODY = frozenset[str]()
SECONDS = 180.0

Open = Callable[[], WorkerPool]


def executor(name: str, work: Path) -> Open:
    return opener(name, name, 2, work, run_unit)


def start_dask(workers: int) -> Any:
    distributed = pytest.importorskip("distributed")
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 60}
    return distributed.LocalCluster(n_workers=workers, **options)


@pytest.fixture(scope="module")
def dask_cluster() -> Iterator[Any]:
    cluster = start_dask(2)
    yield cluster
    cluster.close()


@pytest.fixture
def mortal_dask_cluster() -> Iterator[Any]:
    """Start one worker more than Dask gives a unit to: on a busy machine, Dask does not restart each killed worker."""
    cluster = start_dask(5)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    from hatch_lower.driver.spread.executors.ray import remember_process

    restore = remember_process()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))  # workers import what units do
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes into the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()
    restore()


@pytest.fixture(params=["dask", "ray", "processes"])
def open_pool(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param.endswith("dask"):
        cluster = request.getfixturevalue(f"{request.param.replace(' ', '_')}_cluster")
        return executor(f"dask:{cluster.scheduler_address}", tmp_path)
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return executor("ray", tmp_path)
    return executor("support.pool_units:two_processes", tmp_path)


@pytest.fixture
def pool(open_pool: Open) -> Iterator[WorkerPool]:
    pool = open_pool()
    yield pool
    pool.close(cancel=True)


def await_text(path: Path, good: Callable[[str], bool] = bool) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        if good(text):
            return text
        time.sleep(0.05)
    raise AssertionError(f"{path} was not written as expected")


def test_units_run_on_two_workers_with_what_they_share(pool: WorkerPool) -> None:
    snapshot = b"a" * 1_000_000
    futures = [pool.submit(make_request(seconds=0.2), snapshot, NOBODY) for _ in range(6)]
    replies = [future.result(SECONDS) for future in futures]
    assert [json.loads(reply.data) for reply in replies] == [["made", 1_000_000]] * 6
    assert all(reply.worker for reply in replies)
    assert pool.size() == 2


def test_a_unit_that_runs_is_ended_when_the_build_is_cancelled(open_pool: Open, tmp_path: Path) -> None:
    pool = open_pool()
    pool.submit(make_request(note=str(tmp_path / "note"), seconds=SECONDS), b"", NOBODY)
    assert int(await_text(tmp_path / "note"))
    pool.close(cancel=True)
    assert await_text(tmp_path / "note", lambda text: text == "cancelled")


@pytest.mark.parametrize("open_pool", ["mortal dask", "ray", "processes"], indirect=True)
def test_a_worker_that_is_killed_is_lost_and_the_unit_can_be_made_again(
    open_pool: Open, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pool = open_pool()
    future = pool.submit(make_request(note=str(tmp_path / "note"), seconds=2.0), b"", NOBODY)
    os.kill(int(await_text(tmp_path / "note")), signal.SIGKILL)
    error = future.exception(SECONDS)
    if isinstance(error, LostConnectionError):  # an executor of processes is of no use after that
        pool.close(cancel=False)
        pool = open_pool()
    if error is not None:  # Dask tries again by itself
        assert isinstance(error, LostWorkerError | LostConnectionError)
        future = pool.submit(make_request(), b"", NOBODY)
    assert json.loads(future.result(SECONDS).data) == ["made", 0]
    pool.close(cancel=True)


def test_what_a_worker_raises_arrives(pool: WorkerPool) -> None:
    error = pool.submit(make_request(missing=True), b"", NOBODY).exception(SECONDS)
    assert isinstance(error, ModuleNotFoundError)
    assert str(error) == "No module named 'hatch_lower.driver.spread'"


@pytest.mark.parametrize("returned", RETURNED)
def test_what_is_no_answer_is_empty_or_an_error_and_not_waited_for(pool: WorkerPool, returned: str) -> None:
    future = pool.submit(make_request(returns=returned), b"", NOBODY)
    error = future.exception(SECONDS)
    assert error is not None or future.result().data == b""


@pytest.mark.parametrize(
    ("open_pool", "raised"),
    [(engine, raised) for engine in ("dask", "ray", "processes") for raised in RAISED if raised != "end"]
    + [(engine, "end") for engine in ("mortal dask", "ray", "processes")],
    indirect=["open_pool"],
)
def test_whatever_a_worker_raises_ends_the_unit(pool: WorkerPool, raised: str) -> None:
    error = pool.submit(make_request(raises=raised), b"", NOBODY).exception(SECONDS)
    assert error is not None
    assert str(error) != "its task was cancelled" or raised == "cancelled"


def test_a_worker_that_is_avoided_gets_no_unit(dask_cluster: Any, tmp_path: Path) -> None:
    pool = executor(f"dask:{dask_cluster.scheduler_address}", tmp_path)()
    first = pool.submit(make_request(), b"", NOBODY).result(SECONDS).worker
    # so many that the idle worker steals from the queue of the other
    others = [pool.submit(make_request(seconds=0.1), b"", frozenset({first})) for _ in range(20)]
    (second,) = {future.result(SECONDS).worker for future in others}
    assert second != first
    with pytest.raises(NoWorkerError):
        pool.submit(make_request(), b"", frozenset({first, second}))
    pool.close(cancel=False)


def test_a_unit_goes_to_any_worker_if_all_that_may_make_it_are_gone(tmp_path: Path) -> None:
    cluster = start_dask(2)
    pool = executor(f"dask:{cluster.scheduler_address}", tmp_path)()
    first = pool.submit(make_request(), b"", NOBODY).result(SECONDS).worker
    note = tmp_path / "note"
    pool.submit(make_request(seconds=SECONDS, note=str(note)), b"", frozenset({first}))
    waiting = pool.submit(make_request(), b"", frozenset({first}))
    os.kill(int(await_text(note)), signal.SIGKILL)
    assert json.loads(waiting.result(SECONDS).data)[0] == "made"
    pool.close(cancel=True)
    cluster.close()


def test_the_only_node_of_ray_cannot_be_avoided(ray_cluster: None, tmp_path: Path) -> None:
    pool = executor("ray", tmp_path)()
    worker = pool.submit(make_request(), b"", NOBODY).result(SECONDS).worker
    with pytest.raises(NoWorkerError):
        pool.submit(make_request(), b"", frozenset({worker}))
    pool.close(cancel=False)


def test_an_address_that_is_not_there_ends_no_connection_of_others(ray_cluster: None, tmp_path: Path) -> None:
    import ray

    with pytest.raises(ExecutorError, match="the cluster of Ray cannot be reached"):
        executor("ray:127.0.0.1:1", tmp_path)()
    assert ray.is_initialized()


def test_what_ray_changes_in_the_process_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from hatch_lower.driver.spread.executors.ray import remember_process

    handler = signal.getsignal(signal.SIGTERM)
    for value in ({}, {"PYTHONBREAKPOINT": "0"}):
        monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
        os.environ.update(value)
        restore = remember_process()
        os.environ["PYTHONBREAKPOINT"] = "ray.util.rpdb._driver_set_trace"
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        restore()
        assert {name: text for name, text in os.environ.items() if name == "PYTHONBREAKPOINT"} == value
        assert signal.getsignal(signal.SIGTERM) is handler


def test_a_unit_that_ends_four_workers_of_dask_is_lost_twice(mortal_dask_cluster: Any, tmp_path: Path) -> None:
    pool = executor(f"dask:{mortal_dask_cluster.scheduler_address}", tmp_path)()
    error = pool.submit(make_request(exit=1), b"", NOBODY).exception(SECONDS)
    assert isinstance(error, LostWorkerError)
    assert error.times == 2
    assert str(error) == "4 workers that had it ended"
    pool.close(cancel=False)


def test_a_worker_without_hatch_lower_says_so_and_lives(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['hatch_lower'] = None; from distributed.cli.dask_worker import main; main()"
    with start_dask(0) as cluster:
        command = [sys.executable, "-c", hidden, cluster.scheduler_address, "--no-nanny", "--no-dashboard"]
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
        pool = executor(f"dask:{cluster.scheduler_address}", tmp_path)()
        errors = [pool.submit(make_request(), b"", NOBODY).exception(SECONDS) for _ in range(2)]
        assert [type(error) for error in errors] == [ModuleNotFoundError] * 2
        assert worker.poll() is None
        pool.close(cancel=False)
        worker.terminate()
        worker.wait(SECONDS)


def test_a_cluster_that_is_started_for_a_build_ends_with_it(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    pool = executor("dask", tmp_path)()
    note = tmp_path / "note"
    pool.submit(make_request(seconds=SECONDS, note=str(note)), b"", NOBODY)
    process = int(await_text(note))
    assert pool.size() == 2
    pool.close(cancel=True)
    deadline = time.monotonic() + SECONDS
    while is_running(process) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(process)


def test_two_builds_on_one_cluster_do_not_meet(dask_cluster: Any, tmp_path: Path) -> None:
    pools = [executor(f"dask:{dask_cluster.scheduler_address}", tmp_path)() for _ in range(2)]
    futures = [pool.submit(make_request(answer=name), b"", NOBODY) for pool, name in zip(pools, "ab", strict=True)]
    assert [json.loads(future.result(SECONDS).data)[0] for future in futures] == ["a", "b"]
    note = tmp_path / "note"
    running = [pools[1].submit(make_request(seconds=1.0, note=str(note)), b"", NOBODY)]
    await_text(note)
    pools[0].close(cancel=True)
    wait(running, SECONDS)
    assert json.loads(running[0].result().data)[0] == "made"
    pools[1].close(cancel=False)


def test_jobs_of_submitit_are_units_and_end_with_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("JOBS_FOLDER", str(tmp_path / "jobs"))
    pool, note = executor("support.pool_units:jobs", tmp_path)(), tmp_path / "note"
    assert pool.size() is None
    made = pool.submit(make_request(), b"abc", NOBODY)
    raising = pool.submit(make_request(missing=True), b"", NOBODY)
    killed = pool.submit(make_request(note=str(note), seconds=SECONDS), b"", NOBODY)
    os.kill(int(await_text(note)), signal.SIGKILL)
    assert json.loads(made.result(SECONDS).data) == ["made", 3]
    assert str(raising.exception(SECONDS)) == "ModuleNotFoundError: No module named 'hatch_lower.driver.spread'"
    assert isinstance(killed.exception(SECONDS), LostWorkerError)
    note.unlink()
    pool.submit(make_request(note=str(note), seconds=SECONDS), b"", NOBODY)
    await_text(note)
    pool.close(cancel=True)
    assert await_text(note, lambda text: text == "cancelled")


def test_a_scheduler_of_dask_that_goes_is_a_lost_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start_dask(1)
    open_pool = executor(f"dask:{cluster.scheduler_address}", tmp_path)
    pool = open_pool()
    future = pool.submit(make_request(seconds=SECONDS, note=str(tmp_path / "note")), b"", NOBODY)
    await_text(tmp_path / "note")
    cluster.close()
    assert isinstance(future.exception(SECONDS), LostConnectionError)
    with pytest.raises(LostConnectionError):
        pool.submit(make_request(), b"", NOBODY)
    pool.close(cancel=False)
    monkeypatch.setattr("hatch_lower.driver.spread.executors.dask.CONNECT_SECONDS", 1.0)
    with pytest.raises(ExecutorError, match="the scheduler of Dask cannot be reached"):
        open_pool()


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_scheduler_that_is_not_there_is_an_error(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed" if engine == "dask" else "ray")
    monkeypatch.setattr(f"hatch_lower.driver.spread.executors.{engine}.CONNECT_SECONDS", 1.0)
    with pytest.raises(ExecutorError) as caught:
        executor(f"{engine}:127.0.0.1:1", tmp_path)()
    assert "cannot be reached" in caught.value.what
    assert caught.value.where == "`executor`"
    assert caught.value.found.startswith("127.0.0.1:1: ")
