"""Observation of the operators that torch calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from hatch_lower.runtime.torch_private.operators import OpOverload

Look = Callable[[OpOverload[..., Any], tuple[Any, ...], object], None]


class CallsSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that passes each call of an operator to a function: operator, positional arguments, result."""

    def __init__(self, look: Look) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look = look

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        result: object = func(*args, **(kwargs or {}))
        self._look(func, args, result)
        return result
