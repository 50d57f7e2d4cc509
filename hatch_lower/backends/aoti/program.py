"""The program that compiles C++, found without importing torch."""

from __future__ import annotations

import os
import shutil

from hatch_lower.errors import BackendError


def find_program() -> str:
    """Return the path of the compiler that `CXX` names, or else of g++ or clang++; raise `BackendError` without any."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "clang++"]:
        program = shutil.which(name)
        if program is not None:
            return program
    raise BackendError(
        "no C++ compiler was found, and the backend `aoti` needs one to build",
        found=f"CXX is {named!r}, which is not a program" if named else "neither `g++` nor `clang++` is on PATH",
        hint="install a compiler (`apt-get install g++`, `dnf install gcc-c++`), or set CXX to its path",
    )
