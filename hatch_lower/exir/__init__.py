"""The edge program and its lowering, under the names and module paths of ExecuTorch's `exir`.

A backend, a partitioner or a pass that was written for ExecuTorch moves here when `executorch.exir` is replaced by
`hatch_lower.exir`. `graph` and `lowering` are hatch-lower's own. The package does not handle a build's files and
caches.
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
    # on demand: modules of this package import each other's packages, so an import of all here would be circular
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(PLACES[name]), name)
