"""Ctrl-C in the middle of a build: no process survives it, and nothing half-made stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import PATIENCE, is_running, start, wait_for, with_variable
from support.scenarios import Project, tree

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

# Answers what inductor asks about the compiler, and never finishes compiling.
SLOW_COMPILER = """#!/bin/sh
case " $* " in
*" -c "*) echo $$ > {marker}.new && mv {marker}.new {marker} && exec sleep 600 ;;
*) exec g++ "$@" ;;
esac
"""


@pytest.mark.parametrize("receiver", ["every process of the terminal", "the build alone"])
def test_while_the_entry_point_runs(project: Callable[[str], Project], tmp_path: Path, receiver: str) -> None:
    slow = project("slow")
    before = tree(slow.root)
    marker = tmp_path / "marker"
    process = start(slow, {"SLOW_MARKER": str(marker)})
    wait_for(marker.exists, "the export began", process)
    if receiver == "the build alone":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    wait_for(lambda: not with_variable("SLOW_MARKER", str(marker)), "the children to end")
    assert not is_running(int(marker.read_text()))
    assert slow.left_behind() == []
    assert tree(slow.root) == before


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
    process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    wait_for(lambda: not is_running(int(marker.read_text())), "the compiler to end")
    wait_for(lambda: not with_variable("HATCH_LOWER_CACHE_DIR", str(mixed.cache)), "the children to end")
    assert mixed.left_behind() == []
    assert list(temporary.glob("hatch-lower-*")) == []
    assert tree(mixed.root) == before
