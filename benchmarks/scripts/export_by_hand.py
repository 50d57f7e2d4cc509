"""What one writes without hatch-lower: `export_by_hand.py PROJECT PACKAGE OUTPUT` exports and compiles `forward`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

project, package, output = sys.argv[1:]
sys.path.insert(0, project)
sys.dont_write_bytecode = True

import torch  # noqa: E402

model = importlib.import_module(f"{package}.model")
with torch.no_grad():
    program = torch.export.export(model.make(), (model.example(),))
torch._inductor.aoti_compile_and_package(program, package_path=str(Path(output)))
