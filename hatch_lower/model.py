"""The return value of a model's entry point. Torch is not imported: model code imports this module at run time, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Method:
    """A method of a model to export: example inputs and their dynamic dimensions.

    Args:
        args: example positional arguments: tensors, numbers, or nested containers of tensors and numbers.
        kwargs: example keyword arguments.
        dynamic_shapes: as for `torch.export.export`: by parameter name, `{dimension: torch.export.Dim}`.
        attribute: the module's bound method to export; default: the name under which this method is declared.
        strict: export as `torch.export.export(strict=True)` does, by reading the method's bytecode. This finds a buffer
            that the method reaches through an object that is no module, as the cache of a decoder is.
        defer_guards: check the conditions on dynamic sizes that torch.export cannot prove for a whole range in each
            call, and export as with `any_size`; without this such a condition is an error of the export for a `Dim`,
            and a check in each call for `Dim.AUTO` and `Dim.DYNAMIC`.
        any_size: if torch.export refuses the ranges of dynamic sizes, export again without torch's own case for a size
            of 1. The comparison with eager then shows whether the method computes the same numbers for 1.
        narrow: as `any_size`, and names of dynamic sizes whose ranges may begin at 2 if torch.export refuses the ranges
            again; the build reports a narrower range.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    attribute: str | None = None
    strict: bool = False
    defer_guards: bool = False
    any_size: bool = False
    narrow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """A module and the methods to export from it; the methods share its weights.

    Args:
        module: an `nn.Module`, in the mode to export (usually after `eval()`).
        methods: method name to `Method`.
        exporting: makes a context in which each method is exported: patches of a library whose code torch.export does
            not take. Eager runs outside of the context.
        advice: the next step if the export of a method fails or its examples do not fit, for errors; default: a
            correction of the declaration.
    """

    module: torch.nn.Module
    methods: Mapping[str, Method]
    exporting: Callable[[], AbstractContextManager[object]] = nullcontext
    advice: str = ""
