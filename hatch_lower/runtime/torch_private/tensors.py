"""Tensors: their memory, their version counters, the tensors of a module, and containers of tensors by the rules of
`torch.export`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.utils._pytree import KeyPath as KeyPath
from torch.utils._pytree import TreeSpec as TreeSpec
from torch.utils._pytree import keystr as keystr
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_flatten_with_path as tree_flatten_with_path
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten


def storage_number(tensor: torch.Tensor) -> int:
    """Return a number for a tensor's storage, equal for tensors that share memory. Empty storages differ, too."""
    number: int = tensor.untyped_storage()._cdata
    return number


def read_change_counter(tensor: torch.Tensor) -> int:
    """Return the number of in-place changes of a tensor."""
    return tensor._version


def own_tensors(module: torch.nn.Module) -> Iterator[Mapping[str, object]]:
    """Yield the parameters, the buffers and the plain attributes of a module, without its submodules' tensors."""
    yield from (module._parameters, module._buffers, module.__dict__)
