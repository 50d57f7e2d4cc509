"""What torch tells of the processor, and of valgrind. It imports torch when it is asked."""

from __future__ import annotations

from collections.abc import Callable


def has_vnni() -> bool:
    """Return whether the processor sums products of bytes without saturation."""
    import torch

    return torch.cpu._is_vnni_supported()


def valgrind_switches() -> tuple[Callable[[], None], Callable[[], None]] | None:
    """Return what starts or stops counting below valgrind, and what writes down the counts and stops."""
    import torch

    if not torch._C._valgrind_supported_platform():
        return None
    return torch._C._valgrind_toggle, torch._C._valgrind_toggle_and_dump_stats
