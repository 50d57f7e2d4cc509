"""`engine_measure.py SITE NAME CALLS`: load, call and memory of a model in a fresh process.

Seconds are after `import torch`. Memory is the proportional set size after some calls, less that of torch at work.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from pathlib import Path

import torch

site, name, calls = sys.argv[1:]
sys.path.insert(0, site)
sys.dont_write_bytecode = True


def memory() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


torch.set_grad_enabled(False)
torch.nn.functional.gelu(torch.randn(128, 768) @ torch.randn(768, 3072)).softmax(1)
source = importlib.import_module(f"{name}.model")
x = source.example()
before = memory()
begin = time.perf_counter()
import hatch_lower  # noqa: E402

model = hatch_lower.load(name)
load = time.perf_counter() - begin
model(x)
times = []
for _ in range(int(calls)):
    begin = time.perf_counter()
    model(x)
    times.append(time.perf_counter() - begin)
used = memory() - before
expected = source.make()(x)
torch.testing.assert_close(model(x), expected, rtol=1e-2, atol=1e-3)
print(json.dumps({"load": load, "call": statistics.median(times), "memory": used}))
