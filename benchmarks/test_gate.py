"""`hatch-lower bench`: what it costs to say that nothing changed, and how often it is wrong."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scenarios import only
from support.venv import run

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("hatch-lower")
RUNS = 3  # a hundred are for the script itself, which says what they were


@pytest.mark.benchmark(group="gate")
def test_the_exact_tier_of_a_bert(bench: Any) -> None:
    wheel = bench.project("bert").wheel()
    command = [COMMAND, "bench", wheel, "--budget", "0"]
    seconds = seconds_of(bench, lambda: run(command, cwd=bench.folder).check(), 5)
    bench.report("exact figures of a BERT", f"{seconds:.2f} s", "< 2 s", seconds=seconds)


@pytest.mark.benchmark(group="gate")
def test_a_commit_of_documentation(bench: Any) -> None:
    wheel = bench.project("bert").wheel()
    command = [COMMAND, "bench", wheel, "--against", wheel]
    seconds = seconds_of(bench, lambda: run(command, cwd=bench.folder).check(), 5)
    bench.report("equal BERTs, after both builds", f"{seconds:.2f} s, nothing timed", "< 3 s", seconds=seconds)


@pytest.mark.benchmark(group="gate")
@pytest.mark.parametrize(("share", "limit", "wrong"), [(0.0, 1.05, "worse"), (0.05, 1.025, "same")])
def test_verdicts(bench: Any, share: float, limit: float, wrong: str) -> None:
    plugin = slowed_distribution(bench.folder / "plugin")
    variables = {"PYTHONPATH": str(plugin)}
    wheels = [slowed_wheel(bench, variables, each, f"{position}") for position, each in enumerate((share, 0.0))]
    reports: list[dict[str, Any]] = []

    def once() -> None:
        arguments = [*wheels, str(RUNS), str(limit), "120", "2"]
        reports.append(bench.script("gate.py", *arguments, environment=variables))

    bench.benchmark.pedantic(once, rounds=1)
    (report,) = reports
    bench.report(
        f"{RUNS} verdicts, a delegate slower by {100 * share:.0f} %, limit {limit}",
        f"{report['said']}, {report['seconds']:.0f} s each",
        f"none `{wrong}`",
        wrong=report["said"].get(wrong, 0),
        seconds=report["seconds"],
    )


def seconds_of(bench: Any, action: Callable[[], object], rounds: int) -> float:
    """Return the median of an action's seconds."""
    times: list[float] = []

    def once() -> None:
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)

    bench.benchmark.pedantic(once, rounds=rounds)
    return statistics.median(times)


def slowed_distribution(folder: Path) -> Path:
    """Write a distribution with the backend `slowed`, as good as installed with the folder on the import path."""
    information = folder / "slowed_backend-1.0.dist-info"
    information.mkdir(parents=True)
    shutil.copyfile(HERE / "scripts" / "slowed.py", folder / "slowed_backend.py")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: slowed-backend\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[hatch_lower.backends]\nslowed = slowed_backend:SlowedBackend\n"
        "[hatch_lower.delegates]\nslowed = slowed_backend:SlowedDelegate\n"
    )
    (information / "RECORD").write_text("")
    return folder


def slowed_wheel(bench: Any, variables: dict[str, str], share: float, name: str) -> Path:
    project = bench.project("slowed")
    project.edit("pyproject.toml", '["slowed"]', f'[{{ name = "slowed", share = {share} }}]')
    project.build(environment=variables).check()
    target = bench.folder / name
    target.mkdir()
    wheel = shutil.move(only(project.dist, "*.whl"), target)
    shutil.rmtree(project.root)
    return Path(wheel)
