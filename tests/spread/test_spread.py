"""Builds whose units an executor makes: the wheel is that of a local build, whatever happens to the workers.

What each executor itself does is tried without builds, in `test_executors`; some builds are for long runs therefore.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import PATIENCE, is_running, start, wait_for, with_variable
from support.scenarios import Project, sha256
from support.shared import Shared
from support.venv import Finished

pytestmark = [pytest.mark.isolated, pytest.mark.slow]
TESTS = Path(__file__).parents[1]
# it writes into no home folder then, and asks nobody
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
PROCESSES = "support.pool_units:two_processes"


@pytest.fixture
def scenario(project: Callable[[str], Project]) -> Project:
    """A project with two models of two recipes each."""
    scenario = project("two_methods")
    entry = 'two_methods = "two_methods.model:export"\n'
    scenario.edit("pyproject.toml", entry, f'{entry}again = "two_methods.model:export"\n')
    return scenario


@pytest.fixture
def local(scenario: Project, shared: Shared) -> str:
    """The digest of the wheel that is built without an executor."""

    def make(folder: Path) -> None:
        (folder / "digest").write_text(sha256(apart(scenario, "local").wheel()))

    return (shared.once("wheel-of-two-models", make) / "digest").read_text()


@pytest.fixture(scope="module")
def dask_address() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 60}
    with distributed.LocalCluster(n_workers=2, **options) as cluster:
        yield cluster.scheduler_address


def executor_of(engine: str, request: pytest.FixtureRequest) -> str:
    if engine == "dask":
        return f"dask:{request.getfixturevalue('dask_address')}"
    if engine == "ray":
        pytest.importorskip("ray")
        return "ray"
    return PROCESSES


def apart(scenario: Project, name: str) -> Project:
    """Return the project with a cache and a folder of wheels of its own."""
    return replace(scenario, dist=scenario.root.parent / name / "dist", cache=scenario.root.parent / name / "cache")


def build(scenario: Project, executor: str, **environment: str) -> Finished:
    variables = {"HATCH_LOWER_EXECUTOR": executor, "PYTHONPATH": str(TESTS), "HATCH_VERBOSE": "1", **environment}
    return scenario.build(environment=variables).check()


def made_elsewhere(done: Finished) -> list[str]:
    return sorted(re.findall(r"lower  (\S+) +unit +\S+ s  on ", done.stderr))


UNITS = ["again/default", "again/portable", "two_methods/default", "two_methods/portable"]
LONG = pytest.mark.long


@pytest.mark.parametrize("engine", ["dask", *(pytest.param(engine, marks=LONG) for engine in ("ray", "processes"))])
def test_the_wheel_is_that_of_a_local_build(
    engine: str, scenario: Project, local: str, request: pytest.FixtureRequest
) -> None:
    executor = executor_of(engine, request)
    if engine == "ray":
        scenario.edit("pyproject.toml", 'backends = ["reference"]', 'backends = ["reference"]\njobs = 2')
    machine = apart(scenario, engine)
    done = build(machine, executor, **RAY)
    assert made_elsewhere(done) == UNITS
    (wheel,) = machine.dist.glob("*.whl")
    assert sha256(wheel) == local
    assert made_elsewhere(build(machine, executor)) == []


# Where the export begins for the first time it never ends; later it does
ONCE = """    marker = Path(os.environ["SLOW_MARKER"])
    if marker.exists():
        import torch

        return torch.nn.ReLU().eval(), (torch.zeros(2),)
    marker.with_suffix(".new").write_text(str(os.getppid()))
