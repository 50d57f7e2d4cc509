"""Arguments that are no plain arrays of NumPy: subclasses, scalars, tensors, and whatever speaks DLPack."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hatch_lower.runtime.numpy_dtypes import extra_dtype, is_common

Array = np.ndarray[Any, Any]
CPU = 1  # DLPack's number of the device
VIEWS = {1: "uint8", 2: "int16"}  # of tensors whose dtype NumPy lacks, by the size of an element


def as_array(value: object) -> Array | None:
    """Return a value as a plain array over the same memory; `None` for what is none, or does not lie on the CPU."""
    if isinstance(value, np.ndarray):
        # what is masked counts as missing: its values are not meant
        return None if isinstance(value, np.ma.MaskedArray) else value.view(np.ndarray)
    if isinstance(value, np.generic):
        found = np.asarray(value)
        found.flags.writeable = False  # a copy: what is written into it would be lost
        return found
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return of_tensor(torch, value)
    return of_dlpack(value)


def of_tensor(torch: Any, tensor: Any) -> Array | None:
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    try:
        plain = tensor.detach().resolve_conj().resolve_neg()
        dtype = None if is_common(name) else extra_dtype(name)
        if dtype is not None:
            plain = plain.view(getattr(torch, VIEWS[plain.itemsize]))
        array: Array = plain.numpy()
        if tensor.is_conj() or tensor.is_neg():
            array.flags.writeable = False  # a copy, as of a scalar
        return array if dtype is None else array.view(dtype)
    except (RuntimeError, TypeError, KeyError):  # of a subclass without memory, or of a dtype that nothing here has
        return None


def of_dlpack(value: Any) -> Array | None:
    try:
        if not hasattr(value, "__dlpack__") or value.__dlpack_device__()[0] != CPU:
            return None
        return np.from_dlpack(value)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError, IndexError):
        return None
