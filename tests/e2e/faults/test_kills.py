"""Builds that are killed at any moment: the next one makes the right wheel, and one trim removes what they left.

Builds are killed in rounds of four, each round with one cache; in a long run, 200. The moments are spread evenly over
the time that a build takes, separately for builds of a project whose model was edited since it was put into the cache,
of one that is not in the cache, and of one that is known. A short run has the first; `test_stages` kills builds of the
other two at chosen stages.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.effort import LONG
from support.faults import NOT_OURS, nothing_stays
from support.processes import PATIENCE, is_running, start, wait_for, with_variable, workers
from support.scenarios import Project, copy_project, only, sha256, tree
from support.venv import run

from hatch_lower.cache.contents import repair_store

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

KILLS = 200 if LONG else 4
STATES = ("edited", "cold", "known")
VICTIMS = ("the group", "every process", "the build alone", "the child")
ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Kill:
    """Who is killed, and when: a share of the time that a build takes."""

    victim: str
    moment: float


@dataclass(frozen=True, slots=True)
class Round:
    """Kills of builds with one cache, the earliest first."""

    number: int
    state: str
    kills: tuple[Kill, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What rounds begin with, and what the next build must make of it.

    Args:
        cache: the cache at the beginning.
        edited: whether the model is not the one that the cache knows.
        seconds: that a build takes.
        wheel: digest of the wheel.
    """

    cache: Path
    edited: bool
    seconds: float
    wheel: str


def plan_rounds(count: int) -> list[Round]:
    """Return rounds with `count` kills in all, or a few more; the same ones each time."""
    generator = random.Random(9)
    rounds = -(-count // len(VICTIMS))
    planned = []
    for position, state in enumerate(STATES):
        numbers = range(position, rounds, len(STATES))
        total = len(numbers) * len(VICTIMS)
        moments = [(i + generator.random()) / total for i in range(total)]
        generator.shuffle(moments)
        for i, number in enumerate(numbers):
            drawn = sorted(moments[i * len(VICTIMS) : (i + 1) * len(VICTIMS)])
            victims = generator.sample(VICTIMS, len(VICTIMS))
            kills = tuple(Kill(victim, moment) for victim, moment in zip(victims, drawn, strict=True))
            planned.append(Round(number, state, kills))
    return sorted(planned, key=lambda each: each.number)


def edit(project: Project) -> None:
    project.edit("tiny/model.py", "class Tiny(", "# A comment that moves every line below it.\nclass Tiny(")


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, State]:
    """The states by name, from builds that nobody kills."""
    folder = tmp_path_factory.mktemp("states")
    project = copy_project("tiny", folder)
    found = {}
    for name in ("cold", "known", "edited"):
        cache = folder / f"before {name}"
        shutil.copytree(project.cache, cache) if project.cache.exists() else cache.mkdir()
        if name == "edited":
            edit(project)
        began = time.monotonic()
        wheel = sha256(project.wheel())
        found[name] = State(cache, name == "edited", time.monotonic() - began, wheel)
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where the builds of one round are, with a folder for temporary files."""

    project: Project
    temporary: Path

    def variables(self) -> dict[str, str]:
        return {"TMPDIR": str(self.temporary)}

    def processes(self) -> list[int]:
        """Return those of the build that runs."""
        return [pid for pid in with_variable("HATCH_LOWER_CACHE_DIR", str(self.project.cache)) if is_running(pid)]

    def start_over(self, state: State) -> None:
        """Put the cache into the state in which the round begins."""
        shutil.rmtree(self.project.cache, ignore_errors=True)
        shutil.copytree(state.cache, self.project.cache)

    def work_folders(self) -> set[str]:
        return {path.name for path in self.temporary.glob("hatch-lower-*")}


@pytest.mark.parametrize("planned", plan_rounds(KILLS), ids=lambda each: f"{each.number}-{each.state}")
def test_after_any_kill_a_build_makes_the_right_wheel(
    states: Mapping[str, State], tmp_path: Path, planned: Round
) -> None:
    state = states[planned.state]
    place = Place(copy_project("tiny", tmp_path), tmp_path / "temporary")
    place.temporary.mkdir()
    if state.edited:
        edit(place.project)
    place.start_over(state)
    sources = tree(place.project.root)
    for each in planned.kills:
        kill_one(place, state, each)
    project = place.project
    assert sha256(project.wheel(place.variables())) == state.wheel
    name = only(project.dist, "*.whl").name
    assert [path.name for path in project.dist.iterdir()] == [name]
    nothing_stays(project.cache / "v1")
    clean = run([*project.command(), "--clean"], cwd=project.root, environment=frozen(place)).check()
    assert "frozen" not in clean.stderr
    assert sha256(only(project.dist, "*.whl")) == state.wheel
    assert [path.name for path in project.dist.iterdir()] == [name]
    assert tree(project.root) == sources
    assert [path.name for path in place.temporary.iterdir() if not NOT_OURS.fullmatch(path.name)] == []


def frozen(place: Place) -> dict[str, str]:
    return place.project.environment({**place.variables(), "HATCH_LOWER_CACHE": "frozen"})


def kill_one(place: Place, state: State, kill: Kill) -> None:
    """Start a build and kill it; earlier in a new one if it has ended by then."""
    moment = kill.moment * state.seconds
    for _ in range(ATTEMPTS):
        before = place.work_folders()
        process = start(place.project, place.variables())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        late = process.poll() is not None
        killed = None if late else strike(place, process, kill.victim)
        _, errors = process.communicate(timeout=PATIENCE)
        wait_for(lambda: not place.processes(), "every process of the build to end")
        assert repair_store(place.project.cache / "v1") == {}, "what is there is whole"
        if process.returncode == 0:
            assert sha256(only(place.project.dist, "*.whl")) == state.wheel
        if late or killed == "the child":
            assert place.work_folders() - before == set(), errors
        if not late:
            return
        assert process.returncode == 0, errors
        nothing_stays(place.project.cache / "v1")
        place.start_over(state)
        moment *= 0.8
    pytest.fail("no build lasted long enough to be killed")


def strike(place: Place, process: subprocess.Popen[str], victim: str) -> str:
    """Kill, and return who was killed: the build where there is no child."""
    family = list(dict.fromkeys([process.pid, *place.processes()]))
    children = workers(family)
    if victim == "the child" and not children:
        victim = "the build alone"
    if victim == "the group":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        killed = {"every process": family, "the build alone": [process.pid], "the child": children}[victim]
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return victim
