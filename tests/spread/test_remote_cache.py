"""A cache that two machines share: what one builds and sends, the other takes without lowering anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.cache_server import CacheServer, cache_server
from support.compilers import make_compiler
from support.scenarios import Project, sha256

from hatch_lower.cache.remote.client import decode_action_result
from hatch_lower.cache.remote.signing import new_key_pair

pytestmark = [pytest.mark.isolated, pytest.mark.slow]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CacheServer]:
    with cache_server(tmp_path / "served") as running:
        yield running


def elsewhere(scenario: Project, name: str) -> Project:
    """Return the same project as another machine has it: with a cache and a folder for wheels of its own."""
    return replace(scenario, dist=scenario.dist.with_name(f"dist-{name}"), cache=scenario.cache.with_name(name))


def test_what_one_machine_sends_another_takes_unless_it_was_tampered_with(
    project: Callable[[str], Project], server: CacheServer
) -> None:
    pair = new_key_pair()
    scenario = project("two_methods")
    remote = {"HATCH_LOWER_REMOTE_CACHE": server.url, "HATCH_LOWER_PUBLIC_KEYS": pair.public}
    sending = {**remote, "HATCH_LOWER_REMOTE_PUSH": "1", "HATCH_LOWER_SIGNING_KEY": pair.private}
    first = sha256(scenario.wheel(sending))
    frozen = {**remote, "HATCH_LOWER_CACHE": "frozen"}
    sent = len(server.requests())
    other = elsewhere(scenario, "b")
    done = other.build(environment=frozen).check()
    assert [sha256(path) for path in other.dist.glob("*.whl")] == [first]
    rows = [line for line in done.output.splitlines() if line.startswith("two_methods ")]
    assert rows, done.output
    assert all(row.endswith("unchanged") for row in rows), "nothing was exported"
    assert {each["method"] for each in server.requests()[sent:]} == {"GET"}

    results = sorted((server.folder / "ac").iterdir())
    assert results
    for result in results:
        for named in decode_action_result(result.read_bytes()):
            blob = server.object("cas", named.sha256)
            if blob.exists():
                blob.write_bytes(bytes(reversed(blob.read_bytes())))
    assert sha256(elsewhere(scenario, "c").wheel(remote)) == first, "it is built again"


def test_native_code_that_nobody_signed_is_built_again(
    project: Callable[[str], Project], server: CacheServer, tmp_path: Path
) -> None:
    scenario = project("tiny")
    scenario.edit("pyproject.toml", 'backends = ["null"]', 'backends = ["aoti"]')
    # a library in a moment: what is in it does not matter here
    compiler = make_compiler(tmp_path, "writes a library that has no model").variables()
    remote = {"HATCH_LOWER_REMOTE_CACHE": server.url, **compiler}
    first = sha256(scenario.wheel({**remote, "HATCH_LOWER_REMOTE_PUSH": "1"}))
    done = elsewhere(scenario, "b").build(environment={**remote, "HATCH_LOWER_CACHE": "frozen"})
    assert done.status != 0
    assert "and is not signed" in done.output
    assert "the cache is frozen and lacks a result that this build needs" in done.output
    # `test_reproducible` has a build that takes what nobody signed, as it is told to
    assert sha256(elsewhere(scenario, "c").wheel(remote)) == first


def test_of_what_nobody_signed_partitions_alone_are_believed(
    project: Callable[[str], Project], server: CacheServer
) -> None:
    """The build exports, puts the program together, and compares it with eager; the backend is not called."""
    scenario = project("two_methods")
    remote = {"HATCH_LOWER_REMOTE_CACHE": server.url}
    first = sha256(scenario.wheel({**remote, "HATCH_LOWER_REMOTE_PUSH": "1"}))
    other = elsewhere(scenario, "b")
    done = other.build(environment=remote)
    assert done.check()
    said = done.stdout + done.stderr
    assert said.count("the entry is not the result of a partition alone, and is not signed") == 1
    assert "reused" in said
    assert [sha256(path) for path in other.dist.glob("*.whl")] == [first]


def test_a_server_that_is_gone_costs_a_line(project: Callable[[str], Project]) -> None:
    scenario = project("tiny")  # an empty cache: it is asked
    done = scenario.build(environment={"HATCH_LOWER_REMOTE_CACHE": "http://127.0.0.1:9/cache"})
    assert done.check()
    assert "is not used any more in this build: no connection" in done.stdout + done.stderr
