"""What a model export entry point returns. No torch is imported here: a model's module imports this at run time too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Method:
    """One entry into a model: example inputs and what may vary about them.

    Args:
        args: example positional arguments; tensors, numbers, or any nested container of them.
        kwargs: example keyword arguments.
        dynamic_shapes: as `torch.export.export` takes it: by parameter name, `{dimension: torch.export.Dim}`.
        attribute: the module's bound method to export; default: the name under which this method is declared.
        strict: export as `torch.export.export(strict=True)` does. It reads the method's bytecode, and so finds a buffer
            that the method reaches through an object that is no module, such as the cache of a decoder.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    attribute: str | None = None
    strict: bool = False


@dataclass(frozen=True)
class Model:
    """A module and the methods to export from it; the methods share its weights.

    Args:
        module: an `nn.Module`, in the mode (`eval()`) in which it is to be exported.
        methods: method name to `Method`.
    """

    module: torch.nn.Module
    methods: Mapping[str, Method]
