"""`architectures.py FOLDER [NAME …]`: declare, build and compare the checkpoints of many architectures.

FOLDER keeps a project and `result.json` for each architecture; an architecture with results for the engines is not
built again. `ENGINES=portable,onnxruntime` leaves engines out. `architectures_table.py` writes the results into a page.
An architecture takes half a minute on a core, and with `aoti` a minute.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from architecture_images import has_processor, made_processor
from architecture_models import ARCHITECTURES, make
from architectures_measure import measure

FRESH = multiprocessing.get_context("forkserver")  # imports torch and transformers once
ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("portable", "onnxruntime", "openvino", "aoti")
TITLE = "hatch-lower: "  # before the title of an error
RECIPE = re.compile(r"(?:recipe `|`subject/)(?P<recipe>\w+)")
DEFAULT = "default"  # the recipe of the first engine
NUMBERS = re.compile(r"`[a-z_0-9]+`|\d+")  # in reasons
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "subject"
version = "1.0"

[tool.hatch.build.hooks.lower]
runtime-requirements = "off"
"""


def main(folder: Path, names: Iterable[str]) -> None:
    FRESH.set_forkserver_preload(["architectures_measure"])
    engines = os.environ.get("ENGINES", ",".join(ENGINES)).split(",")
    for name in names:
        project = folder / name
        kept = read_result(project)
        if missing := [each for each in engines if each not in kept]:
            kept |= measured(name, project, missing)
            (project / "result.json").write_text(json.dumps(kept, indent=1))
        for engine in engines:
            print(f"{name:38} {engine:12} {summary(kept[engine])}", flush=True)


def read_result(project: Path) -> dict[str, Any]:
    path = project / "result.json"
    return json.loads(path.read_text()) if path.exists() else {}


def measured(name: str, project: Path, engines: list[str]) -> dict[str, Any]:
    """Return the outcome for each engine, of a single build; an engine that fails is left out of the next build."""
    if not (project / "checkpoint").exists():
        (project / "subject").mkdir(parents=True, exist_ok=True)
        (project / "subject" / "__init__.py").touch()
        make(name).save_pretrained(project / "checkpoint")
        if has_processor(name):
            made_processor(name).save_pretrained(project / "checkpoint")
    found: dict[str, Any] = {}
    while engines:
        error = built(name, project, engines)
        if not error:
            return found | compared(name, project, engines)
        failed = RECIPE.search(error)
        failing = [engines[0] if failed["recipe"] == DEFAULT else failed["recipe"]] if failed else engines
        found |= {engine: {"error": error} for engine in failing}
        engines = [engine for engine in engines if engine not in failing]
    return found


def built(name: str, project: Path, engines: list[str]) -> str:
    """Build and unpack a wheel with a recipe for each engine, the first as the default; return the error, if any."""
    backends = [json.dumps([] if each == "portable" else [each]) for each in engines]
    lines = [f"backends = {backends[0]}\n"]
    lines += [f"recipes.{each}.backends = {given}\n" for each, given in zip(engines[1:], backends[1:], strict=True)]
    task = ARCHITECTURES[name].task
    lines += ['\n[tool.hatch.build.hooks.lower.models.subject]\ntransformers = "checkpoint"\n']
    lines += [f'task = "{task}"\n'] if task else []
    (project / "pyproject.toml").write_text(PYPROJECT + "".join(lines))
    for made in ("dist", "site"):
        shutil.rmtree(project / made, ignore_errors=True)
    done = run(project, "-m", "hatchling", "build", "-t", "wheel")
    (project / "build.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        return error_of(done.stderr)
    (wheel,) = (project / "dist").glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(project / "site")
    return ""


def error_of(text: str) -> str:
    """Return a build's error from its title on."""
    begin = text.find("\n" + TITLE)
    return text[begin + 1 + len(TITLE) :].strip() if begin >= 0 else "\n".join(text.splitlines()[-12:])


def compared(name: str, project: Path, engines: list[str]) -> dict[str, Any]:
    """Return the partitions of each method, the reasons of nodes outside, and the comparison with transformers."""
    done = run(project, "-m", "hatch_lower", "inspect", "site/subject/_lowered", "--json")
    (report,) = json.loads(done.stdout)
    model = report["models"]["subject"]
    inputs = model["methods"].get("forward", {}).get("inputs", {})
    recipes = dict(zip(engines, [DEFAULT, *engines[1:]], strict=True))
    path = project / "compared.json"
    path.unlink(missing_ok=True)
    process = FRESH.Process(target=measure, args=(name, project, inputs, list(recipes.values()), path))
    process.start()
    process.join()
    answers = json.loads(path.read_text()) if path.exists() else {}
    ended = {"error": f"the process of the call ended with {process.exitcode}"}
    return {
        engine: lowered(model["recipes"][recipe]["methods"]) | answers.get(recipe, ended)
        for engine, recipe in recipes.items()
    }


def lowered(methods: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "partitions": {name: each["partitions"] for name, each in methods.items()},
        "left_out": [str(line) for each in methods.values() for line in each["left_out"]],
        "outside": {name: list(reasons(each["undelegated"])) for name, each in methods.items()},
    }


def reasons(nodes: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """Yield each reason with the first line that has it; reasons that differ in names and numbers only are equal."""
    groups: dict[str, Mapping[str, str]] = {}
    counts = Counter(NUMBERS.sub("", node["reason"]) for node in nodes)
    for node in nodes:
        groups.setdefault(NUMBERS.sub("", node["reason"]), node)
    for key, node in groups.items():
        yield f"{counts[key]} nodes from {node['op']} at {node['source']}: {node['reason']}"


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HATCH_LOWER_CACHE_DIR": str(project.parent / "cache")}
    variables["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)


def summary(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return "FAILED " + " / ".join(result["error"].splitlines())[:400]
    partitions = ", ".join(f"{name} {count}" for name, count in result["partitions"].items())
    verdict = "UNEQUAL " + "; ".join(result["unequal"]) if result["unequal"] else f"equal {result['largest']:.0e}"
    return f"{partitions}; {verdict}" + (f"; left out {len(result['left_out'])}" if result["left_out"] else "")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:] or list(ARCHITECTURES))
