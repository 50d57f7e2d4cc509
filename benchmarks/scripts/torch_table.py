"""`torch_table.py FOLDER PYTHON …`: which torch runs what which torch compiled; each interpreter has another version.

Each interpreter builds the wheels of four models, and packages two of them as torch does. Each then runs what all have
built, in fresh processes: a row for each model and pair of versions is printed as Markdown, with the largest
difference from the outputs that the build packaged. What is in FOLDER already is not built again. It takes an hour.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
MODELS = {
    "digits": ROOT / "examples" / "project",
    "resnet": ROOT / "benchmarks" / "projects" / "resnet",
    "bert": ROOT / "benchmarks" / "projects" / "bert",
    "decoder": ROOT / "examples" / "decoder",
}
OWN = ("digits", "resnet")  # of which torch makes a package, too
ENVIRONMENT = {"BERT_LAYERS": "4", "BERT_METHODS": "forward", "PYTHONPATH": str(ROOT)}
HOOK = re.compile(r"^\[tool\.hatch\.build(?:\.targets\.wheel)?\.hooks\.lower\]", re.MULTILINE)
SETTINGS = """[tool.hatch.build.hooks.lower]
backends = ["aoti"]
runtime-requirements = "add"
pass-env = ["BERT_*"]

[tool.hatch.build.hooks.lower.recipes.portable]
backends = []
"""
PACKAGE = """
import importlib, sys
import torch
model = importlib.import_module(f"{sys.argv[1]}.model").export()
(name, method), *_ = model.methods.items()
module = model.module
if method.attribute not in (None, "forward"):
    module.forward = getattr(module, method.attribute)
program = torch.export.export(
    module, tuple(method.args), dict(method.kwargs), dynamic_shapes=method.dynamic_shapes, strict=method.strict
)
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
torch.save((tuple(method.args), torch.export.export(module, tuple(method.args)).module()(*method.args)), sys.argv[3])
"""
CAPTURE = """
import json, os, sys, tempfile

def captured(call, *arguments):
    # what native code writes, too
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            value = call(*arguments)
        except Exception as error:
            value = {"error": f"{type(error).__name__}: {error}"}
        finally:
            os.dup2(before, 2)
        file.seek(0)
        return {**value, "said": file.read().decode()}

def tell(names, call, *arguments):
    for name in names:
        print(json.dumps({"name": name, **captured(call, name, *arguments)}), flush=True)
"""
OWN_PACKAGES = f"""{CAPTURE}
import torch

def run(name, folder):
    package = torch._inductor.aoti_load_package(f"{{folder}}/{{name}}.pt2")
    args, want = torch.load(f"{{folder}}/{{name}}.pt")
    torch.testing.assert_close(package(*args), want, rtol=1e-4, atol=1e-5)
    return {{}}

tell(sys.argv[2:], run, sys.argv[1])
"""
WHEELS = f"""{CAPTURE}
import warnings
import hatch_lower
from click.testing import CliRunner
from hatch_lower.cli.check import check

def run(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = hatch_lower.load(name).recipe
    return {{"recipe": recipe, "check": CliRunner().invoke(check, [name, "--recipe", "default", "--json"]).stdout}}

tell(sys.argv[1:], run)
"""


def main(folder: Path, interpreters: list[str]) -> None:
    versions = {version_of(each): each for each in interpreters}
    for version, python in versions.items():
        for name in MODELS:
            build(folder / version, name, python)
    print("| compiled with | run with | model | recipe | largest difference | said | torch's own package |")
    print("|---|---|---|---|--:|---|---|")
    for built in versions:
        for version, python in versions.items():
            own = run_packages(folder / built, python)
            for name, row in run_wheels(folder / built, python).items():
                print(f"| {' | '.join([built, version, name, *row, own.get(name, '')])} |", flush=True)


def version_of(python: str) -> str:
    return run(python, "-c", "import torch; print(torch.__version__)").stdout.strip()


def build(folder: Path, name: str, python: str) -> None:
    """Make a model's wheel, unpacked, and torch's own package of it."""
    project = folder / "projects" / name
    if not (folder / "sites" / name).exists():
        shutil.copytree(MODELS[name], project, dirs_exist_ok=True)
        text = (project / "pyproject.toml").read_text().replace('"torch==2.13.*"', '"torch"')
        (project / "pyproject.toml").write_text(text[: HOOK.search(text).start()] + SETTINGS)
        done = run(python, "-m", "hatchling", "build", "-t", "wheel", cwd=project)
        (folder / f"{name}.log").write_text(done.stdout + done.stderr)
        (wheel,) = (project / "dist").glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(folder / "sites" / name)
    package = folder / f"{name}.pt2"
    if name in OWN and not package.exists():
        done = run(python, "-c", PACKAGE, name, str(package), str(folder / f"{name}.pt"), cwd=project, fails=True)
        package.with_suffix(".log2").write_text(done.stdout + done.stderr)


def run_wheels(folder: Path, python: str) -> dict[str, list[str]]:
    """Return the recipe that `load` takes, the largest difference of native code, and what was said, by model."""
    sites = [str(folder / "sites" / name) for name in MODELS]
    path = {"PYTHONPATH": os.pathsep.join([*sites, str(ROOT)])}
    found = answers(run(python, "-c", WHEELS, *MODELS, environment=path, fails=True), MODELS)
    return {name: [answer.get("recipe", ""), largest_of(answer), told_by(answer)] for name, answer in found.items()}


def run_packages(folder: Path, python: str) -> dict[str, str]:
    found = answers(run(python, "-c", OWN_PACKAGES, str(folder), *OWN, fails=True), OWN)
    return {name: told_by(answer) or "runs" for name, answer in found.items()}


def answers(done: subprocess.CompletedProcess[str], names: Iterable[str]) -> dict[str, dict[str, str]]:
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ended = {"error": f"the process ended with {done.returncode}: {last_line(done.stderr)}"}
    return {name: next((line for line in lines if line["name"] == name), ended) for name in names}


def largest_of(answer: Mapping[str, str]) -> str:
    rows = json.loads(answer.get("check") or "[]")
    return f"{max((row['largest_error'] for row in rows if row['largest_error'] is not None), default=math.nan):.1e}"


def told_by(answer: Mapping[str, str]) -> str:
    rows = json.loads(answer.get("check") or "[]")
    details = [f"{row['method']}: {row['status']} {row['detail']}" for row in rows if row["detail"]]
    return "; ".join(filter(None, [answer.get("error", "")[:120], *details, last_line(answer.get("said", ""))]))


def last_line(text: str) -> str:
    # nanobind, which triton is made with, counts what it leaks in any process that ends
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not re.match(r"nanobind: | - (?:leaked|\.\.\.)|See http", line)
    ]
    return lines[-1].strip()[:120] if lines else ""


def run(
    python: str, *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] = {}, fails: bool = False
) -> subprocess.CompletedProcess[str]:
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, **ENVIRONMENT, "PATH": path, **environment}
    done = subprocess.run([python, *arguments], cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if done.returncode and not fails:
        raise SystemExit(f"{python} {' '.join(arguments)[:200]}\n{done.stdout}\n{done.stderr}")
    return done


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
