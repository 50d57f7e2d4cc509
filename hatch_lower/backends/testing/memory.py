"""Is anything copied that could be mapped, or kept that could be given back?"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from hatch_lower.backends.testing.bench import Bench, export, probe, refuse_null, warnings_ignored, watched
from hatch_lower.backends.testing.case import Case, Fault, NotClaimedError
from hatch_lower.backends.testing.comparison import first_difference
from hatch_lower.backends.testing.keys import change, changed
from hatch_lower.backends.testing.programs.state import EVERY_CONSTANT, large_values, large_weight
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

SMAPS = Path("/proc/self/smaps_rollup")
RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
DESCRIPTORS = Path("/proc/self/fd")
CALLS = 64
LOADS = 12
WARM = 4  # repetitions before the measurement
COPIES = 4  # loaded side by side; they share freed memory that the C library keeps


def check_bound(bench: Bench, cases: Sequence[Case]) -> str:
    """Change the tensors that a weight-free backend was bound to; its next result must be computed with the change."""
    if not bench.backend.weight_free or bench.backend.copies_constants:
        raise NotClaimedError("the backend is not weight-free, or copies its bound constants")
    refuse_null(bench)
    case = probe(bench, cases, EVERY_CONSTANT, *(other.name for other in cases if other.name.startswith("constants/")))
    program = export(case)
    known = {**program.state_dict, **program.constants}
    taken = {name.partition(":")[2] or name for module in bench.partitions(case) for name in module.constants}
    names = sorted(name for name in taken if not bench.backend.copies(known[name]))
    if not names:
        raise NotClaimedError("the backend takes no constants, or copies all")
    bound: list[Tensor] = []

    def keep(kind: type[Delegate], blob: DelegateBlob, constants: Sequence[Tensor]) -> Delegate:
        bound.extend(each for each in constants if not bench.backend.copies(each))
        return kind.load(blob, constants)

    loaded = bench.load(bench.save(bench.lowered(case)), watched(bench.delegate(), load=keep))
    arguments = case.arguments()[0]
    loaded(*arguments)
    with changed(program, names), warnings_ignored(), torch.no_grad():
        expected = program.module()(*arguments)
    for tensor in {each.data_ptr(): each.detach() for each in bound}.values():  # a tied constant is passed twice
        change(tensor)
    if difference := first_difference(loaded(*arguments), expected, bench.subject.tolerance):
        raise Fault(f"the delegate computes with a copy of its constants: {difference}")
    return f"{len(bound)} constants of `{case.name}`"


def check_mapped(bench: Bench, cases: Sequence[Case]) -> str:
    """Load and run a program with a large weight, and measure the memory that the process takes for the weight."""
    refuse_unmeasured(bench)
    case = large_weight()
    if not bench.claimed([case]):
        raise NotClaimedError("the backend does not take a matrix product")
    size = sum(weight.numel() * weight.element_size() for weight in case.module().parameters())
    folder = bench.save(bench.lowered(case))
    arguments = case.arguments()[0]
    small = probe(bench, cases, "operators/perceptron", "operators/fused")
    bench.load(bench.save(bench.lowered(small)))(*small.arguments()[0])  # allocates all that a process needs once
    before = own_bytes()
    first = bench.load(folder)
    first(*arguments)
    once = own_bytes() - before
    before = own_bytes()
    kept = [bench.load(folder) for _ in range(COPIES)]
    for loaded in kept:
        loaded(*arguments)
    grown = (own_bytes() - before) / len(kept)
    taken = max(once, grown, peak_bytes(lambda: first(*arguments)), 0) / size
    if taken > bench.subject.packed_copies + 0.5:
        raise Fault(
            f"loading and running takes {taken:.1f} times the size of the weights, which could be mapped; if the engine"
            " must copy them for its kernels, set `packed_copies` to the number of copies"
        )
    return f"{taken:.1f} times the size of the weights"


def check_freed_memory(bench: Bench, cases: Sequence[Case]) -> str:
    """Call a program on large tensors many times, and load it many times; measure the process's memory afterwards."""
    refuse_unmeasured(bench)
    case = large_values()
    if not bench.claimed([case]):
        raise NotClaimedError("the backend does not take arithmetic")
    folder = bench.save(bench.lowered(case))
    arguments = case.arguments()[0]
    size = sum(tensor.numel() * tensor.element_size() for tensor in arguments)
    loaded = bench.load(folder)

    def load() -> None:
        bench.load(folder)(*arguments)

    for what, repeated, count in (("call", lambda: loaded(*arguments), CALLS), ("load", load, LOADS)):
        for _ in range(WARM):  # memory pools and threads of the engine are there then
            repeated()
        before = own_bytes(), len(os.listdir(DESCRIPTORS))
        for _ in range(count):
            repeated()
        grown, opened = own_bytes() - before[0], len(os.listdir(DESCRIPTORS)) - before[1]
        if grown > size * count / 2:
            raise Fault(f"each {what} leaks {grown / count / 1e6:.1f} MB")
        if opened > count / 2 and not bench.subject.keeps_files:
            raise Fault(f"each {what} leaves a file open; if the engine does so, set `keeps_files`")
    return f"{CALLS} calls, {LOADS} loads"


def refuse_unmeasured(bench: Bench) -> None:
    if not SMAPS.exists():
        raise NotClaimedError(f"this system has no `{SMAPS}`")
    refuse_null(bench)


def peak_bytes(call: Callable[[], object]) -> int:
    # 0 if the system does not tell
    give_back()
    try:
        RESET.write_text("5")
    except OSError:
        return 0
    before = status_bytes("VmRSS")
    call()
    return status_bytes("VmHWM") - before


def give_back() -> None:
    # freed memory goes back to the system: a copy could reuse it unseen
    gc.collect()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def status_bytes(name: str) -> int:
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == f"{name}:"), 0)


def own_bytes() -> int:
    # in use, and backed by no file
    give_back()
    (line,) = (line for line in SMAPS.read_text().splitlines() if line.startswith("Anonymous:"))
    return int(line.split()[1]) * 1024
