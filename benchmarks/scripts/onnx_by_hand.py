"""What one writes without hatch-lower: `onnx_by_hand.py PROJECT PACKAGE OUTPUT` exports `forward` for ONNX Runtime."""

from __future__ import annotations

import importlib
import sys

project, package, output = sys.argv[1:]
sys.path.insert(0, project)
sys.dont_write_bytecode = True

import torch  # noqa: E402

model = importlib.import_module(f"{package}.model")
with torch.no_grad():
    program = torch.onnx.export(model.make(), (model.example(),), dynamo=True, external_data=True)
assert program is not None
program.save(output, external_data=True)
print("{}")
