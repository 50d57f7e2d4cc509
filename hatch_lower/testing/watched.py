"""A run half with somebody who looks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hatch_lower.runtime.delegates import Delegate, DelegateBlob

__all__ = ["watched"]

Load = Callable[[type[Delegate], DelegateBlob, Sequence[Tensor]], Delegate]
Run = Callable[[Delegate, list[Tensor]], Sequence[Any]]


def plain_load(kind: type[Delegate], blob: DelegateBlob, constants: Sequence[Tensor]) -> Delegate:
    """Load."""
    return kind.load(blob, constants)


def plain_run(delegate: Delegate, inputs: list[Tensor]) -> Sequence[Any]:
    """Run."""
    return delegate.run(inputs)


def watched(kind: type[Delegate], load: Load = plain_load, run: Run = plain_run) -> type[Delegate]:
    """Return a run half that stands before another one.

    Args:
        kind: the other one.
        load: called instead of its `load`.
        run: called instead of its `run`.
    """

    class Watched(Delegate):
        def __init__(self, inner: Delegate) -> None:
            self._inner = inner

        @classmethod
        def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> Delegate:
            return cls(load(kind, blob, constants))

        def run(self, inputs: list[Tensor]) -> Sequence[Any]:
            return run(self._inner, inputs)

    return Watched
