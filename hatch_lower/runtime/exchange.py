"""Zero-copy conversion between torch tensors and NumPy arrays at a delegate's border."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hatch_lower.format.arguments import TensorInput
from hatch_lower.format.values import DTYPES
from hatch_lower.runtime.arrays import Array
from hatch_lower.runtime.names import CodeNames
from hatch_lower.runtime.numpy_arrays import element_dtype, is_bfloat16, is_common

BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by element size, for dtypes that only one library has


class ToNumpy:
    """Conversion for a torch program with a NumPy delegate."""

    def given(self, array: Tensor) -> Array:
        return array_of(array.detach())

    def given_code(self, entry: TensorInput, code: str, names: CodeNames) -> str:
        return f"{code}.numpy()" if is_common(entry.dtype) else f"{names.bind('array', array_of, array_of)}({code})"

    def returned_code(self, entries: Sequence[TensorInput | None], code: str, names: CodeNames) -> str:
        if all(entry is None or is_common(entry.dtype) for entry in entries):
            return f"{names.bind('tensors', tensors_from_arrays, tensors_from_arrays)}({code})"
        dtypes = [None if entry is None else entry.dtype for entry in entries]
        return f"{names.bind('tensors', partial(tensors_of_dtypes, dtypes))}({code})"


class ToTorch:
    """Conversion for a NumPy program with a torch delegate."""

    def given(self, array: Array) -> Tensor:
        return tensor_from_array(array)

    def given_code(self, entry: TensorInput, code: str, names: CodeNames) -> str:
        return f"{names.bind('tensor', partial(tensor_from_array, dtype=entry.dtype), ('tensor', entry.dtype))}({code})"

    def returned_code(self, entries: Sequence[TensorInput | None], code: str, names: CodeNames) -> str:
        return f"{names.bind('arrays', arrays_of, arrays_of)}({code})"


Exchange: TypeAlias = ToNumpy | ToTorch


def array_of(tensor: Tensor) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    if is_common(name):
        return tensor.numpy()
    return tensor.view(BYTES[tensor.itemsize]).numpy().view(element_dtype(name))


def tensor_from_array(array: Array, dtype: str = "") -> Tensor:
    name = dtype or ("bfloat16" if is_bfloat16(array) else array.dtype.name)
    # torch warns about read-only memory
    given = array if array.flags.writeable else array.copy()
    if name not in DTYPES or is_common(name):
        return torch.from_numpy(given)
    return torch.from_numpy(given.view(f"i{given.itemsize}")).view(getattr(torch, name))


def is_sequence(results: object) -> bool:
    # other results are returned unchanged: the caller refuses them with a message
    return type(results) is list or isinstance(results, Sequence)


def tensors_from_arrays(results: Any) -> object:
    if not is_sequence(results):
        return results
    return [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in results]


def tensors_of_dtypes(dtypes: Sequence[str | None], results: Any) -> object:
    if not is_sequence(results) or len(results) != len(dtypes):
        return results
    return [
        tensor_from_array(each, dtype or "") if isinstance(each, np.ndarray) else each
        for each, dtype in zip(results, dtypes, strict=True)
    ]


def arrays_of(results: Any) -> object:
    if not is_sequence(results):
        return results
    return [array_of(each.detach()) if isinstance(each, Tensor) else each for each in results]
