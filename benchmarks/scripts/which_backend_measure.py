"""`which_backend_measure.py NAME ROUNDS SECONDS BACKEND=SITE …`: seconds of a call, eager and by backend.

Eager and the backends take turns, each turn as many calls as fit into SECONDS. A figure is the median of the fastest
turn.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ten_models import make

import hatch_lower

name, rounds, seconds, *sites = sys.argv[1:]


def median_call(call: Callable[..., Any], args: tuple[Any, ...]) -> float:
    time.sleep(0.1)  # the threads of the last engine may wait actively for a moment
    call(*args)
    times: list[float] = []
    end = time.perf_counter() + float(seconds)
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        call(*args)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def tensors(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


torch.set_grad_enabled(False)
module, args = make(name)
ways: dict[str, Callable[..., Any]] = {"eager": module}
for each in sites:
    backend, _, site = each.partition("=")
    (manifest,) = Path(site).rglob("_lowered/manifest.json")
    ways[backend] = hatch_lower.load(manifest.parent)
for call in ways.values():
    for found, expected in zip(tensors(call(*args)), tensors(module(*args)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)
turns: dict[str, list[float]] = {way: [] for way in ways}
for round_ in range(int(rounds)):
    for way in ways if round_ % 2 else reversed(ways):
        turns[way].append(median_call(ways[way], args))
print(json.dumps({way: min(found) for way, found in turns.items()}))
