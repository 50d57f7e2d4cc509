"""Tensors over memory that was mapped."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hatch_lower.format.codec import refuse
from hatch_lower.format.constants import Constant, Storage
from hatch_lower.runtime.mapped import Stored


def span_tensor(storage: Storage, content: memoryview) -> Tensor:
    """Return a storage over its bytes, which live as long as the tensor."""
    dtype = getattr(torch, storage.dtype)
    return torch.frombuffer(content, dtype=dtype) if storage.length else torch.empty(0, dtype=dtype)


def stored_tensors(contents: Mapping[str, Stored], where: str) -> dict[str, Tensor]:
    return {key: stored_tensor(stored, f"{where}: {key!r:.80}") for key, stored in contents.items()}


def stored_tensor(stored: Stored, where: str) -> Tensor:
    dtype = getattr(torch, stored.dtype)
    try:
        flat = torch.frombuffer(stored.content, dtype=dtype) if stored.content else torch.empty(0, dtype=dtype)
        return flat.reshape(stored.shape)
    except RuntimeError as error:
        refuse(where, f"sizes that no tensor has ({error})")


def view_constant(constant: Constant, spans: Mapping[int, Tensor]) -> Tensor:
    # its bounds were checked when the plan was read
    span = spans[constant.storage]
    dtype = getattr(torch, constant.dtype)
    try:
        if span.dtype is not dtype:
            span = span.view(dtype)
        return span.as_strided(constant.shape, constant.stride, constant.offset)
    except (RuntimeError, TypeError, ValueError) as error:
        refuse(f"a constant of {constant.dtype}{list(constant.shape)}"[:120], f"torch refuses it: {error}")
