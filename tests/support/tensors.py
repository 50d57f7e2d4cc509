"""A run half that takes and returns NumPy's arrays, called with tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.exchange import array_of, tensors_of


class OfTensors:
    """A loaded delegate as the runtime calls it for a program of tensors."""

    def __init__(self, kind: type[Delegate], blob: DelegateBlob, constants: Sequence[Tensor]) -> None:
        assert kind.arrays == "numpy"
        self.delegate: Any = kind.load(blob, [array_of(constant) for constant in constants])

    def run(self, inputs: Sequence[object]) -> Any:
        given = [array_of(value) if isinstance(value, Tensor) else value for value in inputs]
        return tensors_of(self.delegate.run(given))
