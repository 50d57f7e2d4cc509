"""Ctrl-C in the middle of a build: no process survives it, and nothing half-made stays."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import Known, Place, Supervisor
from support.processes import PATIENCE, is_running, start, wait_for, with_variable
from support.scenarios import Project, sha256, tree

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

DEAF = """    import signal
    signal.signal(signal.SIGTERM, lambda *_: marker.with_suffix(".asked").touch())
    marker.with_suffix(".deaf").touch()
    while True:
        time.sleep(1)
"""
# Answers what inductor asks about the compiler, and never finishes compiling.
SLOW_COMPILER = """#!/bin/sh
case " $* " in
*" -c "*) echo $$ > {marker}.new && mv {marker}.new {marker} && exec sleep 600 ;;
*) exec g++ "$@" ;;
esac
"""


@pytest.mark.parametrize(
    ("receiver", "times"), [("every process of the terminal", 2), ("the build alone", 1), ("the build alone", 2)]
)
def test_while_the_entry_point_runs(
    project: Callable[[str], Project], tmp_path: Path, receiver: str, times: int
) -> None:
    slow = project("slow")
    before = tree(slow.root)
    marker, temporary = tmp_path / "marker", tmp_path / "temporary"
    temporary.mkdir()
    process = start(slow, {"SLOW_MARKER": str(marker), "TMPDIR": str(temporary)})
    wait_for(marker.exists, "the export began", process)
    for _ in range(times):
        interrupt(process, receiver)
    has_been_interrupted(process)
    wait_for(lambda: not with_variable("SLOW_MARKER", str(marker)), "the children to end")
    assert not is_running(int(marker.read_text()))
    assert slow.left_behind() == []
    assert list(temporary.iterdir()) == []
    assert tree(slow.root) == before


def test_again_while_a_child_is_being_ended_that_does_not_want_to(
    project: Callable[[str], Project], tmp_path: Path
) -> None:
    slow = project("slow")
    slow.edit("slow/model.py", "    time.sleep(600)\n", DEAF)
    marker, temporary = tmp_path / "marker", tmp_path / "temporary"
    temporary.mkdir()
    process = start(slow, {"SLOW_MARKER": str(marker), "TMPDIR": str(temporary)})
    wait_for(marker.with_suffix(".deaf").exists, "the export began", process)
    process.send_signal(signal.SIGINT)
    wait_for(marker.with_suffix(".asked").exists, "the child is asked to end", process)
    process.send_signal(signal.SIGINT)
    has_been_interrupted(process)
    wait_for(lambda: not with_variable("SLOW_MARKER", str(marker)), "the children to end")
    assert slow.left_behind() == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("stage", ["open:/manifest.json", "write:.hatch-lower-tmp", "unlink:/payload"])
def test_twice_at_a_chosen_change_of_a_file(supervisor: Supervisor, tiny: Known, tmp_path: Path, stage: str) -> None:
    place = Place.of("tiny", tmp_path / "place", tiny.cache)
    finished = supervisor.build(place, "interrupt", stage).finished
    says_so(finished.status, finished.output)
    whole = stage == "unlink:/payload"  # the build had only to remove its folder
    assert [sha256(each) for each in place.wheels()] == [tiny.wheel] * whole
    assert place.left() == []
    place.recovers(tiny)


def test_while_the_compiler_runs(project: Callable[[str], Project], tmp_path: Path) -> None:
    mixed = project("mixed")
    before = tree(mixed.root)
    marker = tmp_path / "marker"
    compiler = tmp_path / "slow-g++"
    compiler.write_text(SLOW_COMPILER.format(marker=marker))
    compiler.chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start(mixed, {"CXX": str(compiler), "TMPDIR": str(temporary)})
    wait_for(marker.exists, "the compilation began", process)
    os.killpg(process.pid, signal.SIGINT)
    has_been_interrupted(process)
    wait_for(lambda: not is_running(int(marker.read_text())), "the compiler to end")
    wait_for(lambda: not with_variable("HATCH_LOWER_CACHE_DIR", str(mixed.cache)), "the children to end")
    assert mixed.left_behind() == []
    assert list(temporary.glob("hatch-lower-*")) == []
    assert tree(mixed.root) == before


def interrupt(process: subprocess.Popen[str], receiver: str) -> None:
    """Press Ctrl-C, or send what it sends to one process."""
    if receiver == "the build alone":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)


def has_been_interrupted(process: subprocess.Popen[str]) -> None:
    """Wait until a build has ended, and see that it ended as one that was interrupted."""
    output, errors = process.communicate(timeout=PATIENCE)
    says_so(process.returncode, output + errors)


def says_so(status: int, output: str) -> None:
    assert status == 130, output
    assert [line for line in output.splitlines() if "nterrupt" in line] == ["hatch-lower: interrupted"], output
    assert "Traceback" not in output
