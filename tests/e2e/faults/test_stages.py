"""Builds that are killed at a chosen stage, just before a change of a file: the next one makes the right wheel.

A long run kills builds at every change of a file that they make; for others a few are enough.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.effort import LONG
from support.faults import Known, Place, Struck, Supervisor, is_one_paragraph, nothing_stays, sample
from support.scenarios import sha256, unpack
from support.venv import run

import hatch_lower
from hatch_lower.cache.contents import repair_store
from hatch_lower.cache.store import Store
from hatch_lower.errors import ProgramError

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

CALL = "import sys; from hatch_lower.cli.entry import main; main(sys.argv[1:])"
KILLS = 1000 if LONG else 0
STAGES = {
    "the child is started": "write:/request.json",
    "the child imports": "write:/reads.log:9",
    "the export is stored": "rename:/blobs/",
    "a partition is stored": "rename:/records/",
    "the plan is written": "open:/default.json",
    "the lowered model is stored": "rename:/records/:2",
    "what was read is stored": "rename:/records/:4",
    "the child answers": "rename:/answer.json",
    "the build is remembered": "rename:/history/",
    "hatchling writes its wheel": "open:.whl",
    "the payload is written": "write:.hatch-lower-tmp:2",
    "the whole wheel gets its name": "rename:.whl:2",
    "the work folder is removed": "unlink:/payload",
}
"""Stages of a build that finds nothing in its cache, and the changes of files before which each is killed."""
USUAL = (
    ("the child is started", "kill"),
    ("the child imports", "kill"),
    ("a partition is stored", "kill-all"),
    ("the child answers", "kill"),
)
"""Those at which builds are killed one after the other, with one cache; where the child alone is, the build goes on."""
STORING = """
import os, sys
from pathlib import Path
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.driver.explain import BuildHistory, write_history
from hatch_lower.cache.stats import StatCache
from hatch_lower.driver.inputs.record import secret
directory, source = Path(sys.argv[1]), Path(sys.argv[2])
store = Store(directory, "on", sys.exit)
store.put("ab" * 32, {}, 1, [b"blob"])
source.write_bytes(b"moved")
store.adopt(source, sha256_bytes(b"moved"))
store.update("cd" * 32, {}, lambda value: (value or 0) + 1)
store.update("cd" * 32, {}, lambda value: (value or 0) + 1)
secret(directory)
stats = StatCache(directory / "stats.json")
stats.digest(sys.executable)
stats.save()
write_history(directory, Path("/"), BuildHistory("name", "1", {}))
"""
"""All that is ever written into a cache, without a build."""


def test_a_build_that_is_killed_at_stage_after_stage(supervisor: Supervisor, tiny: Known, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place")
    for stage, action in USUAL:
        struck = supervisor.build(place, action, STAGES[stage])
        has_been_killed(place, tiny, struck, stage)
    place.recovers(tiny)


@pytest.mark.long
@pytest.mark.parametrize("action", ["kill", "kill-all"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_build_that_is_killed_at_any_stage(
    supervisor: Supervisor, tiny: Known, tmp_path: Path, stage: str, action: str
) -> None:
    place = Place.of("tiny", tmp_path / "place")
    struck = supervisor.build(place, action, STAGES[stage])
    has_been_killed(place, tiny, struck, stage)
    place.recovers(tiny)


@pytest.mark.long
def test_a_first_build_that_is_killed_anywhere(supervisor: Supervisor, tiny: Known, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place")
    for number in sample(KILLS, len(tiny.first)):
        place.start_over()
        action = ("kill", "kill-all")[number % 2]
        struck = supervisor.build(place, action, str(number))
        if action == "kill" and struck.points[number - 1].program not in ("hatchling", "hatch_lower.driver.worker"):
            struck.finished.check()  # it was a compiler, of a library that a build can do without
        else:
            has_been_killed(place, tiny, struck, f"point {number}")
        place.recovers(tiny)


def test_a_build_with_nothing_to_do_that_is_killed_anywhere(
    supervisor: Supervisor, tiny: Known, tmp_path: Path
) -> None:
    place = Place.of("tiny", tmp_path / "place", tiny.cache)
    for number in sample(KILLS or 5, len(tiny.again)):
        struck = supervisor.build(place, "kill", str(number))
        has_been_killed(place, tiny, struck, f"point {number}")
        place.recovers(tiny)
        place.start_over(tiny.cache)


def test_in_the_window_of_finalize_an_incomplete_wheel_stays_that_everybody_refuses(
    supervisor: Supervisor, tiny: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.of("tiny", tmp_path / "place", tiny.cache)
    struck = supervisor.build(place, "kill", "write:.hatch-lower-tmp")
    assert struck.in_the_window()
    incomplete = next(each for each in place.wheels() if each.suffix == ".whl")
    check = run([sys.executable, "-c", CALL, "check", incomplete])
    assert check.status != 0
    assert "the wheel is incomplete: it is without its lowered models" in check.stderr
    monkeypatch.syspath_prepend(unpack(incomplete, tmp_path / "site"))
    with pytest.raises(ProgramError, match="the distribution `tiny` is incomplete: the lowered models are missing"):
        hatch_lower.load("tiny")
    place.recovers(tiny)


def test_storing_that_is_killed_anywhere(supervisor: Supervisor, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place")
    directory = place.project.cache / "v1"
    command = [sys.executable, "-c", STORING, directory, place.temporary / "source"]
    whole = supervisor.run(command, place, "list", "0", [place.project.cache])
    whole.finished.check()
    for number in sample(KILLS or 8, len(whole.points)):
        place.start_over()
        supervisor.run(command, place, "kill", str(number), [place.project.cache])
        assert repair_store(directory) == {}, "what is there is whole"
        store = Store(directory, "on", pytest.fail)
        assert store.find("ab" * 32) in (None, 1)
        assert store.find("cd" * 32) in (None, 1, 2)
        nothing_stays(directory)
        run(command).check()
        assert store.find("ab" * 32) == 1


def has_been_killed(place: Place, known: Known, struck: Struck, when: str) -> None:
    """See that a build was killed or says that its child was, and that nothing wrong has a wheel's name."""
    finished = struck.finished
    assert finished.status != 0, f"{when}: {finished.output}"
    if finished.status == 1:
        assert is_one_paragraph(finished), f"{when}: {finished.output}"
        assert "the build process was killed (SIGKILL)" in finished.stderr
        assert place.left() == []
        assert place.wheels() == []
    else:
        assert "Traceback" not in finished.stderr, f"{when}: {finished.stderr}"
    assert repair_store(place.project.cache / "v1") == {}, f"{when}: what is there is whole"
    wheels = [each for each in place.wheels() if each.suffix == ".whl"]
    assert struck.in_the_window() or all(sha256(each) == known.wheel for each in wheels), when
