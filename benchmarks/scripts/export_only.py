"""`export_only.py PROJECT PACKAGE`: what of a build is the author's and torch's: import, load the weights, export."""

from __future__ import annotations

import importlib
import sys

project, package = sys.argv[1:]
sys.path.insert(0, project)
sys.dont_write_bytecode = True

import torch  # noqa: E402

model = importlib.import_module(f"{package}.model").export()
with torch.no_grad():
    torch.export.export(model.module, model.methods["forward"].args, strict=False)
