"""Copies of modules for which `copy.deepcopy` fails or loses ties between tensors."""

import copy
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch

# objects that Python cannot copy and that hold no state of a model
SHARED = (type(threading.Lock()), type(threading.RLock()), ModuleType, threading.local, torch.Generator)


ATOMS = (str, bytes, int, float, complex, type, type(None))


def copy_module(module: torch.nn.Module, shared: Mapping[int, object] = MappingProxyType({})) -> torch.nn.Module:
    """Return a copy of a module; the objects of `shared`, by id, are not copied."""
    memo: dict[int, Any] = dict(shared)
    for value in list_held_objects(module):
        if id(value) in memo:
            continue
        if isinstance(value, SHARED):
            memo[id(value)] = value
        elif type(value) is torch.nn.Parameter or (type(value) is torch.Tensor and not value.is_leaf):
            memo[id(value)] = copy_tensor(value, memo)
    copied: torch.nn.Module = copy.deepcopy(module, memo)
    return copied


def copy_tensor(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    # torch refuses to copy a tensor computed with gradients (the weight of the old `weight_norm`). It also copies a
    # parameter without preserving shared memory with a buffer that is a view of the parameter.
    content: torch.Tensor = copy.deepcopy(tensor.detach(), memo)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(content, requires_grad=tensor.requires_grad)
    content.__dict__.update(copy.deepcopy(tensor.__dict__, memo))
    return content


def list_held_objects(module: torch.nn.Module) -> Iterator[object]:
    """Yield every object that a module refers to, through containers and attributes, once."""
    seen: set[int] = set()
    pending: list[object] = [module]
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, ATOMS):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, Mapping):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
        elif not isinstance(value, (torch.Tensor, *SHARED)):
            pending += getattr(value, "__dict__", {}).values()
