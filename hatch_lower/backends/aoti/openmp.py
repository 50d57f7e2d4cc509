"""Whether a compiled library would run on torch's OpenMP library, or bring a second one into the process.

Two of them have two pools of threads: each takes every processor, `torch.set_num_threads` reaches one only, and a fork
or a call of one from the other's threads can hang. The dynamic linker takes a library that is loaded already for any
that needs its name, so it is enough that the names agree; that is looked up before the compiled library is opened.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OPENMP_NAME = re.compile(r"lib(gomp|iomp|omp)[-\w.]*", re.ASCII)
"""Names of OpenMP libraries: GCC's, Intel's and LLVM's."""

OPENMP_FUNCTIONS = ("GOMP_", "__kmpc_", "omp_")
"""Prefixes of the functions that compilers call for OpenMP: GCC's, LLVM's, and those that programs call."""

TORCH = "libtorch_cpu.so"
FUNCTION = "omp_get_max_threads"
MAPS = Path("/proc/self/maps")


def foreign_openmp(needed: Sequence[str], torch_library: str = TORCH) -> str:
    """Return which OpenMP library, of those that are needed, is another one than torch's; empty if none is.

    Nothing is loaded. Where torch itself runs without OpenMP, any library is the first and welcome.

    Args:
        needed: names of OpenMP libraries that a compiled library is linked with (`libgomp.so.1`).
        torch_library: the loaded library that is linked with torch's.
    """
    if not needed:
        return ""
    own = address_in(torch_library)
    if own is None:
        return ""
    for name in needed:
        address = address_in(name)
        if address != own:
            there = f"`{name}`" if address is None else f"`{name}` ({path_at(address)})"
            return f"it needs {there}, and torch runs on {path_at(own)}"
    return ""


def missing_openmp(functions: Sequence[str], torch_library: str = TORCH) -> str:
    """Return which OpenMP functions torch's library lacks: GCC's has none of LLVM's; empty if it has all."""
    own = address_in(torch_library)
    if own is None:
        return ""
    missing = [name for name in functions if address_in(torch_library, name) is None]
    return f"it calls {', '.join(missing)}, which {path_at(own)} lacks" if missing else ""


def is_openmp(name: Any) -> bool:
    """Return whether this is the name of an OpenMP library, and no path."""
    return isinstance(name, str) and OPENMP_NAME.fullmatch(name) is not None


def address_in(library: str, function: str = FUNCTION) -> int | None:
    """Return where a loaded library, or one that it is linked with, has an OpenMP function; `None` if nowhere."""
    try:
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
