"""`engine_load.py SITE NAME ENGINE`: seconds to load a model once all libraries are imported, and its delegates'."""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib.metadata import entry_points
from typing import Any

import torch  # noqa: F401

MODULES = {
    "openvino": "openvino",
    "onnxruntime": "onnxruntime",
    "executorch": "executorch.extension.pybindings._portable_lib",
}
site, name, engine = sys.argv[1:]
importlib.import_module(MODULES[engine])
sys.path.insert(0, site)
from hatch_lower.runtime.load import load  # noqa: E402

(point,) = entry_points(group="hatch_lower.delegates", name=engine)
kind = point.load()
load_delegate = kind.load.__func__
direct = 0.0


def timed_load(cls: Any, blob: Any, constants: Any) -> Any:
    global direct
    begin = time.perf_counter()
    delegate = load_delegate(cls, blob, constants)
    direct += time.perf_counter() - begin
    return delegate


kind.load = classmethod(timed_load)
begin = time.perf_counter()
model = load(name)
seconds = time.perf_counter() - begin
print(json.dumps({"seconds": seconds, "direct": direct}))
