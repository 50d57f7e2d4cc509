"""libtorch's C functions: their parameters by operator, and tensors as the handles that the functions take."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

CALL_OF_LIBTORCH = re.compile(r"AOTITorchError aoti_torch_(?:cuda|cpu)_(\w+)\(([^)]*)\);")


def calls_of_libtorch(device: str) -> Mapping[str, str]:
    """Return the parameters of each C function of libtorch for a device (`cuda`, `cpu`) that computes an operator."""
    folder = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "inductor" / "aoti_torch" / "generated"
    text = (folder / f"c_shim_{device}.h").read_text(encoding="utf-8")
    return {found[1]: found[2] for found in CALL_OF_LIBTORCH.finditer(text)}


def tensor_handle(tensor: torch.Tensor) -> int:
    """Return the address of a new C handle for a tensor; the receiver owns the handle."""
    make: Any = torch._C._aoti
    capsule = make.unsafe_alloc_void_ptr_from_tensor(tensor)
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(read(capsule, None))


def tensor_of(handle: int, *, owns: bool = False) -> torch.Tensor:
    """Return the tensor of a C handle, which stays its owner's unless the caller owns the handle."""
    if not owns:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        copy = ctypes.c_void_p()
        if library.aoti_torch_new_tensor_handle(ctypes.c_void_p(handle), ctypes.byref(copy)):
            raise RuntimeError("libtorch refuses a handle of a tensor")
        handle = copy.value or 0
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    steal: Any = torch._C._aoti
    made: torch.Tensor = steal.alloc_tensor_by_stealing_from_void_ptr(make(handle, None, None))
    return made
