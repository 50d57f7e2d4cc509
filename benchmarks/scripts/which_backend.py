"""`which_backend.py build|measure|write FOLDER …`: the table "Which backend?" of ten models.

`build FOLDER [MODEL …]` builds a wheel of each model for each backend; `measure FOLDER [MODEL …]` times calls of the
wheels beside eager; `write FOLDER PATH …` replaces the text between the lines `<!-- which -->` and `<!-- /which -->` of
files. FOLDER keeps the wheels and the results, so that models can be built and measured apart.

Eager and the backends take turns in one process, each turn as many calls as fit into 0.4 s. Each `measure` adds a
process. A figure is the median of the fastest turn of all processes, since other work on the machine only adds to a
turn. All times are processor time, and calls have one thread, so the machine need not be quiet. Builds start with empty
caches, and compare with eager.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import statistics
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from by_hand import build, run
from ten_models import MODELS

from hatch_lower.cli.inspect import installed_sizes
from hatch_lower.errors import size_text
from hatch_lower.runtime.selection import machine_level

HERE = Path(__file__).resolve().parent
TITLES = {
    "bert": "BERT-base, 128 tokens",
    "minilm": "MiniLM, 128 tokens",
    "vit": "ViT-base",
    "resnet": "ResNet-50",
    "mobilenet": "MobileNetV3",
    "unet": "U-Net, 128x128",
    "whisper": "Whisper-tiny's encoder",
    "detector": "a detector, 320x320",
    "decoder": "a decoder's step",
    "mlp": "MLP",
}
BACKENDS = ("openvino", "onnxruntime", "executorch", "aoti", "portable")
LIBRARIES = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime", "executorch": "ExecuTorch", "torch": "torch"}
RUNS_ON = {
    "openvino": "wherever OpenVINO does",
    "onnxruntime": "wherever ONNX Runtime does",
    "executorch": "wherever ExecuTorch does, and on phones",
    "aoti": "Linux, the build's family of processors",
    "portable": "wherever torch does",
}
MARKED = re.compile(r"(?<=<!-- which -->\n).*?(?=<!-- /which -->)", re.DOTALL)
ROUNDS, SECONDS = 3, 0.4
LARGE = 1 << 20
TOLERANCE = "rtol = 1e-2\natol = 1e-3"  # with random weights, rounding adds up to more than in trained models


def build_model(name: str, folder: Path) -> None:
    """Build a model's wheels, and note the processor time and the requirements of each."""
    built: dict[str, Any] = {}
    for backend in BACKENDS:
        before = processor_seconds()
        texts = "" if backend == "portable" else json.dumps(backend)
        site = build(name, texts, folder / name / backend, verify=True, settings=TOLERANCE)
        seconds = processor_seconds() - before
        share_large_files(site, folder / name / "shared")
        (manifest,) = site.rglob("_lowered/manifest.json")
        (recipe,) = json.loads(manifest.read_bytes())["models"][name]["recipes"].values()
        built[backend] = {"seconds": seconds, "requirements": recipe["requirements"]}
    (folder / f"{name}.built.json").write_text(json.dumps(built))


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def share_large_files(site: Path, shared: Path) -> None:
    """Keep equal weights of several wheels once."""
    shared.mkdir(exist_ok=True)
    for path in site.rglob("*"):
        if path.is_file() and path.stat().st_size >= LARGE:
            with path.open("rb") as file:
                kept = shared / hashlib.file_digest(file, "sha256").hexdigest()
            if not kept.exists():
                os.link(path, kept)
            path.unlink()
            os.link(kept, path)


def measure_model(name: str, folder: Path) -> None:
    """Time the ways of a model in a new process, and add the times to those of earlier processes."""
    sites = [f"{backend}={folder / name / backend / 'site'}" for backend in BACKENDS]
    command = [HERE / "which_backend_measure.py", name, ROUNDS, SECONDS, *sites]
    found = json.loads(run(command).splitlines()[-1])
    path = folder / f"{name}.measured.json"
    earlier = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*earlier, found]))
    print(name, found, file=sys.stderr, flush=True)


def fastest(name: str, folder: Path) -> dict[str, float]:
    measured = json.loads((folder / f"{name}.measured.json").read_text())
    return {way: min(each[way] for each in measured) for way in ("eager", *BACKENDS)}


def write_table(folder: Path, paths: list[Path]) -> None:
    text = table(folder)
    for path in paths:
        if len(MARKED.findall(path.read_text())) != 1:
            raise SystemExit(f"{path} must have the lines `<!-- which -->` and `<!-- /which -->` once")
        path.write_text(MARKED.sub(lambda match: text, path.read_text()))


def table(folder: Path) -> str:
    built = {name: json.loads((folder / f"{name}.built.json").read_text()) for name in MODELS}
    heads = [f"`{backend}`" if backend != "portable" else "no backend" for backend in BACKENDS]
    lines = [row("a call ÷ eager's", "eager", *heads), f"|---|{'--:|' * (len(BACKENDS) + 1)}"]
    for name in MODELS:
        seconds = fastest(name, folder)
        ratios = [f"{seconds[backend] / seconds['eager']:.2f}" for backend in BACKENDS]
        least = min(ratios)
        cells = [f"**{ratio}**" if ratio == least else ratio for ratio in ratios]
        lines.append(row(TITLES[name], f"{seconds['eager'] * 1e3:#.3g}".rstrip(".") + " ms", *cells))
    builds = [statistics.median(found[backend]["seconds"] for found in built.values()) for backend in BACKENDS]
    lines.append(row("a build, processor time", "", *(f"{each:.0f} s" for each in builds)))
    lines.append(row("installed", "", *(installed(built, backend) for backend in BACKENDS)))
    lines.append(row("compiler in builds", "", *("g++" if backend == "aoti" else "no" for backend in BACKENDS)))
    lines.append(row("runs on", "", *(RUNS_ON[backend] for backend in BACKENDS)))
    return "\n".join([*lines, "", caption(), ""])


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def installed(built: Mapping[str, Any], backend: str) -> str:
    """Return the bytes of the installed distributions that the models' programs require, torch among them or not."""
    sizes = [installed_sizes(found[backend]["requirements"]) for found in built.values()]
    alone = [sum(filter(None, each.values())) for each in sizes if "torch" not in each]
    with_torch = [sum(filter(None, each.values())) for each in sizes if "torch" in each]
    parts = [size_text(max(alone))] if alone else []
    if with_torch:
        share = f" for {len(with_torch)} of {len(sizes)} models" if alone else ""
        parts.append(f"{size_text(max(with_torch))} with torch{share}")
    return "; ".join(parts)


def caption() -> str:
    text = Path("/proc/cpuinfo").read_text()
    processor = next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    versions = ", ".join(f"{title} {version(name).partition('+')[0]}" for name, title in LIBRARIES.items())
    return (
        f"Processor time of calls with one thread, on an {processor} with the instructions of `{machine_level()}`;"
        f" {versions}; float32, one input."
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=["build", "measure", "write"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.step == "write":
        write_table(folder, [Path(name) for name in given.names])
    for name in (given.names or MODELS) if given.step != "write" else ():
        (build_model if given.step == "build" else measure_model)(name, folder)


if __name__ == "__main__":
    main()
