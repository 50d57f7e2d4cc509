"""Building again: what has not changed, against the same files packaged by hatchling alone; and new weights."""

from __future__ import annotations

import re
import shutil
import statistics
import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from support.scenarios import Project, copy_project
from support.venv import run

ROUNDS = 15
TABLES = re.compile(r"^\[tool\.hatch\.build\.(?:targets\.\w+\.)?hooks\.lower\]", re.MULTILINE)
FORCED = """
[tool.hatch.build.targets.wheel.force-include]
"payload/{package}/_lowered" = "{package}/_lowered"
"""
LAYERS = 'num_hidden_layers=int(os.environ.get("BERT_LAYERS", "12"))'
SMALL = "num_hidden_layers=1, hidden_size=64, num_attention_heads=2, intermediate_size=64, vocab_size=2000"


@pytest.mark.benchmark(group="build")
def test_unchanged_build_of_the_example(bench: Any) -> None:
    compare_unchanged(bench, copy_project("example", bench.folder), "the example", 0.05)


@pytest.mark.benchmark(group="build")
def test_unchanged_build_of_an_export_that_imports_transformers(bench: Any) -> None:
    project = bench.project("bert")
    project.edit("bert/model.py", LAYERS, SMALL)
    project.edit("pyproject.toml", 'backends = ["aoti"]', "backends = []")
    compare_unchanged(bench, project, "a small BERT of transformers", 0.12)


@pytest.mark.benchmark(group="build")
def test_new_weights_on_the_same_graph(bench: Any) -> None:
    project = bench.project("bert")
    times: list[tuple[float, float]] = []

    def cold_and_again() -> None:
        def cold(variables: dict[str, str]) -> None:
            begin = time.perf_counter()
            project.build(environment=variables).check()
            first = time.perf_counter() - begin
            project.edit("bert/model.py", f"manual_seed({len(times)})", f"manual_seed({len(times) + 1})")
            begin = time.perf_counter()
            done = project.build(environment=variables).check()
            times.append((first, time.perf_counter() - begin))
            assert "aoti: 2 partitions, 2 reused" in done.stdout + done.stderr

        bench.time_cold(cold)

    bench.benchmark.pedantic(cold_and_again, rounds=3)
    ratio = statistics.median(again / first for first, again in times)
    first, again = (statistics.median(each) for each in zip(*times, strict=True))
    bench.report(
        "new weights, same graph, BERT-base, two methods",
        f"{again:.1f} s / {first:.1f} s cold = {ratio:.2f}",
        "<= 0.35",
        seconds=again,
        cold_seconds=first,
        ratio=ratio,
    )


def compare_unchanged(bench: Any, project: Project, name: str, limit: float) -> None:
    """Report how much longer a build takes in which nothing has changed than the same files packaged by hatchling."""
    plain = plain_copy(project, project.wheel(), bench.folder / "plain")
    time.sleep(2.5)  # files that were written just now are not trusted by their times
    for each in (project, plain):
        timed_build(each)
    times: list[tuple[float, float]] = []
    # In turns, so that what else the machine does meets both.
    bench.benchmark.pedantic(lambda: times.append((timed_build(project), timed_build(plain))), rounds=ROUNDS)
    ours, theirs = (statistics.median(each) for each in zip(*times, strict=True))
    difference = statistics.median(mine - other for mine, other in times)
    bench.report(
        f"unchanged build of {name}",
        f"{ours * 1000:.0f} ms, without hatch-lower {theirs * 1000:.0f} ms: {difference * 1000:+.0f} ms",
        f"<= +{limit * 1000:.0f} ms",
        seconds=ours,
        plain_seconds=theirs,
        difference=difference,
    )


def plain_copy(project: Project, wheel: Path, folder: Path) -> Project:
    """Return a copy of a project that has the payload of its wheel as files, and no hook."""
    shutil.copytree(project.root, folder / "project")
    plain = Project(folder / "project", folder / "dist", folder / "cache")
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "/_lowered/" in name]
        archive.extractall(plain.root / "payload", names)
    package = names[0].partition("/")[0]
    configuration = plain.root / "pyproject.toml"
    kept, _ = TABLES.split(configuration.read_text(), maxsplit=1)
    configuration.write_text(kept + FORCED.format(package=package))
    return plain


def timed_build(project: Project) -> float:
    """Return the seconds of one build."""
    for wheel in project.dist.glob("*.whl"):
        wheel.unlink()
    begin = time.perf_counter()
    run(project.command(), cwd=project.root, environment=project.environment()).check()
    return time.perf_counter() - begin
