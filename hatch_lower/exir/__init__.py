"""The edge program and its lowering, under the names and module paths of ExecuTorch's `exir`.

A backend, a partitioner or a pass that was written for ExecuTorch moves here when `executorch.exir` is replaced by
`hatch_lower.exir`. `graph` and `lowering` are our own. Files and caches of a build are none of its business.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram as ExportedProgram
    from torch.export import ExportGraphSignature as ExportGraphSignature

    from hatch_lower.exir.capture import EdgeCompileConfig as EdgeCompileConfig
    from hatch_lower.exir.capture import ExecutorchBackendConfig as ExecutorchBackendConfig
    from hatch_lower.exir.program import EdgeProgramManager as EdgeProgramManager
    from hatch_lower.exir.program import to_edge as to_edge
    from hatch_lower.exir.program import to_edge_transform_and_lower as to_edge_transform_and_lower

Value = Any

PLACES = {
    "EdgeCompileConfig": "hatch_lower.exir.capture",
    "EdgeProgramManager": "hatch_lower.exir.program",
    "ExecutorchBackendConfig": "hatch_lower.exir.capture",
    "ExportGraphSignature": "torch.export",
    "ExportedProgram": "torch.export",
    "to_edge": "hatch_lower.exir.program",
    "to_edge_transform_and_lower": "hatch_lower.exir.program",
}


def __getattr__(name: str) -> object:
    # modules of the room import each other's packages: this one must not import them all in turn
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(PLACES[name]), name)
