"""The contents of tensors: dense spans of memory, and digests over them."""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeGuard

import torch

from hatch_lower.canonical import sha256_bytes
from hatch_lower.runtime.torch_private.tensors import storage_number


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def span_length(tensor: torch.Tensor) -> int:
    """Return the number of elements in memory from the tensor's first to its last."""
    if tensor.numel() == 0:
        return 0
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return 1 + sum(steps)


def span_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory from the tensor's first to its last element; the caller keeps the tensor alive."""
    size = span_length(tensor) * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    buffer = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    return memoryview(buffer).cast("B")


def storage_key(tensor: torch.Tensor) -> int:
    # not the address: storages without elements, and stand-ins of torch, have the same
    return storage_number(tensor)


def is_plain_tensor(value: object) -> TypeGuard[torch.Tensor]:
    if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False
    return value.layout is torch.strided and value.device.type == "cpu"


def is_readable(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether the memory of a plain tensor has all of its contents: quantized tensors have scales elsewhere."""
    if not is_plain_tensor(value) or value.is_quantized:
        return False
    end = (value.storage_offset() + span_length(value)) * value.element_size()
    return value.numel() == 0 or (value.data_ptr() != 0 and end <= value.untyped_storage().nbytes())


def storage_checksums(tensors: Iterable[torch.Tensor]) -> list[int]:
    # a checksum is cheaper than a digest, and enough against accidents
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(storage_checksum, tensors))


def storage_checksum(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    return zlib.crc32((ctypes.c_ubyte * size).from_address(storage.data_ptr())) if size else 0


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return the sha256 of dtype, shape, strides and contents, over the memory that the tensor spans."""
    total = hashlib.sha256()
    total.update(f"{dtype_name(tensor.dtype)}{tuple(tensor.shape)}{tensor.stride()}".encode())
    value = tensor.detach().resolve_conj().resolve_neg()  # memory alone does not tell a tensor from its conjugate
    total.update(span_bytes(value))
    return total.hexdigest()


def tensor_digests(tensors: Iterable[torch.Tensor]) -> list[str]:
    listed = list(tensors)
    if sum(span_length(tensor) for tensor in listed) < 1 << 20:
        return [tensor_digest(tensor) for tensor in listed]
    with ThreadPoolExecutor(2) as pool:  # hashing releases the interpreter's lock
        return list(pool.map(tensor_digest, listed))


def combined_digest(digests: Iterable[str]) -> str:
    return sha256_bytes("\n".join(digests).encode())
