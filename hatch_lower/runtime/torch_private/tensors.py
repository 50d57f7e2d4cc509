"""Tensors: their memory, how often they were changed, and those that a module holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


def storage_number(tensor: torch.Tensor) -> int:
    """Return the same number for tensors that share memory; storages without elements have one of their own, too."""
    number: int = tensor.untyped_storage()._cdata
    return number


def version_of(tensor: torch.Tensor) -> int:
    """Return how often the contents of a tensor were changed in place."""
    return tensor._version


def own_tensors(module: torch.nn.Module) -> Iterator[Mapping[str, object]]:
    """Yield the parameters, the buffers and the plain attributes of a module, without those of its submodules."""
    yield from (module._parameters, module._buffers, module.__dict__)
