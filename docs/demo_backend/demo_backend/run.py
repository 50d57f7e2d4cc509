"""The run half: the machine itself. It needs torch, and nothing of what compiled the program."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from hatch_lower.runtime.delegates import Delegate, DelegateBlob

__all__ = ["DemoDelegate"]


def convolve_and_clamp(*arguments: Any) -> Tensor:
    """Return the ReLU of a convolution, without a second tensor for it."""
    return torch.conv2d(*arguments).relu_()


def sine_over(angle: Tensor, divisor: Tensor) -> Tensor:
    """Return the sine of an angle, divided by something: the second half of a tangent."""
    return torch.sin(angle) / divisor


OPERATIONS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "add": torch.add,
        "convolution": torch.conv2d,
        "convolution_relu": convolve_and_clamp,
        "cosine": torch.cos,
        "multiply": torch.mul,
        "product": torch.mm,
        "relu": torch.relu,
        "sine": torch.sin,
        "sine_over": sine_over,
        "subtract": torch.sub,
    }
)


class DemoDelegate(Delegate):
    """One program on the machine, bound to its constants.

    Dtypes, shapes and the program's file were checked before it gets here, so it checks nothing.

    Args:
        program: as the compile half wrote it.
        constants: the first slots.
    """

    def __init__(self, program: Mapping[str, Any], constants: Sequence[Tensor]) -> None:
        self._constants = list(constants)
        self._instructions = [(OPERATIONS[name], arguments) for name, arguments in program["instructions"]]
        self._outputs = program["outputs"]

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> DemoDelegate:
        """Read the program."""
        return cls(json.loads(blob.path.read_bytes()), constants)

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """Run one instruction after the other."""
        slots = [*self._constants, *inputs]
        for operation, arguments in self._instructions:
            slots.append(operation(*(slots[each["slot"]] if isinstance(each, dict) else each for each in arguments)))
        return [slots[each] for each in self._outputs]
