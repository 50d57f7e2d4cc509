"""The run half of the null backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hatch_lower.errors import ProgramError
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

if TYPE_CHECKING:
    from torch import Tensor


class NullDelegate(Delegate):
    """Loads, and refuses to run."""

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> NullDelegate:
        return cls()

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        raise ProgramError(
            "the null backend computes nothing",
            where="backend `null`",
            hint="lower the model with another backend; the null backend is for tests of the build",
        )
