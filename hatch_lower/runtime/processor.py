"""What an engine has to know of the processor: asked of torch where it is imported, so that both agree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hatch_lower.runtime.requirements import cpu_flags

CPUS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")


def thread_count() -> int:
    """Return with how many threads an engine computes if nobody says: as many as torch, whether it is here or not."""
    if (torch := sys.modules.get("torch")) is not None:
        count: int = torch.get_num_threads()
        return count
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) else physical_cores()


def physical_cores(cpus: Path = CPUS) -> int:
    """Return the number of cores that this process may use; those that share one core count once."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len({siblings(cpus, number) for number in usable})


def siblings(cpus: Path, number: int) -> str:
    try:
        return (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return f"{number}\n"


def multiplies_bytes() -> bool:
    """Return whether the processor has instructions for sums of products of bytes, which are exact."""
    if sys.modules.get("torch") is not None:
        from hatch_lower.runtime.torch_private.unimported import has_vnni

        return bool(has_vnni())
    return "avx512_vnni" in cpu_flags(CPUINFO)
