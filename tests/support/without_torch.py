"""Programs of engines, and processes in which importing torch, or something else, is forbidden."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any


def forbidding(*names: str) -> str:
    """Return code after which modules cannot be imported."""
    return f"""\
import sys

class Forbidding:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"{{name}} is forbidden here", name=name)

sys.meta_path.insert(0, Forbidding())
"""


def run_without_torch(code: str, *arguments: object) -> str:
    """Return what code prints in a process where torch cannot be imported; it must succeed."""
    script = f"{forbidding('torch')}{textwrap.dedent(code)}\nassert 'torch' not in sys.modules"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def save_engine(backend: str, folder: Path, module: Any, *args: Any, dynamic_shapes: Any = None) -> Path:
    """Lower a module for one engine; return the folder of the program."""
    import torch

    from hatch_lower.exir.backend.registry import find_backend
    from hatch_lower.exir.program import to_edge_transform_and_lower
    from hatch_lower.pipeline.save import save_program

    with torch.no_grad():
        program = torch.export.export(module.eval(), args, dynamic_shapes=dynamic_shapes)
        partitioner = find_backend(backend).partitioner({"threads": 1})
        lowered = to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()
    return save_program(lowered, folder)
