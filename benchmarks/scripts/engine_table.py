"""`engine_table.py PATH [MODEL …]`: measure all backends with the three models; write the table into a file.

The table replaces what is between the lines `<!-- engines -->` and `<!-- /engines -->`. The command takes minutes, and
wants a quiet machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

__all__ = ["BACKENDS", "PROJECTS", "TABLE", "WRITTEN", "measure", "replaced", "set_backends"]

PROJECTS = Path(__file__).resolve().parents[1] / "projects"
MODELS = {"bert": ("BERT-base 1x128", 15), "resnet": ("ResNet-18", 25), "mlp": ("MLP", 2000)}
WRITTEN = {
    "executorch": '{ name = "executorch", portable-operators = true, exclude = ["aten.embedding.default"] }',
}
"""How a backend is written into a recipe where its name is not all: each gets what it is good at of a model.

A table of embeddings is mapped and shared as a constant of the model; in a `.pte` it would be compared at each load.
"""
BACKENDS = ("aoti", "openvino", "onnxruntime", "executorch", "reference", "portable")
MARKED = re.compile(r"(?<=<!-- engines -->\n).*?(?=<!-- /engines -->)", re.DOTALL)
HEAD = "| model | backend | build s | wheel MB | load ms | call ms | memory MB |\n|---|---|--:|--:|--:|--:|--:|\n"
TABLE = "[tool.hatch.build.targets.wheel.hooks.lower]"


def main(path: Path, models: list[str]) -> None:
    """Measure, and rewrite the file."""
    text = path.read_text()
    if len(MARKED.findall(text)) != 1:
        raise SystemExit(f"{path} must have the lines `<!-- engines -->` and `<!-- /engines -->` once")
    rows = []
    for name in models:
        for backend in BACKENDS:
            rows.append(row(name, backend, measure(name, backend)))
            print(rows[-1], end="", file=sys.stderr, flush=True)
    path.write_text(replaced(text, rows))


def replaced(text: str, rows: list[str]) -> str:
    """Return the text with the rows between the marks."""
    return MARKED.sub(lambda match: HEAD + "".join(rows), text)


def set_backends(project: Path, backends: list[str], texts: Mapping[str, str] = WRITTEN) -> None:
    """Give a project's one recipe these backends; unverified, for what is compared is time."""
    file = project / "pyproject.toml"
    kept = file.read_text().partition(TABLE)[0]
    written = ", ".join(texts.get(each, json.dumps(each)) for each in backends)
    lines = [TABLE, f"backends = [{written}]", "verify = false", "check-megabytes = 0"]
    lines += ['runtime-requirements = "add"', 'pass-env = ["BERT_*"]']
    file.write_text(kept + "\n".join(lines) + "\n")


def measure(name: str, backend: str) -> dict[str, float] | str:
    """Return the figures of one model and backend, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        project, dist, site = here / name, here / "dist", here / "site"
        shutil.copytree(PROJECTS / name, project, ignore=shutil.ignore_patterns("__pycache__"))
        set_backends(project, [] if backend == "portable" else [backend])
        cold = {"HATCH_LOWER_CACHE_DIR": str(here / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(here / "inductor")}
        variables = {**os.environ, **cold, "BERT_METHODS": "forward", "HF_HUB_OFFLINE": "1", "TMPDIR": folder}
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", dist]
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)
        build = time.perf_counter() - begin
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["no wheel"])[0]
        (wheel,) = dist.glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(site)
        script = Path(__file__).with_name("engine_measure.py")
        command = [sys.executable, script, site, name, str(MODELS[name][1])]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return {"build": build, "wheel": wheel.stat().st_size, **found}


def row(name: str, backend: str, found: dict[str, float] | str) -> str:
    """Return a line of the table."""
    title = MODELS[name][0]
    if isinstance(found, str):
        return f"| {title} | `{backend}` | {found} | | | | |\n"
    call = found["call"] * 1e3
    return (
        f"| {title} | `{backend}` | {found['build']:.1f} | {found['wheel'] / 1e6:.1f} | {found['load'] * 1e3:.0f} "
        f"| {call:.3g} | {found['memory'] / 1e6:.0f} |\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(MODELS))
