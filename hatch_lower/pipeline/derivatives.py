"""Methods whose derivatives torch.export cannot trace, replaced by the traced operators of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.programs import trace_operators


def call_of_operators(
    module: torch.nn.Module,
    bare: torch.nn.Module,
    call: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> Callable[..., object]:
    """Return a method of fixed sizes that replays the operators of a call, derivatives included."""
    # `bare` has the module's state under its names, and the method as its `forward`
    found: list[Any] = []

    def run(state: dict[str, torch.Tensor], args: Any, kwargs: Any) -> list[object]:
        leaves, spec = tensors.tree_flatten(torch.func.functional_call(bare, state, args, kwargs))
        found.append(spec)
        return leaves

    traced = trace_operators(run, module_state(module), args, dict(kwargs))

    def replay(*args: object, **kwargs: object) -> object:
        return tensors.tree_unflatten(traced(module_state(module), args, kwargs), found[0])

    described: Any = replay
    described.__signature__ = inspect.signature(call)
    return replay


def module_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
