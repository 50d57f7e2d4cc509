"""`engine_call.py SITE NAME ENGINE CALLS ROUNDS`: seconds of one call, lowered and by the engine used directly.

The engine gets what the delegates get, partition by partition. Both take turns, so that what else the machine does
meets both; each figure is the median of its rounds.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import numpy
from engine_direct import ENGINES

site, name, engine, calls, rounds = sys.argv[1:]
sys.path.insert(0, site)
sys.dont_write_bytecode = True

import torch  # noqa: E402

import hatch_lower  # noqa: E402


def seconds_of(call: Callable[[], object], count: int) -> float:
    if engine == "onnxruntime":  # by default its threads spin for some 50 ms, and would disturb the other's turn
        time.sleep(0.2)
        call()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


torch.set_grad_enabled(False)
source = importlib.import_module(f"{name}.model")
x = source.example()

(point,) = entry_points(group="hatch_lower.delegates", name=engine)
kind = point.load()
run = kind.run
given: dict[Any, list[Any]] = {}  # by delegate


def noting_run(self: Any, inputs: list[Any]) -> Any:
    given[self] = [each.clone() if isinstance(each, torch.Tensor) else numpy.array(each) for each in inputs]
    return run(self, inputs)


lowered = hatch_lower.load(name)
kind.run = noting_run
hatch_lower.load(name)(x)
kind.run = run
parts = [(ENGINES[engine](delegate), inputs) for delegate, inputs in given.items()]
difference = (lowered(x) - source.make()(x)).abs().max().item()
assert difference < 1e-2, difference


def direct() -> None:
    for call, inputs in parts:
        call(inputs)


ways: dict[str, Callable[[], object]] = {"lowered": lambda: lowered(x), "direct": direct}
times: dict[str, list[float]] = {way: [] for way in ways}
for round_ in range(int(rounds) + 1):
    for way in ways if round_ % 2 else reversed(ways):
        seconds = seconds_of(ways[way], int(calls))
        if round_:
            times[way].append(seconds)
print(json.dumps({"partitions": len(parts), **{way: statistics.median(values) for way, values in times.items()}}))
