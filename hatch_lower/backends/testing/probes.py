"""Helpers by which checks examine a backend: programs that cover likely faults, and a run half to watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from hatch_lower.backends.testing.bench import Bench
from hatch_lower.backends.testing.case import Case, NotClaimedError
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.exchange import array_of, tensor_of

# lowered several times, also in other processes
SAMPLE = (
    "operators/fused",
    "operators/perceptron",
    "operators/convolution",
    "operators/functions float32",
    "outputs/several",
    "constants/every kind",
    "symbolic sizes/two",
    "symbolic sizes/batch",
    "operators/arithmetic float32",
    "control flow/cond",
)

LEAST = 3
MOST = 6


def sample(bench: Bench, cases: Sequence[Case]) -> list[Case]:
    by_name = {case.name: case for case in cases}
    claimed = bench.claimed([by_name[name] for name in SAMPLE if name in by_name])
    if len(claimed) < LEAST:
        for case in cases:
            if len(claimed) < LEAST and case.name not in SAMPLE:
                claimed += bench.claimed([case])
    if not claimed:
        raise NotClaimedError("the backend takes no operation of any program")
    return claimed[:MOST]


def probe(bench: Bench, cases: Sequence[Case], *names: str) -> Case:
    """Return the first program, of the named or else of the sample, of which the backend takes an operation."""
    by_name = {case.name: case for case in cases}
    claimed = bench.claimed([by_name[name] for name in names if name in by_name])
    return claimed[0] if claimed else sample(bench, cases)[0]


def refuse_null(bench: Bench) -> None:
    if not bench.subject.computes:
        raise NotClaimedError("the backend computes nothing")


Load = Callable[[type[Delegate], DelegateBlob, Sequence[Tensor]], Delegate]
Run = Callable[[Delegate, list[Tensor]], Sequence[object]]


def watched(kind: type[Delegate], load: Load | None = None, run: Run | None = None) -> type[Delegate]:
    """Return a run half that wraps another run half; both functions see tensors, whatever the inner run half takes."""
    kind = of_tensors(kind)

    class Watched(Delegate):
        def __init__(self, inner: Delegate) -> None:
            self._inner = inner

        @classmethod
        def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> Delegate:
            return cls(load(kind, blob, constants) if load else kind.load(blob, constants))

        def run(self, inputs: list[Tensor]) -> Sequence[object]:
            return run(self._inner, inputs) if run else self._inner.run(inputs)

    return Watched


def of_tensors(kind: type[Delegate]) -> type[Any]:
    """Return a run half that takes and returns tensors, around a run half for NumPy's arrays: its `inner`."""
    if kind.arrays == "torch":
        return kind

    class OfTensors(Delegate):
        def __init__(self, inner: Delegate) -> None:
            self.inner = inner

        @classmethod
        def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> Delegate:
            return cls(kind.load(blob, [array_of(constant.detach()) for constant in constants]))

        def run(self, inputs: list[Any]) -> Sequence[object]:
            results = self.inner.run([array_of(value) if isinstance(value, Tensor) else value for value in inputs])
            return [tensor_of(value) if isinstance(value, np.ndarray) else value for value in results]

    return OfTensors
