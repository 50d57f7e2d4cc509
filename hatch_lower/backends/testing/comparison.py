"""A program through partitioner, preprocess and delegate, and its results beside eager's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hatch_lower.backends.testing.case import Case, Fault, NotClaimedError
from hatch_lower.errors import BackendError, LowerError
from hatch_lower.exir.backend.backend_api import DelegatedMethod
from hatch_lower.exir.graph.surgery import count_operations
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.numbers import Tolerance, wrong_places
from hatch_lower.runtime.torch_arrays import ARRAYS
from hatch_lower.runtime.torch_private import tensors

if TYPE_CHECKING:
    from hatch_lower.backends.testing.bench import Bench


def run_case(bench: Bench, case: Case) -> str:
    """Run a program; return the number of operations that the backend took."""
    is_first = case.name not in bench.worked
    bench.worked.setdefault(case.name, False)
    lowered = bench.lowered(case)
    if lowered.partitions == 0:
        reasons = list(dict.fromkeys(lowered.reasons.values())) or ["no operation is left to take"]
        raise NotClaimedError("; ".join(reasons[:2]) + (f"; and {len(reasons) - 2} more" * (len(reasons) > 2)))
    try:
        loaded = bench.load(bench.save(lowered))
        if bench.subject.computes:
            compare_calls(bench, case, loaded)
    except BackendError as error:  # refusing is for the time when the wheel is built
        raise Fault(f"the lowered program does not load or run: {error_words(error)}") from error
    if is_first:
        bench.worked[case.name] = True
    return taken(bench, case, lowered)


def works(bench: Bench, case: Case) -> bool:
    """Return whether a program's first run gave eager's result; otherwise its own outcome reports the fault."""
    if case.name not in bench.worked:
        with suppress(Fault):
            run_case(bench, case)
    return bench.worked[case.name]


def compare_calls(bench: Bench, case: Case, loaded: LoadedModel) -> None:
    wanted = [eager_calls(case.module(), case.arguments())]
    if bench.subject.flushes_subnormals:
        with subnormals_flushed():
            wanted.append(eager_calls(case.module(), case.arguments()))
    for number, (call, *others) in enumerate(zip(*wanted, strict=True), 1):
        given = call.copied()
        result = loaded(*given)
        difference = first_difference(result, call.result, bench.subject.tolerance, *(other.result for other in others))
        if difference:
            raise Fault(f"call {number}, {difference}")
        if difference := first_difference(given, call.after, bench.subject.tolerance):
            raise Fault(f"call {number} leaves its arguments different from eager's: {difference}")


def taken(bench: Bench, case: Case, lowered: DelegatedMethod) -> str:
    total = count_operations(bench.edge(case).graph_module)
    part = "all" if lowered.delegated >= total else f"{lowered.delegated} of {total}"
    note = "" if bench.subject.computes else "; lowered, packaged and loaded, but not run"
    return f"{part} operations in {lowered.partitions} partition{'s' * (lowered.partitions > 1)}{note}"


def error_words(error: BaseException) -> str:
    text = f"{error.what}{f' ({error.found})' * bool(error.found)}" if isinstance(error, LowerError) else f"{error}"
    line = " ".join(text.split())
    return line if isinstance(error, LowerError) else f"{type(error).__name__}: {line:.300}"


@dataclass(frozen=True, slots=True)
class EagerCall:
    """A call of a module in eager mode."""

    arguments: tuple[object, ...]  # before the call
    result: object
    after: tuple[object, ...]  # the arguments after the call

    def copied(self) -> tuple[object, ...]:
        return copy.deepcopy(self.arguments)


def eager_calls(module: torch.nn.Module, calls: tuple[tuple[object, ...], ...]) -> list[EagerCall]:
    # the module keeps its state between calls
    made = []
    for arguments in calls:
        given = copy.deepcopy(arguments)
        with torch.no_grad():
            result = copy.deepcopy(module(*given))  # a later call may change memory that the result shares
        made.append(EagerCall(arguments, result, given))
    return made


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    # as in an engine that sets the flag in the processor
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def difference_from_eager(bench: Bench, loaded: LoadedModel, call: EagerCall) -> str:
    return first_difference(loaded(*call.copied()), call.result, bench.subject.tolerance)


def first_difference(found: object, expected: object, tolerance: Tolerance, *others: object) -> str:
    """Return the first difference between results: floats must be near `expected` or `others`, all else equal."""
    given_leaves, left = tensors.tree_flatten(found)
    expected_leaves, right = tensors.tree_flatten(expected)
    if left != right:
        return f"the structure {left} instead of {right}"
    leaves = [expected_leaves, *(tensors.tree_leaves(alternative) for alternative in others)]
    for index, (given, *wanted) in enumerate(zip(given_leaves, *leaves, strict=True)):
        differences = [leaf_difference(given, leaf, tolerance) for leaf in wanted]
        if all(differences):
            return f"output {index}: {differences[0]}"
    return ""


def leaf_difference(found: object, expected: object, tolerance: Tolerance) -> str:
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        same = type(found) is type(expected) and (found == expected or (found != found and expected != expected))
        close = isinstance(found, float) and isinstance(expected, float) and abs(found - expected) <= tolerance.atol
        return "" if same or close else f"{found!r:.60} instead of {expected!r:.60}"
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{ARRAYS.describe(found)} instead of {ARRAYS.describe(expected)}"
    wrong = wrong_places(expected, found, tolerance.widened([ARRAYS.dtype_name(expected)])).nonzero()
    if not len(wrong):
        return ""
    place = tuple(int(index) for index in wrong[0])
    count = f" ({len(wrong)} of {expected.numel()} numbers differ)"
    return f"{found[place].item()} instead of {expected[place].item()} at {list(place)}{count}"
