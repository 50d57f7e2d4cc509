"""On the import path, this makes torch say that the processor is another one, and notes what it is asked.

Libraries find out with an instruction, which no preloaded library can answer.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

CACHES = {"l1d_cache_size": 48 << 10, "l2_cache_size": 2 << 20}


class Finder:
    """Finds `torch.cpu`, and changes it once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's usual specification, with a loader that changes it."""
        if name != "torch.cpu":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module
            loader.exec_module = lambda module: (load(module), change(module))
        return spec


def change(module: ModuleType) -> None:
    """Turn round what `torch.cpu` says; all its other answers come from this one."""
    note("torch.cpu")
    ask = module.get_capabilities

    def get_capabilities() -> dict[str, Any]:
        note("torch.cpu.get_capabilities")
        truth = ask()
        flags = {name: not has for name, has in truth.items() if name.startswith(("amx", "avx")) and has in (0, 1)}
        return {**truth, **flags, **CACHES}

    module.get_capabilities = get_capabilities  # type: ignore[attr-defined]


def note(what: str) -> None:
    """Write a line into the log, as the preloaded library does."""
    with open(os.environ["VARIED_LOG"], "a", encoding="utf-8") as log:
        log.write(f"{what}\t{' '.join(' '.join(sys.orig_argv).splitlines())}\n")


if "VARIED_LOG" in os.environ:
    finder: Any = Finder()
    sys.meta_path.insert(0, finder)
