"""What the benchmarks share: projects, fresh processes, and the table of what was measured against what is to reach.

Run them on a quiet machine: `pytest benchmarks` (one group: `pytest benchmarks/test_call.py`). No benchmark fails for a
number; `--benchmark-json=FILE` keeps them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.scenarios import Project, only, unpack
from support.venv import run

HERE = Path(__file__).parent
ROWS_KEY = pytest.StashKey[list[tuple[str, str, str]]]()


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder for one benchmark, and ways to run things in it from nothing."""

    folder: Path
    benchmark: Any
    rows: list[tuple[str, str, str]]

    def project(self, name: str) -> Project:
        """Return a copy of `benchmarks/projects/<name>`."""
        return copy_benchmark_project(name, self.folder)

    def script(
        self, name: str, *arguments: str | Path, environment: Mapping[str, str] | None = None, isolated: bool = False
    ) -> dict[str, Any]:
        """Run `benchmarks/scripts/<name>` in a fresh process and return the JSON of its last line.

        An isolated process has nothing installed beside what PYTHONPATH names.
        """
        command = [sys.executable, *(["-S"] if isolated else []), HERE / "scripts" / name, *arguments]
        done = run(command, cwd=self.folder, environment={**quiet(), **(environment or {})}, timeout=3600).check()
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return report

    def time_cold(self, action: Callable[[dict[str, str]], object]) -> float:
        """Return the seconds of an action that gets an empty inductor cache, temporary folder and hatch-lower cache."""
        cold = self.folder / "cold"
        shutil.rmtree(cold, ignore_errors=True)
        variables = {**quiet(), **inductor_folders(cold), "HATCH_LOWER_CACHE_DIR": str(cold / "hatch-lower")}
        begin = time.perf_counter()
        action(variables)
        return time.perf_counter() - begin

    def report(self, measure: str, measured: str, to_reach: str, **figures: float) -> None:
        """Record figures, and a row of the table at the end of the run."""
        self.benchmark.extra_info.update({**figures, "measured": measured, "to_reach": to_reach})
        self.rows.append((measure, measured, to_reach))


def quiet() -> dict[str, str]:
    """Return the variables of every measured process: threads that wait without spinning, nothing from a network."""
    return {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def inductor_folders(folder: Path) -> dict[str, str]:
    """Return variables for an inductor cache and a temporary folder below `folder`, which are made."""
    (folder / "tmp").mkdir(parents=True)
    return {"TMPDIR": str(folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


def copy_benchmark_project(name: str, folder: Path) -> Project:
    """Copy a project of the benchmarks into `folder`."""
    root = folder / name
    shutil.copytree(HERE / "projects" / name, root, ignore=shutil.ignore_patterns("__pycache__"))
    return Project(root, folder / f"{name}-dist", folder / f"{name}-cache")


@pytest.fixture
def bench(benchmark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """What a benchmark needs."""
    return Bench(tmp_path, benchmark, request.config.stash.setdefault(ROWS_KEY, []))


@pytest.fixture(scope="session")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the folder in which the wheel of a benchmark project lies unpacked; built once in the run."""
    folders: dict[str, Path] = {}

    def unpacked(name: str) -> Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp(name)
            project = copy_benchmark_project(name, folder)
            if name == "bert":
                add_portable_recipe(project)
            project.build(environment=quiet()).check()
            folders[name] = unpack(only(project.dist, "*.whl"), folder / "site")
        return folders[name]

    return unpacked


@pytest.fixture(scope="session")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, str]]]:
    """Returns what a hand-written export script makes of a project's model, and the variables of its warm caches."""
    made: dict[str, tuple[Path, dict[str, str]]] = {}

    def package(name: str) -> tuple[Path, dict[str, str]]:
        if name not in made:
            folder = tmp_path_factory.mktemp(f"{name}-by-hand")
            variables = {**quiet(), **inductor_folders(folder / "warm")}
            path = folder / "model.pt2"
            command = [sys.executable, HERE / "scripts" / "export_by_hand.py", HERE / "projects" / name, name, path]
            run(command, cwd=folder, environment=variables, timeout=3600).check()
            made[name] = (path, variables)
        return made[name]

    return package


@pytest.fixture
def with_portable() -> Callable[[Project], None]:
    """Adds the recipe `portable` to a project."""
    return add_portable_recipe


def add_portable_recipe(project: Project) -> None:
    """Append the recipe to the project's table."""
    with (project.root / "pyproject.toml").open("a") as file:
        file.write("\n[tool.hatch.build.targets.wheel.hooks.lower.recipes.portable]\nbackends = []\n")


@pytest.fixture
def median_of() -> Callable[[int, Callable[[], float]], float]:
    """Returns the median of an action's results over some repetitions."""
    return lambda count, action: statistics.median(action() for _ in range(count))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what was measured beside what is to reach."""
    rows = config.stash.get(ROWS_KEY, [])
    if not rows:
        return
    terminalreporter.section(f"measured on {os.cpu_count()} cores")
    table = [("measure", "measured", "to reach"), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(3)]
    for row in table:
        terminalreporter.write_line("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
