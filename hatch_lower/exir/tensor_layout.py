"""`TensorLayout`: the layout of a tensor in the bytes of a blob."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hatch_lower.errors import BackendError
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.exir.scalar_type import ScalarType


class NamedDataError(BackendError, ValueError):
    """A backend added named data that contradict themselves or earlier data."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The dtype, sizes and memory order of a blob's tensor.

    Args:
        scalar_type: its dtype, `float32`; a `ScalarType` may be given.
        dim_order: its dimensions from the outermost in memory to the innermost.
    """

    scalar_type: str
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]

    def __post_init__(self) -> None:
        if isinstance(self.scalar_type, ScalarType):  # a name, because some dtypes of torch have no `ScalarType`
            object.__setattr__(self, "scalar_type", dtype_name(self.scalar_type.dtype))
        object.__setattr__(self, "sizes", tuple(self.sizes))  # ExecuTorch's are lists
        object.__setattr__(self, "dim_order", tuple(self.dim_order))

    @classmethod
    def of_bytes(cls, size: int) -> TensorLayout:
        # for weights in an engine's own format: with a layout, packed weights too are compared on demand
        return cls("uint8", (size,), (0,))

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> TensorLayout:
        """Return the layout of a tensor that fills its memory without gaps.

        Raises:
            ValueError: as `NamedDataError`, if the tensor is neither contiguous nor channels-last.
        """
        if tensor.is_contiguous():
            order = tuple(range(tensor.dim()))
        elif tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            # a dimension of size 1 has any stride: among equal strides the dimensions keep their order
            order = tuple(sorted(range(4), key=lambda dim: (-int(tensor.stride()[dim]), dim)))
        else:
            raise NamedDataError(
                "a tensor with gaps or transposed dimensions cannot be named data",
                found=f"sizes {tuple(tensor.shape)}, strides {tensor.stride()}",
                hint="call `.contiguous()` on it",
            )
        return cls(dtype_name(tensor.dtype), tuple(tensor.shape), order)
