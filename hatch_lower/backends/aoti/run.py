"""Run half of the `aoti` backend: loads a library and binds its constants. Imports torch and no compiler."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from hatch_lower.backends.aoti.openmp import foreign_openmp, is_openmp
from hatch_lower.backends.call_map import CallMap, facts_read, read_call_map, require
from hatch_lower.backends.native_library import LibraryDelegate, bind_constants, library_error, without_frames
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.delegates import DelegateBlob, description_error
from hatch_lower.runtime.torch_private.inductor import multiplies_unsigned_bytes, open_library, packed_weight

ONEDNN = "ONEDNN_MAX_CPU_ISA"
LARGEST = 31 << 20  # bytes of a block by which glibc still adapts itself: the limit is 32 MiB with its head

# How a call becomes a call of the library, positions of its constants, constants packed for convolutions, names of its
# OpenMP libraries, and whether it multiplies integers
Info = tuple[CallMap, list[int], dict[str, tuple[int, dict[str, object]]], list[str], bool]


class AotiDelegate(LibraryDelegate):
    """A compiled partition, bound to its constants without a copy."""

    timed: ClassVar[str] = "hatch_lower.backends.aoti.timed:load_timed"
    untimed: ClassVar[str] = "its library has no timers"

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> AotiDelegate:
        return cls(*bind_library(blob, constants))


def bind_library(blob: DelegateBlob, constants: Sequence[Tensor]) -> tuple[object, Sequence[Tensor], CallMap]:
    """Return the runner of a library, bound to its constants, and the map from calls to calls of the library."""
    call, bound, packed, openmp, multiplies = read_info(blob, len(constants))
    if multiplies and not multiplies_unsigned_bytes():
        raise ProgramError(
            "a compiled partition multiplies integers, and this torch multiplies no unsigned bytes",
            where=str(blob.path),
            found=f"torch {torch.__version__}",
            hint="install a later torch, or load another recipe",
        )
    if multiplies and not sums_integers():
        raise ProgramError(
            "a compiled partition multiplies integers, and torch's sums of them overflow in this process",
            where=str(blob.path),
            found=f"`{ONEDNN}` is {os.environ.get(ONEDNN, 'not set')!r}",
            hint=f"set `{ONEDNN}` to `ALL` before the process starts; on a processor without VNNI load another recipe",
        )
    keep_freed_memory()
    foreign = foreign_openmp(openmp)
    if foreign:
        raise ProgramError(
            "a compiled partition would load a second OpenMP library into the process",
            where=str(blob.path),
            found=foreign,
            hint="install torch from the source of the wheel's builder, or load a recipe without `aoti`",
        )
    try:
        runner = open_library(blob.path)
    except RuntimeError as error:
        raise library_error(blob.path, str(error)) from without_frames(error)
    tensors = {f"c{index}": constants[index].detach() for index in bound}
    tensors |= {name: pack(blob, constants[weight].detach(), where) for name, (weight, where) in packed.items()}
    bind_constants(runner, tensors, blob.path)
    return runner, tuple(tensors.values()), call


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a call frees, as in each process that has freed a large block.

    Elsewhere reading the weights has this effect. Here weights are mapped, and each call's blocks would return to the
    system and come back as new pages: 5,000 in a call of ResNet-18, a quarter of its time.
    """
    torch.empty(LARGEST, dtype=torch.uint8)  # freed at once, and not touched


@cache
def sums_integers() -> bool:
    # oneDNN does without VNNI where a variable says so, and then sums products of bytes in 16 bits
    ones = torch.full((64, 8), 127, dtype=torch.int8)
    return all(
        bool((torch.ops.aten._int_mm.default(torch.full((4, 64), value, dtype=dtype), ones) == 64 * value * 127).all())
        for value, dtype in ((127, torch.int8), (-128, torch.int8), (255, torch.uint8))
    )


def pack(blob: DelegateBlob, weight: Tensor, where: Mapping[str, Any]) -> Tensor:
    """Copy the weights of a convolution into oneDNN's layout."""
    dtype = torch.float32 if where["zero_point"] is None else torch.int8
    if weight.dtype is not dtype or weight.dim() != 4:
        raise description_error(blob, "aoti", f"weights of {weight.dtype} in {weight.dim()} dimensions")
    found = f"weights of {tuple(weight.shape)} for a convolution with {dict(where)}"
    if len(weight) % where["groups"]:
        raise description_error(blob, "aoti", found)
    try:
        return packed_weight(weight, **where)
    except RuntimeError as error:
        raise description_error(blob, "aoti", found) from error


def read_info(blob: DelegateBlob, constants: int) -> Info:
    with facts_read(blob, "aoti") as info:
        call, bound, openmp = read_call_map(info, AotiDelegate.arrays), list(info["bound"]), list(info["openmp"])
        require(info["constants"] == constants, f"{constants} constants for a partition with {info['constants']}")
        require(all(0 <= place < constants for place in bound), f"constants {bound} of {constants}")
        require(all(map(is_openmp, openmp)), f"OpenMP libraries {openmp}")
        packed = {name: read_packed(given, constants) for name, given in info.get("packed", {}).items()}
        return call, bound, packed, openmp, bool(info.get("multiplies"))


def read_packed(given: Mapping[str, Any], constants: int) -> tuple[int, dict[str, object]]:
    where = {name: [int(number) for number in given[name]] for name in ("stride", "padding", "dilation", "size")}
    require(0 <= given["constant"] < constants, f"constant {given['constant']} of {constants}")
    fits = [len(numbers) for numbers in where.values()] == [2, 2, 2, 3] and min(where["padding"]) >= 0
    require(fits and min(where["stride"] + where["dilation"] + where["size"]) > 0, f"a convolution with {where}")
    groups, zero_point = int(given["groups"]), given["zero_point"]
    require(groups > 0, f"a convolution in {groups} groups")
    zero_point = None if zero_point is None else int(zero_point)
    return given["constant"], {"zero_point": zero_point, "groups": groups, **where}
