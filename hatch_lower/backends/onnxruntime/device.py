"""Calls of a session with torch tensors on a GPU: inputs are read and results are written where they are.

ONNX Runtime computes on a stream of its own, and waits for the stream at the end of a call. So a call waits for the
caller's current stream, on which torch may still compute the inputs, and for work on memory that torch gives to the
results. A result is torch's memory, as ONNX Runtime would reuse its own memory while another stream may still read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from hatch_lower.errors import ProgramError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

ALIGNMENT = 16  # bytes; kernels for CUDA read several numbers at once
# ONNX Runtime's names of the types of values, with torch's dtypes and ONNX's numbers
TYPES: Mapping[str, tuple[torch.dtype, int]] = {
    "tensor(float)": (torch.float32, 1),
    "tensor(uint8)": (torch.uint8, 2),
    "tensor(int8)": (torch.int8, 3),
    "tensor(uint16)": (torch.uint16, 4),
    "tensor(int16)": (torch.int16, 5),
    "tensor(int32)": (torch.int32, 6),
    "tensor(int64)": (torch.int64, 7),
    "tensor(bool)": (torch.bool, 9),
    "tensor(float16)": (torch.float16, 10),
    "tensor(double)": (torch.float64, 11),
    "tensor(uint32)": (torch.uint32, 12),
    "tensor(uint64)": (torch.uint64, 13),
    "tensor(bfloat16)": (torch.bfloat16, 16),
}


class DeviceCalls:
    """A session's calls with tensors on a device. Calls from several threads may run side by side."""

    def __init__(self, session: InferenceSession, device: str, where: str) -> None:
        self._session = session
        self._device = torch.device(device)
        self._inputs = [(value.name, *kind_of(value, where), sizes_of(value)) for value in session.get_inputs()]
        self._outputs = [(value.name, *kind_of(value, where), sizes_of(value)) for value in session.get_outputs()]

    def run(self, given: Sequence[object]) -> list[Tensor]:
        with current_device(self._device):
            binding = self._session.io_binding()
            # the binding does not keep the memory of its tensors
            kept: list[Tensor] = []
            lengths: dict[object, int] = {}
            for (name, dtype, number, sizes), value in zip(self._inputs, given, strict=True):
                tensor = dense(value, dtype)
                kept.append(tensor)
                lengths.update(zip(sizes, tensor.shape, strict=True))
                bind(binding.bind_input, name, tensor, number)
            results: list[Tensor | None] = []
            for name, dtype, number, sizes in self._outputs:
                result = self._allocate(sizes, lengths, dtype)
                results.append(result)
                if result is None or not result.numel():  # without elements there is no memory to bind
                    binding.bind_output(name, self._device.type, self._device.index or 0)
                else:
                    bind(binding.bind_output, name, result, number)
            self._wait()
            self._session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            return self._collect(binding, results)

    def _allocate(self, sizes: Sequence[object], lengths: Mapping[object, int], dtype: torch.dtype) -> Tensor | None:
        """Return memory for a result; `None` if the inputs' sizes do not give the result's."""
        shape = [size if isinstance(size, int) else lengths.get(size, -1) for size in sizes]
        return None if -1 in shape else torch.empty(shape, dtype=dtype, device=self._device)

    def _collect(self, binding: Any, results: Sequence[Tensor | None]) -> list[Tensor]:
        if all(result is not None for result in results):
            return [result for result in results if result is not None]
        values = binding.get_outputs()
        found = [
            copied_result(value, dtype) if result is None else result
            for result, value, (_, dtype, _, _) in zip(results, values, self._outputs, strict=True)
        ]
        self._wait()  # the memory of `values` becomes ONNX Runtime's again
        return found

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


@contextmanager
def current_device(device: torch.device) -> Iterator[None]:
    """Keep the thread's current GPU, which ONNX Runtime changes."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        yield


def kind_of(value: Any, where: str) -> tuple[torch.dtype, int]:
    kind = TYPES.get(value.type)
    if kind is None:
        raise ProgramError(
            "a value of the model has a type that cannot stay on the GPU",
            where=where,
            found=f"`{value.name}` is {value.type}",
            hint='load the model with `device="cpu"`',
        )
    return kind


def sizes_of(value: Any) -> list[object]:
    # An unknown size has no name. Its place is no key of a size that is known.
    return [object() if size is None else size for size in value.shape]


def dense(value: object, dtype: torch.dtype) -> Tensor:
    # a number stays on the CPU: ONNX Runtime copies an input to where a kernel reads the input
    tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def bind(method: Any, name: str, tensor: Tensor, number: int) -> None:
    device = tensor.device
    method(name, device.type, device.index or 0, number, list(tensor.shape), tensor.data_ptr())


def copied_result(value: Any, dtype: torch.dtype) -> Tensor:
    # a Boolean may arrive as uint8
    return from_dlpack(value._ortvalue.to_dlpack()).view(dtype).clone()
