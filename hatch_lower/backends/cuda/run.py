"""Run half of the `cuda` backend: loads a library on a GPU and binds its constants. Imports torch and no compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, ClassVar

from torch import Tensor

from hatch_lower.backends.aoti.run import library_error, without_frames
from hatch_lower.backends.call_map import CallMap, facts_read, read_call_map, require
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.torch_private.inductor import open_cuda_library

ALIGNMENT = 16  # bytes: kernels read 16 bytes at once, and an unaligned read ends the process's use of the GPU


class CudaDelegate(Delegate):
    """A compiled partition on a GPU, bound to its constants; unaligned constants are copied.

    Calls use the caller's current stream. Kernels run after the call has returned, as with eager torch.
    """

    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    without_elements: ClassVar[str] = "skip"

    def __init__(self, runner: Any, constants: Sequence[Tensor], call: CallMap) -> None:
        self._runner = runner
        self._constants = constants  # the library holds no reference to their memory
        self._map = call
        self._is_plain = call.passes_all and call.returns_all
        self._call: Callable[[list[Tensor]], Sequence[object]] = runner.run
        # The runner itself admits a single call at a time, but after a failed call wakes no waiting call.
        self._lock = Lock()

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> CudaDelegate:
        call, bound = read_info(blob, len(constants))
        try:
            runner = open_cuda_library(blob.path, blob.device)
        except RuntimeError as error:
            raise library_error(blob.path, str(error)) from without_frames(error)
        tensors = {f"c{place}": aligned(constants[place].detach()) for place in bound}
        names = set(runner.get_constant_names_to_original_fqns())
        if names != set(tensors):
            raise ProgramError(
                "a compiled partition and its plan disagree about the constants to bind",
                where=str(blob.path),
                found=f"the library has {sorted(names - set(tensors))} more and {sorted(set(tensors) - names)} less",
                hint="build the wheel again",
            )
        if tensors:
            runner.update_constant_buffer(tensors, False, False, True)
        return cls(runner, tuple(tensors.values()), call)

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        # state is changed in the bound tensors
        try:
            with self._lock:
                if self._is_plain:
                    return self._call(inputs)
                return self._map.arrange(inputs, self._call(self._map.select(inputs)))
        except RuntimeError as error:
            raise without_frames(error) from None


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
