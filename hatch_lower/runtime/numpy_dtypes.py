"""NumPy dtypes for the dtypes of a plan; dtypes that NumPy lacks come from `ml_dtypes`, if installed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from hatch_lower.errors import ProgramError
from hatch_lower.format.values import DTYPES

DType = np.dtype[Any]
OTHERS = frozenset(name for name in DTYPES if name == "bfloat16" or name.startswith("float8"))  # in `ml_dtypes`


def is_common(name: str) -> bool:
    return name not in OTHERS and name != "complex32"


def element_dtype(name: str) -> DType:
    """Return the NumPy dtype for elements of a plan's dtype; raw bytes if unavailable."""
    if is_common(name):
        return np.dtype(name)
    found = extra_dtype(name) if name in OTHERS else None
    return np.dtype(f"V{DTYPES[name].size}") if found is None else found


def border_dtype(name: str) -> DType:
    """Return the NumPy dtype for a method's arguments. Raises `ProgramError` if unavailable."""
    if is_common(name):
        return np.dtype(name)
    if name not in OTHERS:
        raise ProgramError(
            f"the program takes {name}, which NumPy does not have", hint='load the model with `arrays="torch"`'
        )
    found = extra_dtype(name)
    if found is None:
        raise ProgramError(
            f"the program takes {name}, which NumPy has from the package `ml_dtypes`",
            found="`ml_dtypes` is not installed, or too old",
            hint='run `pip install ml_dtypes`, or load the model with `arrays="torch"`',
        )
    return found


def extra_dtype(name: str) -> DType | None:
    try:
        kind = getattr(importlib.import_module("ml_dtypes"), name, None)
    except ImportError:
        return None
    return None if kind is None else np.dtype(kind)


def is_bfloat16(array: np.ndarray[Any, Any]) -> bool:
    """Return whether a delegate's array is bfloat16, as the dtype of `ml_dtypes` or as raw bytes."""
    dtype: DType = array.dtype
    return bool(dtype.kind == "V" and dtype.itemsize == 2)
