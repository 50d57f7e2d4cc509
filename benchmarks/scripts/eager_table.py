"""`eager_table.py PATH…`: time calls of three models, eager and lowered for each engine; write the table into files.

The table replaces the text between the lines `<!-- eager -->` and `<!-- /eager -->` of each file. A wheel has a recipe
for each engine. In a single process, eager and the recipes take turns with one thread each. Each figure is the
processor time of the fastest round, so the machine need not be quiet. The command takes some ten minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from engine_table import MODELS, PROJECTS, TABLE, set_backends

RECIPES = ("aoti", "openvino", "onnxruntime", "executorch", "portable")
WAYS = ("eager", *RECIPES)
CALLS = {"bert": 1, "resnet": 3, "mlp": 300}
ROUNDS = 20
MARKED = re.compile(r"(?<=<!-- eager -->\n).*?(?=<!-- /eager -->)", re.DOTALL)
HEAD = f"| ms per call | eager | {' | '.join(f'`{each}`' for each in RECIPES)} |\n|---|{'--:|' * len(WAYS)}\n"


def main(paths: list[Path]) -> None:
    """Measure, and rewrite the files."""
    for path in paths:
        if len(MARKED.findall(path.read_text())) != 1:
            raise SystemExit(f"{path} must have the lines `<!-- eager -->` and `<!-- /eager -->` once")
    rows = []
    for name in MODELS:
        rows.append(row(name, measure(name)))
        print(rows[-1], end="", file=sys.stderr, flush=True)
    for path in paths:
        path.write_text(MARKED.sub(lambda match: HEAD + "".join(rows), path.read_text()))


def measure(name: str) -> dict[str, float]:
    """Return the seconds of a call for each way."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        project, dist, site = here / name, here / "dist", here / "site"
        shutil.copytree(PROJECTS / name, project, ignore=shutil.ignore_patterns("__pycache__"))
        write_recipes(project)
        cold = {"HATCH_LOWER_CACHE_DIR": str(here / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(here / "inductor")}
        variables = {**os.environ, **cold, "BERT_METHODS": "forward", "HF_HUB_OFFLINE": "1", "TMPDIR": folder}
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", dist]
        subprocess.run(build, cwd=project, env=variables, stdout=subprocess.DEVNULL, check=True)
        (wheel,) = dist.glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(site)
        script = Path(__file__).with_name("eager_measure.py")
        command = [sys.executable, script, site, name, str(CALLS[name]), str(ROUNDS), *RECIPES]
        done = subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def write_recipes(project: Path) -> None:
    """Give a project a recipe for each engine, named like the engine; the first is the default recipe."""
    file, lines = project / "pyproject.toml", []
    for recipe in RECIPES[1:]:
        set_backends(project, [] if recipe == "portable" else [recipe])
        (written,) = (line for line in file.read_text().splitlines() if line.startswith("backends = "))
        lines += ["", f"{TABLE.rstrip(']')}.recipes.{recipe}]", written]
    set_backends(project, [RECIPES[0]])
    file.write_text(file.read_text() + "\n".join(lines) + "\n")


def row(name: str, seconds: dict[str, float]) -> str:
    """Return a line of the table."""
    return f"| {MODELS[name][0]} | {' | '.join(f'{seconds[way] * 1e3:#.3g}'.rstrip('.') for way in WAYS)} |\n"


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
