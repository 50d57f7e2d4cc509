"""`memory.py torch` or `memory.py SITE NAME`: bytes of physical memory after loading and running everything.

`torch` is what torch itself needs: imported, its threads and its matrix library at work on arrays of the same size.
The figure is the proportional set size. It holds the pages of the mapped weights that were touched, each once: the
resident set size counts a page as often as the process maps it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch


def memory() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


torch.set_grad_enabled(False)
x = torch.randn(128, 768)
torch.nn.functional.gelu(x @ torch.randn(768, 3072)).softmax(1)
torch.nn.functional.scaled_dot_product_attention(*[torch.randn(1, 12, 128, 64)] * 3)
report = {"before": memory()}
if sys.argv[1] != "torch":
    site, name = sys.argv[1:]
    sys.path.insert(0, site)
    import hatch_lower

    tokens = torch.arange(128).reshape(1, 128) + 1000
    models = [hatch_lower.load(name, recipe=recipe) for recipe in ("default", "portable")]
    for model in models:
        for method in sorted(model.methods):
            model[method](tokens)
    report["after"] = memory()
print(json.dumps(report))
