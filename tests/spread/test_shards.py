"""A build that many machines make: each has its own cache, and only the shared one in common."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.cache_server import CacheServer, cache_server
from support.scenarios import Project, only, sha256
from support.shared import Shared
from support.venv import Finished, run

from hatch_lower.cache.remote.signing import new_key_pair
from hatch_lower.canonical import sha256_bytes

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

AGAIN = 'again = "two_methods.model:export"\n'
FROZEN = {"HATCH_LOWER_CACHE": "frozen"}


@dataclass(frozen=True, slots=True)
class Team:
    """A project with two models of two recipes each, a shared cache, and who may send what there."""

    scenario: Project
    server: CacheServer
    taking: Mapping[str, str]
    sending: Mapping[str, str]

    def machine(self, name: str) -> Project:
        """Return the project as another machine has it: in a folder, and with a cache, of its own."""
        base = self.scenario.root.parent / name
        if not base.exists():
            shutil.copytree(self.scenario.root, base / "project", ignore=shutil.ignore_patterns("dist"))
        return replace(self.scenario, root=base / "project", dist=base / "dist", cache=base / "cache")

    def lower(self, name: str, *words: str, **environment: str) -> Finished:
        return command(self.machine(name), "lower", *words, environment={**self.sending, **environment}).check()

    def joined(self, name: str) -> str:
        """Return the digest of the wheel of a machine that may make nothing itself."""
        return sha256(self.machine(name).wheel({**self.taking, **FROZEN}))


def command(project: Project, *words: str, environment: Mapping[str, str] | None = None) -> Finished:
    line = "from hatch_lower.cli.entry import main; main()"
    return run([sys.executable, "-c", line, *words], cwd=project.root, environment=project.environment(environment))


@pytest.fixture
def team(project: Callable[[str], Project], tmp_path: Path) -> Iterator[Team]:
    scenario = project("two_methods")
    entry = 'two_methods = "two_methods.model:export"\n'
    scenario.edit("pyproject.toml", entry, f"{entry}{AGAIN}")
    pair = new_key_pair()
    with cache_server(tmp_path / "served") as server:
        taking = {"HATCH_LOWER_REMOTE_CACHE": server.url, "HATCH_LOWER_PUBLIC_KEYS": pair.public}
        yield Team(
            scenario,
            server,
            taking,
            {**taking, "HATCH_LOWER_REMOTE_PUSH": "1", "HATCH_LOWER_SIGNING_KEY": pair.private},
        )


@pytest.fixture
def local(team: Team, shared: Shared) -> str:
    """The digest of the wheel that one machine builds alone."""

    def make(folder: Path) -> None:
        wheel = team.machine("alone").wheel({"HATCH_LOWER_CACHE_DIR": str(folder / "cache")})
        (folder / "digest").write_text(sha256(wheel))

    return (shared.once("wheel-of-two-models", make) / "digest").read_text()


@pytest.mark.long  # `test_ci_shards_example` joins two shards, the second one first
@pytest.mark.parametrize("shards", [["2/2", "1/2"], ["2/3", "3/3", "1/3"]], ids=len)
def test_the_wheel_of_shards_in_any_order_and_number_is_that_of_one_machine(
    team: Team, local: str, shards: list[str]
) -> None:
    for shard in shards:
        made = team.lower(f"machine-{shard[0]}", "--shard", shard)
        assert "0 cached before" in made.stdout
        assert f"kept in {team.server.url}" in made.stdout
    asked = len(team.server.requests())
    assert team.joined("last") == local
    assert {each["method"] for each in team.server.requests()[asked:]} == {"GET"}
    with ZipFile(only(team.machine("last").dist, "*.whl")) as wheel:
        constants = [sha256_bytes(wheel.read(name)) for name in wheel.namelist() if name.endswith(".safetensors")]
    assert constants
    assert not any(team.server.object("cas", digest).exists() for digest in constants), "each machine has them"


def test_a_shard_that_is_missing_is_named_and_is_all_that_is_made_then(
    team: Team, built: Callable[[str], Path]
) -> None:
    """A plan on another machine knows what the shared cache has, and what it took."""
    team.scenario.edit("pyproject.toml", AGAIN, "")
    team.lower("first", "--only", "two_methods/portable")
    failed = team.machine("last").build(environment={**team.taking, **FROZEN})
    assert failed.status != 0
    assert "the cache is frozen and lacks a result that this build needs" in failed.output
    assert "missing: `two_methods/default`" in failed.output
    assert "`hatch-lower lower --only two_methods/default`" in failed.output
    assert not list(team.machine("last").dist.glob("*.whl"))

    planned = command(team.machine("planner"), "plan", "--json", environment=team.taking).check()
    units = {unit["name"]: unit for unit in json.loads(planned.stdout)["units"]}
    missing, made = units["two_methods/default"], units["two_methods/portable"]
    assert (missing["cached"], missing["seconds"]) == (False, None)
    assert made["cached"]
    assert made["seconds"] > 0
    matrix = command(team.machine("planner"), "plan", "--json", "--shards", "8", environment=team.taking).check()
    assert json.loads(matrix.stdout) == {"include": [{"shard": "1/1", "only": "two_methods/default"}]}

    again = team.lower("second")
    assert "2 units: 1 made, 1 cached before" in again.stdout
    assert team.joined("last") == sha256(built("two_methods"))


def test_what_one_machine_had_before_it_sent_anything_is_sent_then(team: Team, built: Callable[[str], Path]) -> None:
    team.scenario.edit("pyproject.toml", AGAIN, "")
    machine = team.machine("one")
    kept = command(machine, "lower", environment=team.taking).check()
    assert f"nothing leaves this machine, for {team.server.url} is only read" in kept.stdout
    assert {each["method"] for each in team.server.requests()} == {"GET"}
    sent = team.lower("one")
    assert "2 units: 2 made, 0 cached before" in sent.stdout
    assert " package " not in sent.stderr, "nothing was lowered again"
    assert team.joined("last") == sha256(built("two_methods"))


def test_a_model_that_fails_is_told_as_a_build_tells_it(project: Callable[[str], Project]) -> None:
    scenario = project("raises_on_import")
    built, lowered = scenario.build(), command(scenario, "lower", environment={})
    (said,) = (line for line in built.stderr.splitlines() if line.startswith("hatch-lower: "))
    assert f"error: {said.removeprefix('hatch-lower: ')}" in lowered.stderr
    assert (lowered.status, lowered.stdout) == (1, "")
    assert scenario.left_behind() == []


def test_what_the_shared_cache_does_not_keep_is_an_error_that_names_it(team: Team) -> None:
    # nobody believes a record without a signature
    unsigned = {**team.sending, "HATCH_LOWER_SIGNING_KEY": ""}
    done = command(team.machine("one"), "lower", "--only", "again/portable", environment=unsigned)
    assert done.status == 1
    assert "the made units are not in the shared cache" in done.stderr
    assert "`again/portable`" in done.stderr
    assert "HATCH_LOWER_SIGNING_KEY" in done.stderr
