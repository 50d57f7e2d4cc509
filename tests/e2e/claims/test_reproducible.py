"""It is reproducible: what is built depends on the sources and the tools, on nothing else.

A build in which everything differs shows it: what is equal then, each difference leaves equal, unless two undo each
other. A long run also tries each difference alone. Isolated builds are in `test_frontends`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import pytest
from support.cache_server import cache_server
from support.scenarios import sha256
from support.variations import OTHER, PLAIN, Circumstances, Varied
from support.venv import child_environment

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

FIRST = replace(PLAIN, processors=1)
COLD = {"HATCH_LOWER_CACHE": "off"}
ALONE = [
    *((field.name, getattr(OTHER, field.name)) for field in fields(Circumstances)),
    ("processors", 1),
    ("frontend", "build"),
    ("frontend", "uv"),
]


@dataclass(frozen=True, slots=True)
class Builds:
    """The build with which others are compared, and the server to which it sent what it made.

    Args:
        varied: all builds.
        first: the variables of that build. Its compiler remembers what it has compiled in this run, in whatever
            folder; that of the others compiles all anew, and must come to the same.
        remote: the variables with which the server is asked.
        plain: the digest of the wheel.
    """

    varied: Varied
    first: dict[str, str]
    remote: dict[str, str]
    plain: str


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    varied = Varied(tmp_path_factory.mktemp("varied"))
    with cache_server(varied.folder / "served") as server:
        remote = {"HATCH_LOWER_REMOTE_CACHE": server.url, "HATCH_LOWER_PUBLIC_KEYS": "any"}
        first = {"PATH": child_environment()["PATH"]}
        wheel = varied.wheel("plain", FIRST, {**first, **remote, "HATCH_LOWER_REMOTE_PUSH": "1"})
        yield Builds(varied, first, remote, sha256(wheel))


def test_everything_else_gives_the_same_bytes(builds: Builds) -> None:
    """Also eight processors, where there was one; `test_incremental` has builds without a cache."""
    assert sha256(builds.varied.wheel("other", OTHER)) == builds.plain
    told = builds.varied.log("other")
    everything = {"here", "clock", "file times", "order", "processors", "cpuinfo", "host"}
    assert told["parent"] >= everything
    assert told["child"] >= everything
    for tool in ("compiler", "assembler", "linker"):
        assert told[tool] >= {"here"}, tool
    assert "torch.cpu" in told["child"], "the answers about the processor were not turned round"
    assert not {what for what in told["child"] if what.startswith("torch.cpu.")}, "the instruction set is not pinned"


def test_a_cache_that_knows_everything_gives_the_same_bytes(builds: Builds) -> None:
    frozen = {**builds.first, "HATCH_LOWER_CACHE": "frozen"}
    assert sha256(builds.varied.wheel("plain", FIRST, frozen)) == builds.plain


def test_what_another_machine_has_sent_gives_the_same_bytes(builds: Builds) -> None:
    taking = {**builds.remote, "HATCH_LOWER_CACHE": "frozen"}
    machine = replace(OTHER, sdist=False, frontend="hatchling")
    assert sha256(builds.varied.wheel("taken", machine, taking)) == builds.plain


@pytest.mark.long
@pytest.mark.parametrize(("name", "value"), ALONE, ids=[f"{name}-{value}" for name, value in ALONE])
def test_one_other_circumstance_gives_the_same_bytes(builds: Builds, name: str, value: object) -> None:
    if value == getattr(PLAIN, name):
        pytest.skip("it cannot be changed here")
    alone = f"alone-{name}-{str(value).replace('/', '-')}"
    assert sha256(builds.varied.wheel(alone, replace(PLAIN, **{name: value}), COLD)) == builds.plain
