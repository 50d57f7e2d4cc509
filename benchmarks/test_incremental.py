"""Building again what has not changed, against the same files packaged by hatchling alone."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from support.scenarios import Project, copy_project
from support.venv import run

ROUNDS = 15
HOOKS = "[tool.hatch.build.targets.sdist.hooks.lower]"
FORCED = """
[tool.hatch.build.targets.wheel.force-include]
"payload/digits/_lowered" = "digits/_lowered"
"""


@pytest.mark.benchmark(group="build")
def test_unchanged_build_of_the_example(bench: Any) -> None:
    project = copy_project("example", bench.folder)
    plain = plain_copy(project.wheel(), bench.folder / "plain")
    time.sleep(2.5)  # files that were written just now are not trusted by their times
    for each in (project, plain):
        timed_build(each)
    times: list[tuple[float, float]] = []
    # In turns, so that what else the machine does meets both.
    bench.benchmark.pedantic(lambda: times.append((timed_build(project), timed_build(plain))), rounds=ROUNDS)
    ours, theirs = (statistics.median(each) for each in zip(*times, strict=True))
    difference = statistics.median(mine - other for mine, other in times)
    bench.report(
        "unchanged build of the example",
        f"{ours * 1000:.0f} ms, without hatch-lower {theirs * 1000:.0f} ms: {difference * 1000:+.0f} ms",
        "<= +50 ms",
        seconds=ours,
        plain_seconds=theirs,
        difference=difference,
    )


def plain_copy(wheel: Path, folder: Path) -> Project:
    """Return a copy of the example that has the payload of `wheel` as files, and no hook."""
    folder.mkdir()
    project = copy_project("example", folder)
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "/_lowered/" in name:
                archive.extract(name, project.root / "payload")
    configuration = project.root / "pyproject.toml"
    configuration.write_text(configuration.read_text().partition(HOOKS)[0] + FORCED)
    return project


def timed_build(project: Project) -> float:
    """Return the seconds of one build."""
    for wheel in project.dist.glob("*.whl"):
        wheel.unlink()
    begin = time.perf_counter()
    run(project.command(), cwd=project.root, environment=project.environment()).check()
    return time.perf_counter() - begin
