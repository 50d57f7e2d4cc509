"""Builds whose units an executor makes: the wheel is that of a local build, whatever happens to the workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.scenarios import Project, sha256
from support.shared import Shared
from support.venv import Finished

pytestmark = [pytest.mark.isolated, pytest.mark.slow]
TESTS = Path(__file__).parents[1]
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


def apart(scenario: Project, name: str) -> Project:
    """Return the project with a cache and a folder of wheels of its own."""
    return replace(scenario, dist=scenario.root.parent / name / "dist", cache=scenario.root.parent / name / "cache")


def build(scenario: Project, executor: str, **environment: str) -> Finished:
    variables = {"HATCH_LOWER_EXECUTOR": executor, "PYTHONPATH": str(TESTS), "HATCH_VERBOSE": "1", **environment}
    return scenario.build(environment=variables).check()


def made_elsewhere(done: Finished) -> list[str]:
    return sorted(re.findall(r"lower  (\S+) +unit +\S+ s  on ", done.stderr))


UNITS = ["again/default", "again/portable", "two_methods/default", "two_methods/portable"]


@pytest.mark.parametrize("engine", ["dask", "ray", "processes"])
def test_the_wheel_is_that_of_a_local_build(
    engine: str, scenario: Project, local: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip({"dask": "distributed", "ray": "ray"}.get(engine, "concurrent"))
    executor = {"processes": PROCESSES, "ray": "ray"}.get(engine) or f"dask:{request.getfixturevalue('dask_address')}"
    if engine == "ray":
        scenario.edit("pyproject.toml", 'backends = ["reference"]', 'backends = ["reference"]\njobs = 2')
    machine = apart(scenario, engine)
    done = build(machine, executor, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    assert made_elsewhere(done) == UNITS
    (wheel,) = machine.dist.glob("*.whl")
    assert sha256(wheel) == local
    assert made_elsewhere(build(machine, executor)) == []
