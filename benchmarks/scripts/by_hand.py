"""`by_hand.py ENGINE FOLDER [MODEL …]`: calls of ten packaged models against the same engine used by hand.

FOLDER keeps the built wheels and the models converted by hand for the next run; `--rebuild` builds the wheels again.
`--only-build` measures nothing, so that builds and timings can run apart: timings want a quiet machine. Each line is a
row of a table: milliseconds of a call, packaged ÷ by hand, packaged ÷ eager, and the largest error of both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from ten_models import MODELS

HERE = Path(__file__).resolve().parent
PYPROJECT = """
[build-system]
requires = ["hatchling", "hatch-lower"]
build-backend = "hatchling.build"

[project]
name = "tenmodels"
version = "1.0"
dependencies = ["hatch-lower>=0.1"]

[project.entry-points."hatch_lower.models"]
{name} = "tenmodels.entry:export_model"

[tool.hatch.build.targets.wheel.hooks.lower]
backends = [{backend}]
verify = {verify}
check-megabytes = 0
runtime-requirements = "add"
{settings}
"""
ENTRY = """from tenmodels.ten_models import export


def export_model():
    return export("{name}")
"""


def run(command: list[Any], **options: Any) -> str:
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return done.stdout


def write_project(project: Path, name: str, text: str) -> None:
    """Write the project of a model; `text` is the pyproject.toml."""
    shutil.rmtree(project, ignore_errors=True)
    package = project / "tenmodels"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(HERE / "ten_models.py", package)
    (package / "entry.py").write_text(ENTRY.format(name=name))
    (project / "pyproject.toml").write_text(text)


def build(name: str, backend: str, folder: Path, *, verify: bool, settings: str = "") -> Path:
    """Return the folder with the unpacked wheel of a model; `settings` are more lines of the hook's table."""
    project, site = folder / "project", folder / "site"
    for old in (site, folder / "dist"):
        shutil.rmtree(old, ignore_errors=True)
    verified = str(verify).lower()
    write_project(project, name, PYPROJECT.format(name=name, backend=backend, verify=verified, settings=settings))
    caches = {"HATCH_LOWER_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    begin = time.perf_counter()
    command = ["-m", "hatchling", "build", "--target", "wheel", "--directory", folder / "dist"]
    run(command, cwd=project, env={**os.environ, **caches})
    print(f"{name}: built in {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    shutil.rmtree(folder / "dist")
    shutil.rmtree(folder / "cache")
    return site


def measure(name: str, engine: str, folder: Path, given: argparse.Namespace) -> str:
    """Return the row of a model: medians of processes."""
    (folder / "hand").mkdir(exist_ok=True)
    facts = [folder / "site", name, engine, folder / "hand", given.rounds, given.seconds]
    found = [json.loads(run([HERE / "by_hand_measure.py", *facts]).splitlines()[-1]) for _ in range(given.processes)]
    middle = {way: statistics.median(each["seconds"][way] for each in found) for way in found[0]["seconds"]}
    ratios = sorted(each["seconds"]["packaged"] / each["seconds"]["by hand"] for each in found)
    times = " | ".join(f"{middle[way] * 1e3:.4g}" for way in ("eager", "packaged", "by hand"))
    errors = " | ".join(f"{found[0]['errors'][way]:.1e}" for way in ("packaged", "by hand"))
    spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    return f"| {name} | {times} | {spread} | {middle['packaged'] / middle['eager']:.2f} | {errors} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--backend", help="the backend as a recipe's list has it, where a name is too little")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("--only-build", action="store_true")
    parser.add_argument("--verify", action="store_true", help="compare each packaged model with eager, as builds do")
    given = parser.parse_intermixed_args()
    for name in given.models or MODELS:
        folder = given.folder.resolve() / given.engine / name
        if given.rebuild or not (folder / "site").exists():
            build(name, given.backend or json.dumps(given.engine), folder, verify=given.verify)
        if not given.only_build:
            print(measure(name, given.engine, folder, given), flush=True)


if __name__ == "__main__":
    main()
