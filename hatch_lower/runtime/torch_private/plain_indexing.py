"""`tensor[index]` by calls of operators.

torch's own `tensor[index]` selects the tensor's device in the process, which a torch without CUDA cannot do for a
stand-in of a tensor on a GPU. Inductor's decompositions index stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def getting(plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `torch.Tensor.__getitem__`, with operators for tensors on a GPU and else with `plain`."""

    def get(tensor: torch.Tensor, index: Any) -> Any:
        if tensor.device.type != "cuda":
            return plain(tensor, index)
        view, indices = resolve(tensor, index)
        return aten.index.Tensor(view, indices) if any(each is not None for each in indices) else view

    return get


def setting(plain: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Return `torch.Tensor.__setitem__`, with operators for tensors on a GPU and else with `plain`."""

    def put(tensor: torch.Tensor, index: Any, value: Any) -> None:
        if tensor.device.type != "cuda":
            plain(tensor, index, value)
            return
        view, indices = resolve(tensor, index)
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
        if any(each is not None for each in indices):
            aten.index_put_.default(view, indices, value)
        else:
            aten.copy_.default(view, value)

    return put


def resolve(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Return the view that an index makes, and the tensors of the index by dimension of the view."""
    items = index if isinstance(index, tuple) else (index,)
    taken = sum(item is not None and item is not Ellipsis for item in items)
    place = next((number for number, item in enumerate(items) if item is Ellipsis), None)
    if place is not None:
        items = (*items[:place], *[slice(None)] * (tensor.dim() - taken), *items[place + 1 :])
    view, indices = tensor, list[torch.Tensor | None]()
    for item in items:
        dim = len(indices)
        if isinstance(item, torch.Tensor):
            indices.append(item)
        elif item is None:
            view = aten.unsqueeze.default(view, dim)
            indices.append(None)
        elif isinstance(item, slice):
            if item != slice(None):
                view = aten.slice.Tensor(view, dim, item.start, item.stop, 1 if item.step is None else item.step)
            indices.append(None)
        else:
            view = aten.select.int(view, dim, item)
    return view, indices
