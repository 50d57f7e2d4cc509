"""`call.py SITE NAME PACKAGE.pt2 CALLS ROUNDS`: seconds of one call, lowered, by the raw runner, and eager.

The three take turns, so that what else the machine does meets all of them; each figure is the median of its rounds.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

site, name, package, calls, rounds = sys.argv[1:]
sys.path.insert(0, site)
sys.dont_write_bytecode = True

import torch  # noqa: E402

import hatch_lower  # noqa: E402


def seconds_of(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


torch.set_grad_enabled(False)
source = importlib.import_module(f"{name}.model")
x = source.example()
lowered, eager = hatch_lower.load(name), source.make()
with tempfile.TemporaryDirectory() as folder:
    with zipfile.ZipFile(package) as archive:
        archive.extractall(folder)
    (library,) = Path(folder).rglob("*.so")
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
want = eager(x)
torch.testing.assert_close(lowered(x), want, rtol=1e-3, atol=1e-4)
torch.testing.assert_close(runner.run([x])[0], want, rtol=1e-3, atol=1e-4)

ways: dict[str, Callable[[], object]] = {
    "lowered": lambda: lowered(x),
    "runner": lambda: runner.run([x]),
    "eager": lambda: eager(x),
}
times: dict[str, list[float]] = {way: [] for way in ways}
for round_ in range(int(rounds) + 1):
    for way, call in ways.items():
        seconds = seconds_of(call, int(calls))
        if round_:
            times[way].append(seconds)
print(json.dumps({way: statistics.median(values) for way, values in times.items()}))
