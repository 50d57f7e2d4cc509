"""`engine_load.py lowered|direct SITE NAME ENGINE`: seconds to load a model, after all libraries are imported."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import torch  # noqa: F401

MODULES = {
    "openvino": "openvino",
    "onnxruntime": "onnxruntime",
    "executorch": "executorch.extension.pybindings._portable_lib",
}
kind, site, name, engine = sys.argv[1:]
importlib.import_module(MODULES[engine])
if kind == "lowered":
    sys.path.insert(0, site)
    from hatch_lower.runtime.load import load

    begin = time.perf_counter()
    model = load(name)
    seconds = time.perf_counter() - begin
else:
    from engine_direct import open_all

    begin = time.perf_counter()
    opened = open_all(Path(site), name, engine)
    seconds = time.perf_counter() - begin
print(json.dumps({"seconds": seconds}))
