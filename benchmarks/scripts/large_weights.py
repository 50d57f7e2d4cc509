"""`large_weights.py PATH BLOCKS WIDTH`: the weights of `projects/large`, the same at each run, a tensor at a time.

A block takes 32 bytes times the square of the width: 512 MiB with 4096. Prints the bytes of the file.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch

path, blocks, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
parts = {"words": 4 * width, "places": 2 * width, "up": width, "down": width}
shapes = {f"blocks.{i}.{part}.weight": [rows, width] for i in range(blocks) for part, rows in parts.items()}

header, begin = {}, 0
for name, shape in shapes.items():
    end = begin + 4 * math.prod(shape)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    begin = end
text = json.dumps(header).encode()
text += b" " * (-(8 + len(text)) % 64)
with path.open("wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    for seed, shape in enumerate(shapes.values()):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).div_(math.sqrt(width))
        file.write(memoryview(values.numpy()).cast("B"))
print(json.dumps({"bytes": path.stat().st_size}))
