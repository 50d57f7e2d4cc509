"""A project for each model of the device checks, the files of large weights, and the build of a wheel."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from device.cases import CASES, Case

REPOSITORY = Path(__file__).parents[2]
# Backends of the recipes. `ptx` has machine code for sm_80 alone, so later GPUs compile its PTX.
BACKENDS: Mapping[str, str] = {
    "gpu": '[{ name = "cuda", arch = ["sm_80", "sm_90"] }]',
    "ptx": '[{ name = "cuda", arch = ["sm_80"] }]',
    "onnx": '[{ name = "onnxruntime", providers = ["CUDAExecutionProvider", "CPUExecutionProvider"] }]',
    "cpu": '["aoti"]',
    "portable": "[]",
}
NAMES: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class Built:
    wheel: Path | None
    seconds: float
    log: str


def write_project(folder: Path, name: str, weights: Path) -> None:
    """Write the project of a model; large weights are read from `weights`, and stay outside of the wheel."""
    case = CASES[name]
    package = folder / f"device_{name}"
    package.mkdir(parents=True)
    for module in ("nets.py", "cases.py"):
        (package / module).write_bytes(Path(__file__).with_name(module).read_bytes())
    (package / "__init__.py").write_text(
        f'from .cases import CASES\n\n\ndef export():\n    return CASES["{name}"].model()\n'
    )
    lines = [
        "[build-system]",
        'requires = ["hatchling", "hatch-lower"]',
        'build-backend = "hatchling.build"',
        "[project]",
        f'name = "device-{name.replace("_", "-")}"',
        'version = "1.0.0"',
        '[project.entry-points."hatch_lower.models"]',
        f'{name} = "device_{name}:export"',
        "[tool.hatch.build.targets.wheel]",
        f'packages = ["device_{name}"]',
        "[tool.hatch.build.hooks.lower]",
        'runtime-requirements = "add"',
        "check-megabytes = 4",
        *([f'weights = "{weights.as_uri()}"'] if case.is_large() else []),
    ]
    lines += [f"[tool.hatch.build.hooks.lower.models.{name}]", f"recipes = {json.dumps(case.recipes)}"]
    for recipe in case.recipes:
        lines += [f"[tool.hatch.build.hooks.lower.recipes.{recipe}]", f"backends = {BACKENDS[recipe]}"]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")


def write_weights(path: Path, case: Case) -> None:
    """Write a file of weights in the format of safetensors; each version of that package writes another header."""
    header, blocks, place = {}, [], 0
    for name, tensor in sorted(case.weights().items()):
        block = bytes_of(tensor)
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + len(block)],
        }
        blocks.append(block)
        place += len(block)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(blocks)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def obtain_weights(folder: Path, names: list[str]) -> None:
    """Write the large weights of models, named as `load` looks for them below `HATCH_LOWER_WEIGHTS`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if CASES[name].is_large():
            path = folder / f"{name}.part"
            write_weights(path, CASES[name])
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            path.rename(folder / f"{digest}.safetensors")


def build_wheel(project: Path, cache: Path, seconds: float, **variables: str) -> Built:
    """Build a wheel without isolation, with an empty cache, and with the variables in the environment."""
    environment = {**os.environ, "HATCH_LOWER_CACHE_DIR": str(cache), **variables}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        log, is_built = done.stdout + done.stderr, done.returncode == 0
    except subprocess.TimeoutExpired:
        log, is_built = f"the build did not end in {seconds:.0f} s", False
    took = time.perf_counter() - began
    wheels = sorted((project / "dist").glob("*.whl")) if is_built else []
    return Built(wheels[0] if wheels else None, round(took, 1), log)
