"""`which_backend_measure.py NAME ROUNDS SECONDS BACKEND=SITE …`: seconds of a call, eager and by backend.

Eager and the backends take turns, each turn as many calls as fit into SECONDS. All ways have a single thread, and the
seconds are processor time, which leaves out the time of other processes. A figure is the median of the fastest turn.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before torch and the engines choose their numbers of threads

import torch  # noqa: E402
from ten_models import make  # noqa: E402

import hatch_lower  # noqa: E402

name, rounds, seconds, *sites = sys.argv[1:]


def median_call(call: Callable[..., Any], args: tuple[Any, ...]) -> float:
    time.sleep(0.1)  # the threads of the last engine may wait actively for a moment
    call(*args)
    times: list[float] = []
    end = time.process_time() + float(seconds)
    while not times or time.process_time() < end:
        begin = time.process_time()
        call(*args)
        times.append(time.process_time() - begin)
    return statistics.median(times)


def tensors(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


assert torch.get_num_threads() == 1
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
