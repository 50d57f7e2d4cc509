"""Tensors: their memory, their version counters, and the tensors of a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


def storage_number(tensor: torch.Tensor) -> int:
    """Return a number for a tensor's storage, equal for tensors that share memory. Empty storages differ, too."""
    number: int = tensor.untyped_storage()._cdata
    return number


def version_of(tensor: torch.Tensor) -> int:
    """Return the number of in-place changes of a tensor."""
    return tensor._version


def own_tensors(module: torch.nn.Module) -> Iterator[Mapping[str, object]]:
    """Yield the parameters, the buffers and the plain attributes of a module, without its submodules' tensors."""
    yield from (module._parameters, module._buffers, module.__dict__)
