"""`profile_lines.py [MODEL …]`: how much of a call `hatch-lower profile` attributes to source lines, in each engine.

For BERT (`BERT_LAYERS`, by default 2) and ResNet-18 it prints the time of a call, the share that goes to source lines,
what all rows are of the call, and by how much timers make a call longer. It takes minutes, and wants a quiet machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine_table import BACKENDS, PROJECTS, TABLE, WRITTEN

MODELS = ("bert", "resnet")
SECONDS = 20
HEAD = "| model | engine | call ms | to source lines | all rows | overhead |\n|---|---|--:|--:|--:|--:|"


def main(models: list[str]) -> None:
    """Build each model in all engines, profile it, and print the table."""
    print(HEAD)
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            report = profile(name, Path(folder))
        for engine in BACKENDS:
            recipe = report["recipes"].get(engine)
            print(row(name, engine, recipe) if recipe else f"| {name} | `{engine}` | not here | | | |", flush=True)
            for note in recipe["notes"] if recipe else []:
                print(f"{name}, {engine}: {note}", file=sys.stderr)


def profile(name: str, here: Path) -> dict[str, Any]:
    """Return the profile of a model with a recipe for each engine."""
    project, dist = here / name, here / "dist"
    shutil.copytree(PROJECTS / name, project, ignore=shutil.ignore_patterns("__pycache__"))
    file = project / "pyproject.toml"
    lines = [TABLE, "verify = false", 'runtime-requirements = "off"', 'pass-env = ["BERT_*"]']
    for engine in BACKENDS:
        written = "" if engine == "portable" else WRITTEN.get(engine, json.dumps(engine))
        lines += [f"[{TABLE.strip('[]')}.recipes.{engine}]", f"backends = [{written}]"]
    file.write_text(file.read_text().partition(TABLE)[0] + "\n".join(lines) + "\n")
    variables = {**os.environ, "HATCH_LOWER_CACHE_DIR": str(here / "cache"), "BERT_METHODS": "forward"}
    variables.setdefault("BERT_LAYERS", "2")
    run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(dist)], project, variables)
    (wheel,) = dist.glob("*.whl")
    recipes = [part for engine in BACKENDS for part in ("--recipe", engine)]
    command = ["hatch-lower", "profile", str(wheel), *recipes, "--project", str(project), "--json"]
    found: dict[str, Any] = json.loads(run([*command, "--seconds", str(SECONDS)], here, variables))
    return found


def run(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-4000:]}")
    return done.stdout


def row(name: str, engine: str, recipe: dict[str, Any]) -> str:
    """Return a line of the table."""
    seconds = recipe["seconds"]
    rows = sum(each["seconds"] for each in recipe["rows"]) / seconds
    return (
        f"| {name} | `{engine}` | {seconds * 1e3:.1f} | {recipe['attributed']:.1%} | {rows:.1%} "
        f"| {recipe['overhead']:+.1%} |"
    )


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
