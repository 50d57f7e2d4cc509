"""What an export can see of the machine and the interpreter, found out without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

CPU_INFORMATION = Path("/proc/cpuinfo")
FLAG_ROWS = (b"flags", b"Features")
"""Row of `/proc/cpuinfo` that names instruction sets: on x86, on aarch64."""
X86_SETS = ("amx", "avx", "bmi", "f16c", "fma", "sse", "ssse3")
ARM_SETS = ("asimd", "bf16", "fp", "i8mm", "sme", "sve")


def machine_facts() -> Mapping[str, str]:
    """Return `system`, `machine`, `libc`, `cpu` and `python`, on all of which a stored result depends."""
    system = os.uname()
    return {
        "system": system.sysname,
        "machine": system.machine,
        "libc": libc_version(),
        "cpu": cpu_capability(CPU_INFORMATION),
        "python": " ".join([sys.implementation.name, *sys.version.split()]),
    }


def libc_version() -> str:
    """Return `glibc 2.36`; nothing for another C library."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ""


def cpu_capability(path: Path) -> str:
    """Return the sorted names of the first processor's instruction sets that numerical code chooses by.

    Args:
        path: `/proc/cpuinfo`; where there is none, nothing is known.
    """
    for row in first_processor(path).splitlines():
        name, _, value = row.partition(b":")
        if name.strip() in FLAG_ROWS:
            wanted = X86_SETS if name.strip() == b"flags" else ARM_SETS
            return " ".join(
                sorted(flag for flag in value.decode("ascii", "replace").split() if flag.startswith(wanted))
            )
    return ""


def first_processor(path: Path) -> bytes:
    """Return the first block and little more: the kernel writes a block when it is read, and there may be hundreds."""
    block = b""
    try:
        with path.open("rb", buffering=0) as file:
            while b"\n\n" not in block and (piece := file.read(4096)):
                block += piece
    except OSError:
        return b""
    return block
