"""Loads on a machine that hides its GPU: the warning, the next recipe, and the time that the refused recipe costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import hatch_lower
from device.cases import CASES
from device.stand import Stand, difference, installed, open_stand, shortened

REASON = "there is no GPU that torch can use"
MOST = 50.0  # milliseconds
ROUNDS = 3
MODELS = ("mlp", "conv")


def load_once(name: str, recipe: str | None) -> None:
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = hatch_lower.load(name, recipe=recipe)
    took = (time.perf_counter() - began) * 1e3
    inputs = CASES[name].inputs()
    largest, is_right = difference(model(*inputs), CASES[name].module()(*inputs))
    facts = {"ms": took, "recipe": model.recipe, "ok": is_right, "difference": largest, "device": model.device}
    print(json.dumps({**facts, "warnings": [str(warning.message) for warning in caught]}))


def load_alone(name: str, recipe: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "device.fallback", name, *([recipe] if recipe else [])]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(shortened(done.stderr))
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def measure(stand: Stand, name: str) -> None:
    with stand.attempt(name):
        first = load_alone(name, "")
        named = [load_alone(name, first["recipe"])["ms"]]
        chosen = [first["ms"]]
        for _ in range(ROUNDS - 1):
            chosen.append(load_alone(name, "")["ms"])
            named.append(load_alone(name, first["recipe"])["ms"])
        extra = min(chosen) - min(named)
        says = any(REASON in text for text in first["warnings"])
        is_on_cpu = first["device"] == "cpu" and first["recipe"] != "gpu"
        is_right = first["ok"] and says and is_on_cpu and extra <= MOST
        stand.record(name, **{**first, "ok": is_right}, extra_ms=round(extra, 1), chosen_ms=chosen, named_ms=named)


def main() -> None:
    if len(sys.argv) > 1:
        load_once(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
        return
    stand, names = open_stand("fallback"), [name for name in MODELS if name in installed()]
    with ThreadPoolExecutor(len(MODELS)) as pool:
        list(pool.map(partial(measure, stand), names))


if __name__ == "__main__":
    main()
