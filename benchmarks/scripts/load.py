"""`load.py lowered SITE NAME` or `load.py by_hand PACKAGE.pt2`: seconds to load a model, after `import torch`."""

from __future__ import annotations

import json
import sys
import time

import torch

kind, place, *names = sys.argv[1:]
sys.path.insert(0, place)
begin = time.perf_counter()
if kind == "lowered":
    import hatch_lower

    model = hatch_lower.load(names[0])
else:
    model = torch._inductor.aoti_load_package(place)
print(json.dumps({"seconds": time.perf_counter() - begin}))
