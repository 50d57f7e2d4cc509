"""Clusters whose workers are not what the build is: what the build says of them, as a person reads it."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.processes import PATIENCE, start, wait_for
from support.scenarios import Project, only, sha256
from support.venv import REPOSITORY, child_environment

pytestmark = [pytest.mark.isolated, pytest.mark.slow]


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Any]:
    """A scheduler without workers."""
    distributed = pytest.importorskip("distributed")
    options = {"dashboard_address": "127.0.0.1:0", "silence_logs": 60}
    with distributed.LocalCluster(n_workers=0, **options) as cluster:
        yield cluster.scheduler


@contextlib.contextmanager
def workers(scheduler: Any, folder: Path, *machines: Mapping[str, str]) -> Iterator[None]:
    """Run a worker on each of some machines."""
    command = [
        sys.executable,
        "-m",
        "dask",
        "worker",
        scheduler.address,
        "--nthreads",
        "1",
        "--no-dashboard",
        "--no-nanny",
    ]
    folder.mkdir()
    running = [
        subprocess.Popen(
            [*command, "--name", f"machine-{number}", "--local-directory", folder],
            cwd=folder,
            env=child_environment(machine),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number, machine in enumerate(machines)
    ]
    try:
        wait_for(lambda: len(scheduler.workers) == len(machines), "workers")
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
        wait_for(lambda: not scheduler.workers, "workers to be missed")


def build(scenario: Project, scheduler: Any) -> str:
    """Return what a build says that must fail, without the lines before the error."""
    done = scenario.build(environment={"HATCH_LOWER_EXECUTOR": f"dask:{scheduler.address}", "HATCH_VERBOSE": "1"})
    assert done.status == 1, done.output
    assert "Traceback" not in done.stderr
    return done.stderr.partition("hatch-lower: ")[2]


def test_workers_with_another_version_refuse_and_the_build_names_it(
    project: Callable[[str], Project], scheduler: Any, tmp_path: Path
) -> None:
    old = tmp_path / "old" / "hatch_lower"
    shutil.copytree(REPOSITORY / "hatch_lower", old, ignore=shutil.ignore_patterns("__pycache__"))
    version = old / "__init__.py"
    text = version.read_text()
    assert re.search(r'__version__ = "[^"]+"', text)
    version.write_text(re.sub(r'__version__ = "[^"]+"', '__version__ = "0.0.9"', text))
    machine = {"PYTHONPATH": str(old.parent)}
    with workers(scheduler, tmp_path / "workers", machine, machine):
        said = build(project("two_methods"), scheduler)
    assert said.startswith("no worker can make a unit of this build")
    assert said.count("has hatch-lower 0.0.9 (code ") == 2


def test_workers_that_know_nothing_of_units_are_told_from_a_fault(
    project: Callable[[str], Project], scheduler: Any, tmp_path: Path
) -> None:
    old = tmp_path / "old" / "hatch_lower"
    old.mkdir(parents=True)
    (old / "__init__.py").touch()
    with workers(scheduler, tmp_path / "workers", {"PYTHONPATH": str(old.parent)}):
        said = build(project("two_methods"), scheduler)
    assert said.startswith("the executor's workers cannot run units")
    assert "No module named 'hatch_lower.driver'" in said
    assert "install hatch-lower on the workers, in the version that is installed here" in said


def test_workers_without_a_compiler_refuse_what_is_compiled(
    project: Callable[[str], Project], scheduler: Any, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    scenario = project("tiny")
    scenario.edit("pyproject.toml", 'backends = ["null"]', 'backends = ["aoti"]')
    machine = {"PATH": str(programs)}
    with workers(scheduler, tmp_path / "workers", machine, machine):
        said = build(scenario, scheduler)
    assert said.startswith("no worker can make a unit of this build")
    assert len(re.findall(r": has no C\+\+ compiler, where .+ is wanted; has no linker, where ", said)) == 2


@pytest.mark.long  # `test_executors` has two on one cluster without building
def test_two_builds_share_a_cluster(
    project: Callable[[str], Project], built: Callable[[str], Path], scheduler: Any, tmp_path: Path
) -> None:
    scenario = project("two_methods")
    places = [replace(scenario, dist=scenario.dist / name, cache=scenario.cache / name) for name in ("a", "b")]
    variables = {"HATCH_LOWER_EXECUTOR": f"dask:{scheduler.address}", "HATCH_VERBOSE": "1"}
    with workers(scheduler, tmp_path / "workers", {}, {}):
        for process in [start(place, variables) for place in places]:
            output = "".join(process.communicate(timeout=PATIENCE))
            assert process.returncode == 0, output
            assert len(re.findall(r"lower  \S+ +unit +\S+ s  on ", output)) == 2
    assert [sha256(only(place.dist, "*.whl")) for place in places] == [sha256(built("two_methods"))] * 2
