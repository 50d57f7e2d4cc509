"""CPU facts for engines, taken from torch if torch is imported, so that engine and torch agree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hatch_lower.runtime.requirements import cpu_flags

CPUS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")


def thread_count() -> int:
    """Return the default number of threads of an engine: torch's default, also if torch is not installed."""
    if (torch := sys.modules.get("torch")) is not None:
        count: int = torch.get_num_threads()
        return count
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) else physical_cores()


def physical_cores(cpus: Path = CPUS) -> int:
    """Return the number of physical cores that this process may use."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len({siblings(cpus, number) for number in usable})


def siblings(cpus: Path, number: int) -> str:
    try:
        return (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return f"{number}\n"


def multiplies_bytes() -> bool:
    """Return whether the processor has exact instructions for sums of products of bytes (VNNI)."""
    if sys.modules.get("torch") is not None:
        from hatch_lower.runtime.torch_private.unimported import has_vnni

        return bool(has_vnni())
    return "avx512_vnni" in cpu_flags(CPUINFO)
