"""Calls beside torch's own compiler with autotuning: `torch.compile`, and a package of AOTInductor.

Packages of torch 2.11 have ended the process or hung when they were loaded, so each measurement has its own process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from device.cases import CASES
from device.stand import Stand, difference, installed, open_stand, shortened

MODELS = ("unet", "vit_fp16", "mlp")
SECONDS = 45
# each kernel is timed in all configurations, and in their neighbours; products stay calls of libraries, as here
TUNED: Mapping[str, Any] = MappingProxyType({"max_autotune_pointwise": True, "coordinate_descent_tuning": True})
Call = Callable[..., object]


def compile_in_process(stand: Stand, name: str) -> Call:
    return torch.compile(stand.module(name), options=dict(TUNED))


def compile_package(stand: Stand, name: str) -> Call:
    with tempfile.TemporaryDirectory(prefix="hatch-lower-native-") as folder:
        inputs = stand.inputs(CASES[name].inputs())
        program = torch.export.export(stand.module(name), inputs)
        path = Path(folder, "model.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=dict(TUNED))
        loaded: Call = torch._inductor.aoti_load_package(str(path))
        return loaded


WAYS: Mapping[str, Callable[[Stand, str], Call]] = MappingProxyType(
    {"torch.compile": compile_in_process, "AOTInductor": compile_package}
)


def measure(stand: Stand, way: str, name: str) -> None:
    inputs = stand.inputs(CASES[name].inputs())
    model = stand.load(name, "" if stand.on_gpu else "portable")
    began = time.perf_counter()
    compiled = WAYS[way](stand, name)
    largest, is_right = difference(model(*inputs), compiled(*inputs))
    seconds = time.perf_counter() - began
    theirs, ours = stand.time_call(lambda: compiled(*inputs)), stand.time_call(lambda: model(*inputs))
    ratios = {f"{key.removesuffix('_ms')}_ratio": round(ours[key] / theirs[key], 3) for key in ours}
    facts = {"build_s": round(seconds, 1), "difference": largest, "ours": ours, "theirs": theirs}
    stand.record(name, way=way, ok=is_right, **facts, **ratios)


def main() -> None:
    stand = open_stand("native")
    if len(sys.argv) > 2:
        measure(stand, sys.argv[1], sys.argv[2])
        return
    ends = time.monotonic() + float(sys.argv[1])
    for way in WAYS:
        for name in (name for name in MODELS if name in installed()):
            left = min(SECONDS, ends - time.monotonic())
            if left < 10:
                stand.record(name, way=way, ok=False, error="no time was left")
                continue
            command = [sys.executable, "-W", "ignore", "-m", "device.native", way, name]
            try:
                done = subprocess.run(
                    command, timeout=left, check=False, capture_output=True, text=True, env={**os.environ}
                )
            except subprocess.TimeoutExpired:
                stand.record(name, way=way, ok=False, error=f"no end after {left:.0f} s")
                continue
            print(done.stdout, end="", flush=True)
            if done.returncode:
                stand.record(name, way=way, ok=False, status=done.returncode, error=shortened(done.stderr))


if __name__ == "__main__":
    main()
