"""Conditions of every stored result beside its inputs: the machine, the interpreter, and this package's own code.

All facts are found without torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hatch_lower import __version__
from hatch_lower.cache.stats import StatCache
from hatch_lower.canonical import digest_of

CPU_INFORMATION = Path("/proc/cpuinfo")
FLAG_ROWS = (b"flags", b"Features")  # row of `/proc/cpuinfo` that names instruction sets: on x86, on aarch64
X86_SETS = ("amx", "avx", "bmi", "f16c", "fma", "sse", "ssse3")
ARM_SETS = ("asimd", "bf16", "fp", "i8mm", "sme", "sve")
PACKAGE = Path(__file__).parents[2]
CODE = (".c", ".json", ".py")


def machine_facts() -> Mapping[str, str]:
    """Return `system`, `machine`, `libc`, `cpu` and `python`, on which every stored result depends."""
    system = os.uname()
    return {
        "system": system.sysname,
        "machine": system.machine,
        "libc": libc_version(),
        "cpu": cpu_capability(),
        "python": " ".join([sys.implementation.name, *sys.version.split()]),
    }


def libc_version() -> str:
    """Return `glibc 2.36`; empty for another C library."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ""


def cpu_capability(path: Path = CPU_INFORMATION) -> str:
    """Return the sorted names of the first processor's instruction sets that numerical code chooses by."""
    for row in first_processor(path).splitlines():
        name, _, value = row.partition(b":")
        if name.strip() in FLAG_ROWS:
            sets = X86_SETS if name.strip() == b"flags" else ARM_SETS
            return " ".join(sorted(flag for flag in value.decode("ascii", "replace").split() if flag.startswith(sets)))
    return ""


def first_processor(path: Path) -> bytes:
    # the kernel produces a block at each read, and there may be hundreds
    block = b""
    try:
        with path.open("rb", buffering=0) as file:
            while b"\n\n" not in block and (piece := file.read(4096)):
                block += piece
    except OSError:
        return b""
    return block


def own_digest(stats: StatCache, package: Path = PACKAGE) -> str:
    """Return the digest of the installed package: of its RECORD, or of every file in a source tree."""
    try:
        record = stats.digest_of_record(package.parent / f"{package.name}-{__version__}.dist-info" / "RECORD")
    except OSError:
        return digest_of([__version__, code_of(package, stats)])
    return digest_of([__version__, record])


def code_of(package: Path, stats: StatCache) -> dict[str, str]:
    digests = {}
    top = f"{package}/"
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name.endswith(CODE) and not name.startswith("."):
                path = f"{folder}/{name}"
                digests[path[len(top) :]] = stats.digest(path)
    return digests
