"""`by_hand_measure.py SITE NAME ENGINE FOLDER ROUNDS SECONDS`: a call of the packaged model and of the engine by hand.

Both take turns in one process, each turn as many calls as fit into SECONDS, so that the load of the machine meets both.
The figures are medians of the turns' medians, in seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

site, name, engine, folder, rounds, seconds = sys.argv[1:]
sys.path.insert(0, site)
sys.dont_write_bytecode = True

import torch  # noqa: E402
from by_hand_engines import BY_HAND, arrays  # noqa: E402
from ten_models import make  # noqa: E402

import hatch_lower  # noqa: E402


def median_call(call: Callable[[], object]) -> float:
    time.sleep(0.1)  # the threads of ONNX Runtime spin for some 50 ms after a call
    call()
    times: list[float] = []
    end = time.perf_counter() + float(seconds)
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


torch.set_grad_enabled(False)
module, args = make(name)
expected = arrays(module(*args))
lowered = hatch_lower.load(name)
ways: dict[str, Callable[[], object]] = {
    "eager": lambda: module(*args),
    "packaged": lambda: lowered(*args),
    "by hand": BY_HAND[engine](module, args, Path(folder)),
}
errors = {}
for way, call in ways.items():
    pairs = zip(arrays(call()), expected, strict=True)
    errors[way] = max(float(abs(found - right).max() / max(abs(right).max(), 1e-6)) for found, right in pairs)
    assert errors[way] < 1e-2, (way, errors[way])
turns: dict[str, list[float]] = {way: [] for way in ways}
for round_ in range(int(rounds)):
    for way in ways if round_ % 2 else reversed(ways):
        turns[way].append(median_call(ways[way]))
print(json.dumps({"seconds": {way: statistics.median(found) for way, found in turns.items()}, "errors": errors}))