"""


@pytest.mark.parametrize(
    ("engine", "ended_by"),
    [
        ("dask", signal.SIGINT),
        pytest.param("ray", signal.SIGINT, marks=LONG),
        ("processes", signal.SIGINT),
        ("processes", signal.SIGTERM),
    ],
)
def test_ctrl_c_ends_what_runs_on_workers_and_so_does_sigterm(
    engine: str,
    ended_by: signal.Signals,
    project: Callable[[str], Project],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    executor = executor_of(engine, request)
    slow, marker = project("slow"), tmp_path / "marker"
    variables = {"SLOW_MARKER": str(marker), "HATCH_LOWER_EXECUTOR": executor, "PYTHONPATH": str(TESTS), **RAY}
    process = start(slow, variables)
    wait_for(marker.exists, "the export began", process)
    if engine == "processes" and ended_by == signal.SIGINT:  # as a terminal does
        os.killpg(process.pid, ended_by)
    else:
        process.send_signal(ended_by)
    output = "".join(process.communicate(timeout=PATIENCE))
    assert process.returncode == 128 + ended_by, output
    assert ("hatch-lower: interrupted" in output) == (ended_by == signal.SIGINT)
    wait_for(lambda: not with_variable("SLOW_MARKER", str(marker)), "all that runs to end")
    assert not is_running(int(marker.read_text()))
    assert slow.left_behind() == []


def start_once_slow(slow: Project, marker: Path, executor: str) -> subprocess.Popen[str]:
    """Start a build whose first export never ends."""
    source = (slow.root / "slow/model.py").read_text()
    head, _, tail = source.partition('    marker = Path(os.environ["SLOW_MARKER"])\n')
    code = (head + ONCE + tail.partition("\n")[2]).replace("from hatch_lower import Model\n", "")
    (slow.root / "slow/model.py").write_text(code.replace("-> Model", ""))
    variables = {"SLOW_MARKER": str(marker), "HATCH_LOWER_EXECUTOR": executor, "PYTHONPATH": str(TESTS)}
    return start(slow, {**variables, "HATCH_VERBOSE": "1"})


@LONG
@pytest.mark.parametrize("engine", ["dask", "processes"])
def test_a_worker_that_is_killed_costs_no_unit(
    engine: str, project: Callable[[str], Project], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    executor = executor_of(engine, request)
    slow, marker = project("slow"), tmp_path / "marker"
    process = start_once_slow(slow, marker, executor)
    wait_for(marker.exists, "the export began", process)
    os.kill(int(marker.read_text()), signal.SIGKILL)
    output = "".join(process.communicate(timeout=PATIENCE))
    assert process.returncode == 0, output
    assert re.findall(r"lower  (\S+) +unit ", output) == ["slow/default"]
    assert "made by this build" not in output
    (wheel,) = slow.dist.glob("*.whl")
    assert wheel.stat().st_size


@LONG
def test_a_scheduler_that_goes_leaves_the_rest_to_the_build(project: Callable[[str], Project], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 60}
    slow, marker = project("slow"), tmp_path / "marker"
    with distributed.LocalCluster(n_workers=1, **options) as cluster:
        process = start_once_slow(slow, marker, f"dask:{cluster.scheduler_address}")
        wait_for(marker.exists, "the export began", process)
    output = "".join(process.communicate(timeout=PATIENCE))
    assert process.returncode == 0, output
    assert "slow: the executor was lost: its scheduler does not answer" in output
    assert "slow/default: made by this build: the scheduler of Dask cannot be reached" in output
    (wheel,) = slow.dist.glob("*.whl")
    assert wheel.stat().st_size


def test_a_unit_that_fails_says_so_with_its_worker_and_its_log(project: Callable[[str], Project]) -> None:
    broken = project("slow")
    text = "    print('about to break')\n    raise ValueError('no such weights')\n"
    broken.edit("slow/model.py", '    marker = Path(os.environ["SLOW_MARKER"])\n', text)
    done = broken.build(environment={"HATCH_LOWER_EXECUTOR": PROCESSES, "PYTHONPATH": str(TESTS), "HATCH_VERBOSE": "1"})
    assert done.status == 1
    assert re.search(r"where: .*, on the worker \S+:\d+", done.stderr)
    assert "no such weights" in done.stderr
    assert "about to break" in done.stderr
    assert "Traceback" not in done.stderr.partition("hatch-lower: ")[2].partition("found")[0]
