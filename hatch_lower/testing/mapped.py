"""Is anything copied that could be mapped?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.testing.bench import Bench, export, quiet
from hatch_lower.testing.case import Case
from hatch_lower.testing.keys import change, changed
from hatch_lower.testing.probes import probe, watched
from hatch_lower.testing.programs.state import EVERY_CONSTANT, large_weight
from hatch_lower.testing.report import Fault, NotClaimedError
from hatch_lower.testing.running import first_difference

__all__ = ["check_bound", "check_mapped"]

SMAPS = Path("/proc/self/smaps_rollup")
COPIES = 4
"""How many are loaded side by side, which share what the C library keeps of freed memory."""


def check_bound(bench: Bench, cases: Sequence[Case]) -> str:
    """Change the tensors that a weight-free backend was bound to; its next result must be computed with the change.

    Raises:
        Fault: if it is not: the delegate has made a copy.
        NotClaimedError: if the backend is not weight-free, takes no constants, or does not compute.
    """
    if not bench.backend.weight_free:
        raise NotClaimedError("the backend is not weight-free")
    if not bench.subject.computes:
        raise NotClaimedError("the backend computes nothing")
    case = probe(bench, cases, EVERY_CONSTANT, *(each.name for each in cases if each.name.startswith("constants/")))
    names = [name for module in bench.partitions(case) for name in module.constants]
    if not names:
        raise NotClaimedError("the backend takes no constants")
    bound: list[Tensor] = []

    def keep(kind: type[Delegate], blob: DelegateBlob, constants: Sequence[Tensor]) -> Delegate:
        bound.extend(constants)
        return kind.load(blob, constants)

    loaded = bench.load(bench.save(bench.lowered(case)), watched(bench.delegate(), load=keep))
    arguments = case.arguments()[0]
    loaded(*arguments)
    program = export(case)
    with changed(program, [name.partition(":")[2] or name for name in names]), quiet(), torch.no_grad():
        expected = program.module()(*arguments)
    for tensor in {each.data_ptr(): each.detach() for each in bound}.values():  # a tied one is given several times
        change(tensor)
    difference = first_difference(loaded(*arguments), expected, bench.subject.tolerance)
    if difference:
        raise Fault(f"the delegate computes with a copy of its constants: {difference}")
    return f"{len(bound)} constants of `{case.name}`"


def check_mapped(bench: Bench, cases: Sequence[Case]) -> str:
    """Load and run a program with a large weight, and look at how much memory of its own the process takes for it.

    Raises:
        Fault: if that is about as much as the weight, or more.
        NotClaimedError: if the large weight is left to others, the backend computes nothing, or the system does not
            tell.
    """
    if not SMAPS.exists():
        raise NotClaimedError(f"this system has no `{SMAPS}`")
    if not bench.subject.computes:
        raise NotClaimedError("the backend computes nothing")
    case = large_weight()
    if not bench.claimed([case]):
        raise NotClaimedError("the backend does not take a matrix product")
    size = sum(each.numel() * each.element_size() for each in case.module().parameters())
    folder = bench.save(bench.lowered(case))
    arguments = case.arguments()[0]
    bench.load(folder)(*arguments)  # what is made once in a process is there
    before = own_bytes()
    kept = [bench.load(folder) for _ in range(COPIES)]
    for each in kept:
        each(*arguments)
    grown = (own_bytes() - before) / len(kept)
    if grown > size * (bench.subject.packed_copies + 0.5):
        raise Fault(
            f"loading and running takes {grown / size:.1f} times the size of the weights, which could be mapped; if the"
            " engine must copy them for its kernels, `packed_copies` says how often"
        )
    return f"{max(grown, 0) / size:.1f} times the size of the weights"


def own_bytes() -> int:
    """Return how much memory of this process is backed by no file."""
    (line,) = (each for each in SMAPS.read_text().splitlines() if each.startswith("Anonymous:"))
    return int(line.split()[1]) * 1024
