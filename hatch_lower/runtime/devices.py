"""The device on which a recipe runs on this machine, or the reason why the recipe cannot run there.

The questions are in the order of their cost: the manifest, torch's version, the driver, and last the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hatch_lower.errors import InputError
from hatch_lower.format.constants import TargetEntry
from hatch_lower.format.manifest import RecipeEntry
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    import torch

    from hatch_lower.runtime.arrays import Arrays
    from hatch_lower.runtime.selection import DelegateKinds

DEVICE = re.compile(r"cpu|cuda(?::(0|[1-9][0-9]{0,2}))?")
CODE = re.compile(r"(sm|compute)_([0-9]+)([0-9])([af]?)")


class Placement(Frozen):
    arrays: str  # the device of the program's arrays: `cpu`, `cuda:0`
    computes_on: str  # the device of the recipe; another device only if engines copy arrays to a GPU and back


def read_device(device: str | torch.device | None) -> str | None:
    """Return the text of the argument `device` of `load`: `cpu`, `cuda` or `cuda:1`; `None` if left out."""
    if device is None:
        return None
    text = str(device)  # of a text, or of a `torch.device`
    if not DEVICE.fullmatch(text):
        raise InputError(
            '`device` is "cpu", "cuda", or "cuda:" with the index of a GPU',
            found=f"{device!r:.40}",
            hint="omit `device`: then each recipe runs on its own device",
        )
    return text


def is_for_other_device(recipe: RecipeEntry, device: str | None) -> bool:
    """Return whether a recipe is for another type of device than the asked one; a recipe without delegates is not."""
    if device is None or (recipe.device == "cpu" and not recipe.backends):
        return False
    return device.partition(":")[0] != recipe.device


def other_device_reason(recipe: RecipeEntry, device: str) -> str:
    return f"its device is `{recipe.device}`, and `device` is {device!r}"


def place_recipe(recipe: RecipeEntry, device: str | None, arrays: Arrays, kinds: DelegateKinds) -> Placement | str:
    """Return the devices of a recipe whose other requirements are met, or the reason why the recipe cannot run."""
    if is_for_other_device(recipe, device):
        return other_device_reason(recipe, str(device))
    return place_program(device or recipe.device, recipe.backends, recipe.target, arrays, kinds)


def place_program(
    device: str, backends: Sequence[str], target: TargetEntry | None, arrays: Arrays, kinds: DelegateKinds
) -> Placement | str:
    """Return the devices of a program for `cpu`, `cuda` or `cuda:1`, or the reason why the program cannot run there."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return Placement("cpu", "cpu")
    host = Placement("cpu", f"cuda:{number or 0}")
    if arrays.name != "torch":
        if copies_arrays(kind, backends, kinds):
            return host
        return f"on {kind} its arrays are tensors, and `arrays` is {arrays.name!r}"
    from hatch_lower.runtime.torch_private.cuda import cuda_version, fork_test

    if not (version := cuda_version()):
        return host if copies_arrays(kind, backends, kinds) else "this torch has no CUDA"
    if target is not None and (reason := version_reason(target, version)):
        return reason
    if fork_test()():
        return "this process was forked from a process that had used the GPU: start processes with `spawn`"
    index = find_gpu(number)
    if isinstance(index, str):
        return index
    reason = None if target is None else code_reason(target, index)
    return reason or Placement(f"cuda:{index}", f"cuda:{index}")


def copies_arrays(kind: str, backends: Sequence[str], kinds: DelegateKinds) -> bool:
    """Return whether the engines of a program for a GPU take arrays on the CPU and copy the arrays by themselves."""
    return bool(backends) and all({"cpu", kind} <= set(kinds.load(each).devices) for each in backends)


def version_reason(target: TargetEntry, version: str) -> str | None:
    major = version.partition(".")[0]
    if target.cuda in ("", major):
        return None
    return f"it was compiled for CUDA {target.cuda}, and this torch has CUDA {major}"


def find_gpu(number: str) -> int | str:
    """Return the index of the GPU that `number` names, by default of the current GPU, or the reason why not."""
    from hatch_lower.runtime.torch_private.cuda import count_gpus, current_gpu

    count, why = count_gpus()
    if not count:
        return "there is no GPU that torch can use" + (f": {why:.300}" if why else "")
    if number and int(number) >= count:
        return f"there is no GPU with the index {number}, only {count} GPU{'s' if count > 1 else ''}"
    return int(number) if number else current_gpu()


def code_reason(target: TargetEntry, index: int) -> str | None:
    from hatch_lower.runtime.torch_private.cuda import capability_of

    found = capability_of(index)
    codes = [*target.arch, *([target.ptx] if target.ptx else [])]
    if not codes or any(runs_on(code, found) for code in codes):
        return None
    if unknown := [code for code in codes if not CODE.fullmatch(code)]:
        return f"its GPU architecture `{unknown[0]}` is unknown here"
    gpu = f"this GPU is sm_{found[0]}{found[1]}"
    lowest = min(codes, key=capability_in)
    if capability_in(lowest) > found:
        return f"it needs sm_{lowest.partition('_')[2]} or later, and {gpu}"
    return f"it was compiled for {', '.join(codes)}, and {gpu}"


def capability_in(code: str) -> tuple[int, int]:
    """Return the compute capability in `sm_90a` or `compute_80`; a capability above all others for an unknown text."""
    parts = CODE.fullmatch(code)
    return (int(parts[2]), int(parts[3])) if parts else (1 << 30, 0)


def runs_on(code: str, found: tuple[int, int]) -> bool:
    """Return whether code for an architecture runs on a GPU, by the rules of CUDA."""
    # machine code runs on the same major version from its minor version on, PTX on all later versions; with `a`, code
    # runs on its own version only, with `f` on the versions of its family
    parts = CODE.fullmatch(code)
    if parts is None:
        return False
    needed = int(parts[2]), int(parts[3])
    if parts[4] == "a":
        return found == needed
    same = found[0] == needed[0] or (parts[1] == "compute" and not parts[4])
    return found >= needed and same
