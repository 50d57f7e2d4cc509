"""`eager_measure.py SITE NAME CALLS ROUNDS RECIPE…`: seconds of one call, eager and by each recipe, taking turns.

The first recipe is the default recipe. All ways have a single thread, and the seconds are processor time, which leaves
out the time of other processes. Each figure is the mean of the fastest round.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable

site, name, calls, rounds, first, *recipes = sys.argv[1:]
sys.path.insert(0, site)
sys.dont_write_bytecode = True
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before torch and the engines choose their numbers of threads

import torch  # noqa: E402

import hatch_lower  # noqa: E402


def seconds_of(call: Callable[[], object], count: int) -> float:
    time.sleep(0.1)  # the threads of ONNX Runtime spin for some 50 ms after a call
    call()
    begin = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begin) / count


assert torch.get_num_threads() == 1
torch.set_grad_enabled(False)
source = importlib.import_module(f"{name}.model")
x, eager = source.example(), source.make()
models = {"eager": eager, first: hatch_lower.load(name)}
models |= {recipe: hatch_lower.load(name, recipe=recipe) for recipe in recipes}
for model in models.values():
    torch.testing.assert_close(model(x), eager(x), rtol=1e-2, atol=1e-3)
times: dict[str, list[float]] = {way: [] for way in models}
for round_ in range(int(rounds) + 1):
    for way in models if round_ % 2 else reversed(models):
        seconds = seconds_of(lambda model=models[way]: model(x), int(calls))
        if round_:
            times[way].append(seconds)
print(json.dumps({way: min(values) for way, values in times.items()}))
