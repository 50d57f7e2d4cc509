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
from support.scenarios import Project, only, sha256
from support.venv import Finished

from hatch_lower.cache.remote.action_result import decode_action_result
from hatch_lower.cache.remote.client import ENVELOPE
from hatch_lower.cache.remote.envelope import read_envelope
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
    paths = (each["path"] for each in server.requests() if each["method"] == "PUT" and "/ac/" in each["path"])
    return Counter(path for path in paths if kind_of(server, path) != "cost")


def kind_of(server: CacheServer, path: str) -> object:
    files = decode_action_result(server.object("ac", Path(path).name).read_bytes())
    (envelope,) = (file for file in files if file.path == ENVELOPE)
    entry, _ = read_envelope(server.object("cas", envelope.sha256).read_bytes())
    return entry.components.get("kind")


def test_workers_that_may_push_send_entries_and_answer_with_keys(
    project: Callable[[str], Project],
    built: Callable[[str], Path],
    server: CacheServer,
    keys: tuple[dict[str, str], dict[str, str]],
    tmp_path: Path,
) -> None:
    reading, signing = keys
    scenario = project("two_methods")
    with cluster(tmp_path / "machine", 2, {**reading, **signing, **PUSH}) as running:
        done = build(scenario, "a", f"dask:{running.scheduler_address}", reading).check()
    assert made_elsewhere(done) == UNITS
    assert "answered wrongly" not in done.stderr
    assert set(sent(server).values()) == {1}
    assert sha256(only(scenario.dist / "a", "*.whl")) == sha256(built("two_methods"))
    # the build may send nothing, so all that is there is of the workers; it got it from there
    took = [each["path"] for each in server.requests() if each["method"] == "GET"]
    assert set(sent(server)) <= set(took)


def test_what_workers_may_not_push_comes_through_the_engine_and_the_build_sends_it(
    project: Callable[[str], Project],
    built: Callable[[str], Path],
    server: CacheServer,
    keys: tuple[dict[str, str], dict[str, str]],
    tmp_path: Path,
) -> None:
    reading, signing = keys
    scenario = project("two_methods")
    with cluster(tmp_path / "machine", 2, {**reading, **signing}) as running:
        executor = f"dask:{running.scheduler_address}"
        done = build(scenario, "a", executor, {**reading, **signing, **PUSH}).check()
    assert made_elsewhere(done) == UNITS
    assert set(sent(server).values()) == {1}
    assert sha256(only(scenario.dist / "a", "*.whl")) == sha256(built("two_methods"))
    other = build(scenario, "b", "local", {**reading, "HATCH_LOWER_CACHE": "frozen"}).check()
    assert "two_methods" in other.output


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
    project: Callable[[str], Project],
    built: Callable[[str], Path],
    server: CacheServer,
    keys: tuple[dict[str, str], dict[str, str]],
) -> None:
    reading, signing = keys
    scenario = project("two_methods")
    done = build(scenario, "a", "support.pool_units:two_processes", {**reading, **signing, **PUSH}).check()
    assert made_elsewhere(done) == UNITS
    assert set(sent(server).values()) == {1}
    assert sha256(only(scenario.dist / "a", "*.whl")) == sha256(built("two_methods"))
