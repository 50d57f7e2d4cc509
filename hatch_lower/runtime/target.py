"""Whether this machine can run native code that was compiled for a target."""

from __future__ import annotations

import platform
from pathlib import Path

from hatch_lower.format.delegates import TargetEntry

LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64", frozenset()),
    ("x86-64-v2", frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])),
    ("x86-64-v3", frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])),
    ("x86-64-v4", frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"])),
)
"""The x86-64 levels, lowest first, and the flags of Linux's `/proc/cpuinfo` that each adds."""

BASELINES = {"aarch64": "armv8-a"}
"""What every machine of an architecture without levels can run."""


def unsupported_reason(target: TargetEntry, cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return why code for `target` cannot run on this machine, or `None` if it can.

    Args:
        target: what it was compiled for.
        cpuinfo: where Linux describes the processor.
    """
    system, machine, isa = platform.system(), platform.machine(), target.isa
    if (target.system, target.machine) != (system, machine):
        return f"it was compiled for {target.system} on {target.machine}, and this is {system} on {machine}"
    if machine in BASELINES:
        return None if isa == BASELINES[machine] else f"its instruction set `{isa}` is unknown here"
    if isa not in [name for name, _ in LEVELS]:
        return f"its instruction set `{isa}` is unknown here"
    flags = cpu_flags(cpuinfo)
    for name, needed in LEVELS:
        missing = sorted(needed - flags)
        if missing:
            return f"it needs the instruction set {isa}, and this processor has no {', '.join(missing)}"
        if name == isa:
            return None
    return None


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """Return the flags of the first processor; none if they cannot be read."""
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "flags":
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()
