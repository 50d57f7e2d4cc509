"""Lowered, delegated, debuggable PyTorch programs in a wheel: declare models, `hatch build`, `hatch_lower.load`.

Names are imported at their first use, so that importing this package takes no time in builds of other projects.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatch_lower.errors import (
        BackendError,
        CacheError,
        CallError,
        CaptureError,
        ConfigError,
        DebugError,
        EdgeError,
        EntryPointError,
        ExecutorError,
        FetchError,
        InputError,
        LowerError,
        PackageError,
        PartitionError,
        ProcessError,
        ProgramError,
        SampleError,
        VerificationError,
    )
    from hatch_lower.model import Method, Model
    from hatch_lower.runtime.fetch import fetch
    from hatch_lower.runtime.load import load

__version__ = "0.1.0"
# The groups of entry points in which distributions declare models, and the two halves of a backend.
MODEL_GROUP = "hatch_lower.models"
BACKEND_GROUP = "hatch_lower.backends"
DELEGATE_GROUP = "hatch_lower.delegates"

__all__ = [
    "BackendError",
    "CacheError",
    "CallError",
    "CaptureError",
    "ConfigError",
    "DebugError",
    "EdgeError",
    "EmptyError",
    "EntryPointError",
    "ExecutorError",
    "FetchError",
    "HiddenVariableError",
    "InputError",
    "LowerError",
    "Method",
    "Model",
    "PackageError",
    "PartitionError",
    "ProcessError",
    "ProgramError",
    "SampleError",
    "UnavailableError",
    "VerificationError",
    "__version__",
    "fetch",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    homes = {"Method": "model", "Model": "model", "fetch": "runtime.fetch", "load": "runtime.load"}
    home = homes.get(name, "errors")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
