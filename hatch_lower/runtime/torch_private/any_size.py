"""Exports for sizes from 1 on, without torch's own case for a size of 1.

A dimension of size 1 has any stride. Torch asks for the size where an operation depends on the strides, and an export
then holds for sizes other than 1 only, although the operations compute the same numbers for 1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import is_contiguous_or_false
from torch.fx.experimental import _config

LOCK = threading.RLock()  # the replaced functions are those of the process


@contextmanager
def for_any_size() -> Iterator[None]:
    """Let torch.export assume no size other than 1 where an operation asks for the order of numbers in memory.

    `Tensor.contiguous` then copies, and `linear` and `reshape` first copy their input, unless a tensor is contiguous
    for all sizes.
    """
    settings: Any = _config
    asking = ((torch.nn.functional, "linear"), (torch, "reshape"), (torch.Tensor, "reshape"))
    with LOCK, settings.patch(backed_size_oblivious=True), ExitStack() as stack:
        copying = contiguous_for_all_sizes(torch.Tensor.contiguous)
        stack.enter_context(attribute_replaced(torch.Tensor, "contiguous", copying))
        for owner, name in asking:
            stack.enter_context(attribute_replaced(owner, name, of_contiguous(getattr(owner, name))))
        yield


def contiguous_for_all_sizes(contiguous: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(tensor: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        if memory_format is not torch.contiguous_format:
            return contiguous(tensor, memory_format=memory_format)
        return tensor if is_contiguous_or_false(tensor) else tensor.clone(memory_format=memory_format)

    return method


def of_contiguous(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return original(input.contiguous(), *args, **kwargs)

    return function


@contextmanager
def attribute_replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute; an attribute that `owner` inherits is inherited again afterwards."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
