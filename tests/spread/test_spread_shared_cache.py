"""Builds with workers and a shared cache: results go there, or through the engine where a worker may not push."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.cache_server import CacheServer, cache_server
from support.clusters import cluster
from support.dav import dav_server
from support.scenarios import Project, only, sha256
from support.venv import Finished

from hatch_lower.cache.remote.signing import new_key_pair

pytestmark = [pytest.mark.isolated, pytest.mark.slow]
TESTS = Path(__file__).parents[1]
UNITS = ["two_methods/default", "two_methods/portable"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CacheServer]:
    with cache_server(tmp_path / "served") as running:
        yield running


@pytest.fixture
def keys(server: CacheServer) -> tuple[dict[str, str], dict[str, str]]:
    """Variables of whoever reads the shared cache, and of whoever may sign what goes there."""
    pair = new_key_pair()
    reading = {"HATCH_LOWER_REMOTE_CACHE": server.url, "HATCH_LOWER_PUBLIC_KEYS": pair.public}
    return reading, {"HATCH_LOWER_SIGNING_KEY": pair.private}


PUSH = {"HATCH_LOWER_REMOTE_PUSH": "1"}


def build(scenario: Project, name: str, executor: str, variables: Mapping[str, str]) -> Finished:
    place = replace(scenario, dist=scenario.dist / name, cache=scenario.cache / name)
    own = {"HATCH_LOWER_EXECUTOR": executor, "PYTHONPATH": str(TESTS), "HATCH_VERBOSE": "1"}
    return place.build(environment={**own, **variables})


def made_elsewhere(done: Finished) -> list[str]:
    return sorted(re.findall(r"lower  (\S+) +unit +\S+ s  on ", done.stderr))


def sent(server: CacheServer) -> Counter[str]:
    """Return how often each entry was sent, by path, but for costs: those are measured again."""
    return Counter(path for path in server.sent() if server.kind_of(path) != "cost")


# that a build sends what it is given is in `test_run_unit`, too
@pytest.mark.parametrize("who", ["workers", pytest.param("the build", marks=pytest.mark.long)])
def test_whoever_may_push_sends_what_workers_made(
    who: str,
    project: Callable[[str], Project],
    built: Callable[[str], Path],
    server: CacheServer,
    keys: tuple[dict[str, str], dict[str, str]],
    tmp_path: Path,
) -> None:
    reading, signing = keys
    pushing = {**reading, **signing, **PUSH}
    scenario = project("two_methods")
    with cluster(tmp_path / "machine", 2, pushing if who == "workers" else {**reading, **signing}) as running:
        executor = f"dask:{running.scheduler_address}"
        done = build(scenario, "a", executor, reading if who == "workers" else pushing).check()
    assert made_elsewhere(done) == UNITS
    assert "answered wrongly" not in done.stderr
    assert set(sent(server).values()) == {1}
    assert sha256(only(scenario.dist / "a", "*.whl")) == sha256(built("two_methods"))
    if who == "workers":  # all that is there is theirs, and the build got it from there
        assert set(sent(server)) <= {each["path"] for each in server.requests() if each["method"] == "GET"}
    build(scenario, "b", "local", {**reading, "HATCH_LOWER_CACHE": "frozen"}).check()


def test_workers_without_a_key_refuse_and_the_build_says_which(
    project: Callable[[str], Project], keys: tuple[dict[str, str], dict[str, str]], tmp_path: Path
) -> None:
    reading, signing = keys
    scenario = project("two_methods")
    with cluster(tmp_path / "machine", 2, reading) as running:
        done = build(scenario, "a", f"dask:{running.scheduler_address}", {**reading, **signing, **PUSH})
    assert done.status == 1
    assert "no worker can make a unit of this build" in done.stderr
    assert len(re.findall(r"tcp://\S+: has no key for signatures, where ", done.stderr)) >= 2


def test_processes_of_the_build_send_entries_themselves(
    project: Callable[[str], Project], built: Callable[[str], Path], tmp_path: Path
) -> None:
    scenario = project("two_methods")
    with dav_server(tmp_path / "served") as address:
        shared = {"HATCH_LOWER_REMOTE_CACHE": address, "HATCH_LOWER_PUBLIC_KEYS": "any"}
        done = build(scenario, "a", "support.pool_units:two_processes", {**shared, **PUSH}).check()
        assert made_elsewhere(done) == UNITS
        build(scenario, "b", "local", {**shared, "HATCH_LOWER_CACHE": "frozen"}).check()
    for name in ("a", "b"):
        assert sha256(only(scenario.dist / name, "*.whl")) == sha256(built("two_methods"))
