"""Switches, the order of the run, its shared folder, and interpreters to look into: common to all tests.

A short run tries a part of what tests could try, on a torch whose slow private functions remember their results
(`support.quick`). `--all` leaves torch as it is, and tests that look at `support.effort.ALL` try more. `--long` is more
than `--all`: it takes tests with the marker `long`, too, tests that look at `support.effort.LONG` try everything, and
property tests try new examples.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from support import effort, failures, passed, quick
from support.compilers import FOLDER, write_remembering_compilers
from support.shared import Shared, shared_by_the_run

pytest_plugins = ["support.fixtures"]
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile(
    "short", max_examples=16, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate], **COMMON
)
settings.register_profile("long", max_examples=1500, print_blob=True, **COMMON)
settings.load_profile("short")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", dest="everything", action="store_true", help="try more, with torch as it is")
    parser.addoption("--long", action="store_true", help="try everything: takes hours")
    parser.addoption("--write-passed", metavar="FILE", help="write the ids of the tests that passed")
    parser.addoption(
        "--leave-out", metavar="FILE", help="leave out tests whose ids a file has, and that try no more now"
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts a command in the background with interrupts ignored, and all processes of the command inherit it:
    # a test that interrupts a build would wait in vain. pytest-xdist's processes come here as well.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    effort.LONG = config.getoption("long")
    effort.ALL = effort.LONG or config.getoption("everything")
    config.pluginmanager.register(failures.FailuresAtOnce(config))
    if config.getoption("write_passed"):
        config.pluginmanager.register(passed.Writer(Path(config.getoption("write_passed"))))
    if effort.LONG:
        settings.load_profile("long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of longer runs, and run tests that install things last: other failures are seen earlier."""
    known = passed.read(config.getoption("leave_out"))
    left_out = {
        item
        for item in items
        if (item.get_closest_marker("long") is not None and not effort.LONG)
        or (item.get_closest_marker("rest") is not None and not effort.ALL)
        or (item.nodeid in known and item.get_closest_marker("more") is None)
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("isolated") is not None)


def pytest_collection_finish() -> None:
    quick.keep_what_is_imported()
    if effort.ALL:
        return
    quick.leave_annotations_unevaluated()
    quick.remember_decomposable_operators()
    quick.remember_overrides()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """The folder of what is made once in a run."""
    return shared_by_the_run(tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def compilers_with_memory(shared: Shared) -> None:
    """Let this run's processes find compilers that compile nothing twice; a long run compiles all anew."""
    if not effort.LONG and shutil.which("g++") is not None:
        made = shared.once("compiler", write_remembering_compilers)
        os.environ["PATH"] = f"{made / FOLDER}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def modules_after() -> Callable[[str], set[str]]:
    """Return what is in `sys.modules` of a fresh interpreter after it has run some code."""

    def run(code: str) -> set[str]:
        script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        return set(done.stdout.split("\n"))

    return run
