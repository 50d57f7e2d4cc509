"""What a delegate returned, compared with what the plan says that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hatch_lower.errors import ProgramError
from hatch_lower.format.expression import Expression, evaluate, symbols_in
from hatch_lower.format.inputs import TensorInput
from hatch_lower.runtime.refusals import same_layout


class OutputCheck:
    """Compares the outputs of one delegate call; bound into the method's code.

    Args:
        where: the delegate and the method, for errors.
        expected: the outputs of the plan; `None` stands for a number.
    """

    def __init__(self, where: str, expected: Sequence[TensorInput | None]) -> None:
        self._where = where
        self._expected = expected

    def __call__(self, outputs: Sequence[Any], sizes: Mapping[str, int]) -> None:
        """Compare the number of outputs, dtypes, shapes and strides, as far as they follow from the given sizes.

        Raises:
            ProgramError: if anything differs.
        """
        if len(outputs) != len(self._expected):
            raise self._error(self._where, f"{len(outputs)} outputs instead of {len(self._expected)}")
        for index, (output, expected) in enumerate(zip(outputs, self._expected, strict=True)):
            if expected is not None and (difference := difference_of(output, expected, sizes)):
                raise self._error(f"{self._where}, output {index}", difference)

    def _error(self, where: str, found: str) -> ProgramError:
        return ProgramError(
            "a delegate returned something else than it was lowered for",
            where=where,
            found=found,
            hint="this is a fault of the backend: report it to its authors, or leave the backend out of the recipe",
        )


def difference_of(output: Any, expected: TensorInput, sizes: Mapping[str, int]) -> str:
    """Return how an output differs from what it should be; empty if it does not."""
    if not isinstance(output, Tensor):
        return f"`{type(output).__name__}` instead of a tensor"
    dtype = str(output.dtype).removeprefix("torch.")
    if dtype != expected.dtype or not output.is_cpu:
        return f"{dtype} on {output.device.type} instead of {expected.dtype} on cpu"
    shape = known(expected.shape, sizes, output.shape) if output.dim() == len(expected.shape) else None
    if shape != tuple(output.shape):
        return f"the shape {list(output.shape)} instead of {list(shape or expected.shape)}"
    strides = known(expected.stride, sizes, output.stride())
    if not same_layout(output, strides) and not same_layout(output, clone_strides(output.shape, strides)):
        return f"the strides {list(output.stride())} instead of {list(strides)} for the shape {list(output.shape)}"
    return ""


def clone_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a clone: others where a view has gaps or repeats elements, which a delegate need not do."""
    return torch.empty_strided(shape, strides, device="meta").clone().stride()


def known(expressions: Sequence[Expression], sizes: Mapping[str, int], found: Sequence[int]) -> tuple[int, ...]:
    """Return the values of expressions, and what was found in the place of one that depends on an unknown size."""
    return tuple(
        evaluate(expression, sizes) if symbols_in(expression) <= sizes.keys() else there
        for expression, there in zip(expressions, found, strict=True)
    )
