"""`tuned.py FOLDER [MODEL …]`: the recipe that `hatch-lower tune` chooses for each of ten models, against the best.

Each model is tuned with a budget, `--repetitions` times, and then with ten times the budget. Each line is a row of a
table: the first choice, its call ÷ the fastest candidate's and ÷ eager's in the long measurement, the fastest
candidate, and the number of repetitions with the first choice. FOLDER keeps the projects and the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from by_hand import PYPROJECT, run, write_project
from ten_models import MODELS

TIMES = "lowering-times.json"


def tune(name: str, project: Path, cache: Path, budget: float) -> tuple[str, dict[str, float], dict[str, float]]:
    """Tune a model in a new project; return the chosen recipe, and by candidate its call ÷ the choice's and ÷ eager's.

    Both ratios are those of common processes; medians of all processes are of a machine in different states.
    """
    settings = "rtol = 0.001\natol = 0.001"
    text = PYPROJECT.format(name=name, backend='"onnxruntime"', verify="true", settings=settings)
    write_project(project, name, text.replace(".targets.wheel.hooks.lower", ".hooks.lower"))
    caches = {"HATCH_LOWER_CACHE_DIR": str(cache), "HF_HUB_OFFLINE": "1"}
    command = ["-m", "hatch_lower", "tune", "--write", "--budget", f"{budget:g}s"]
    text = run(command, cwd=project, env={**os.environ, **caches})
    (project / "tune.log").write_text(text)
    evidence = json.loads((project / TIMES).read_text())
    (choice,) = evidence["choices"]
    calls = {each["recipe"]: each["calls"][0] for each in evidence["measurements"]}
    eager = {recipe: call["median"] / call["eager"] for recipe, call in calls.items()}
    return choice["recipe"], {recipe: ratio_in(text, recipe) for recipe in calls}, eager


def ratio_in(text: str, recipe: str) -> float:
    """Return the figure of a candidate in the column `÷ best`, which follows the interval."""
    (line,) = (line for line in text.splitlines() if line.removeprefix("→").split()[:1] == [recipe])
    return float(re.split(r"\s{2,}", line.partition("…")[2].strip().replace("≈ ", ""))[1])


def row(name: str, folder: Path, given: argparse.Namespace) -> str:
    begin = time.perf_counter()
    cache = folder / name / "cache"
    chosen = [tune(name, folder / name / "short", cache, given.budget)[0] for _ in range(given.repetitions)]
    _, to_choice, to_eager = tune(name, folder / name / "long", cache, 10 * given.budget)
    best = min(to_choice, key=lambda each: to_choice[each])
    if not given.keep:
        shutil.rmtree(cache)
    ratios = f"{to_choice[chosen[0]] / to_choice[best]:.2f} | {to_eager[chosen[0]]:.2f}"
    times = ", ".join(f"{each} {count}" for each, count in Counter(chosen).most_common())
    return f"| {name} | `{chosen[0]}` | {ratios} | `{best}` | {times} | {time.perf_counter() - begin:.0f} s |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--budget", type=float, default=60, help="seconds of timing")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the cache of lowered candidates")
    given = parser.parse_args()
    for name in given.models or MODELS:
        try:
            print(row(name, given.folder.resolve(), given), flush=True)
        except SystemExit as failed:
            print(f"| {name} | failed: {failed} |", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
