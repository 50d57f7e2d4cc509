"""Run half of the `cuda` backend: loads a library on a GPU and binds its constants. Imports torch and no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from hatch_lower.backends.call_map import CallMap, facts_read, read_call_map, require
from hatch_lower.backends.native_library import LibraryDelegate, bind_constants, library_error, without_frames
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.torch_private.inductor import open_cuda_library

ALIGNMENT = 16  # bytes: kernels read 16 bytes at once, and an unaligned read ends the process's use of the GPU


class CudaDelegate(LibraryDelegate):
    """A compiled partition on a GPU, bound to its constants; unaligned constants are copied.

    Calls use the caller's current stream. Kernels run after the call has returned, as with eager torch.
    """

    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    untimed: ClassVar[str] = "its library has no timers"

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> CudaDelegate:
        call, bound = read_info(blob, len(constants))
        try:
            runner = open_cuda_library(blob.path, blob.device)
        except RuntimeError as error:
            raise library_error(blob.path, str(error)) from without_frames(error)
        tensors = {f"c{place}": aligned(constants[place].detach()) for place in bound}
        bind_constants(runner, tensors, blob.path)
        return cls(runner, tuple(tensors.values()), call)


def aligned(constant: Tensor) -> Tensor:
    if constant.data_ptr() % ALIGNMENT == 0:
        return constant
    copy = constant.new_empty(constant.untyped_storage().nbytes() // constant.element_size() + 1)
    return copy.as_strided(constant.size(), constant.stride()).copy_(constant)


def read_info(blob: DelegateBlob, constants: int) -> tuple[CallMap, list[int]]:
    with facts_read(blob, "cuda") as info:
        call, bound = read_call_map(info, CudaDelegate.arrays), list(info["bound"])
        require(info["constants"] == constants, f"{constants} constants for a partition with {info['constants']}")
        require(all(0 <= place < constants for place in bound), f"constants {bound} of {constants}")
        return call, bound
