"""The programs on which checks look at a backend more closely: few, and rich in what may go wrong."""

from __future__ import annotations

from collections.abc import Sequence

from hatch_lower.testing.bench import Bench
from hatch_lower.testing.case import Case
from hatch_lower.testing.outcome import NotClaimedError

__all__ = ["probe", "sample"]

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
"""Names of programs that are lowered several times, also in other processes."""

LEAST = 3
MOST = 6


def sample(bench: Bench, cases: Sequence[Case]) -> list[Case]:
    """Return the programs to lower several times: those of which the backend takes something.

    Raises:
        NotClaimedError: if there is none.
    """
    by_name = {case.name: case for case in cases}
    found = bench.claimed([by_name[name] for name in SAMPLE if name in by_name])
    if len(found) < LEAST:
        others = (case for case in cases if case.name not in SAMPLE)
        for case in others:
            if len(found) == LEAST:
                break
            found += bench.claimed([case])
    if not found:
        raise NotClaimedError("the backend takes nothing of any program")
    return found[:MOST]


def probe(bench: Bench, cases: Sequence[Case], *names: str) -> Case:
    """Return the first program, of those named or else of the sample, of which the backend takes something.

    Raises:
        NotClaimedError: if there is none.
    """
    by_name = {case.name: case for case in cases}
    found = bench.claimed([by_name[name] for name in names if name in by_name])
    return found[0] if found else sample(bench, cases)[0]
