"""Whether a compiled library would run on torch's OpenMP library, or load a second OpenMP library.

Two OpenMP libraries have two pools of threads: each pool takes every processor, `torch.set_num_threads` reaches only
torch's, and a fork or a call across the pools can hang. The dynamic linker reuses a loaded library for any library that
needs its name, so equal names suffice. The names are compared before the compiled library is opened.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

OPENMP_NAME = re.compile(r"lib(gomp|iomp|omp)[-\w.]*", re.ASCII)  # GCC's, Intel's and LLVM's

OPENMP_FUNCTIONS = ("GOMP_", "__kmpc_", "omp_")  # called by GCC's code, LLVM's code, and programs

TORCH = "libtorch_cpu.so"
FUNCTION = "omp_get_max_threads"
MAPS = Path("/proc/self/maps")


def foreign_openmp(needed: Sequence[str], torch_library: str = TORCH) -> str:
    """Return the needed OpenMP library (`libgomp.so.1`) that is not torch's, with the reason."""
    if not needed:
        return ""
    own = address_in(torch_library)
    if own is None:  # torch itself runs without OpenMP: any library is the first
        return ""
    for name in needed:
        address = address_in(name)
        if address != own:
            there = f"`{name}`" if address is None else f"`{name}` ({path_at(address)})"
            return f"it needs {there}, and torch runs on {path_at(own)}"
    return ""


def missing_openmp(functions: Sequence[str], torch_library: str = TORCH) -> str:
    # GCC's library lacks LLVM's functions
    own = address_in(torch_library)
    if own is None:
        return ""
    missing = [name for name in functions if address_in(torch_library, name) is None]
    return f"it calls {', '.join(missing)}, which {path_at(own)} lacks" if missing else ""


def is_openmp(name: object) -> bool:
    return isinstance(name, str) and OPENMP_NAME.fullmatch(name) is not None


def address_in(library: str, function: str = FUNCTION) -> int | None:
    try:
        # look at loaded libraries only, open no further library
        loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(loaded[function], ctypes.c_void_p).value
    except (AttributeError, OSError):  # not loaded; loaded, and without the function
        return None


def path_at(address: int) -> str:
    for line in MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        span, *fields = line.split(maxsplit=5)
        first, _, last = span.partition("-")
        if int(first, 16) <= address < int(last, 16):
            return fields[4] if len(fields) > 4 else "unknown"
    return "unknown"
