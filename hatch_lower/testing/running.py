"""One program through partitioner, preprocess and delegate, against eager."""

from __future__ import annotations

from hatch_lower.errors import BackendError, LowerError
from hatch_lower.graph.surgery import count_operations
from hatch_lower.lowering.lower import Lowered
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.testing.bench import Bench
from hatch_lower.testing.case import Case
from hatch_lower.testing.numbers import eager_calls, first_difference
from hatch_lower.testing.outcome import Fault, NotClaimedError

__all__ = ["compare_calls", "run_case", "words"]


def run_case(bench: Bench, case: Case) -> str:
    """Run a program; return how much of it the backend took.

    Raises:
        BackendError: if the backend refuses it.
        Fault: if it computes something else than eager.
        NotClaimedError: if the backend takes nothing of it.
    """
    lowered = bench.lowered(case)
    if lowered.partitions == 0:
        reasons = list(dict.fromkeys(lowered.reasons.values())) or ["no operation is left to take"]
        raise NotClaimedError("; ".join(reasons[:2]) + (f"; and {len(reasons) - 2} more" * (len(reasons) > 2)))
    try:
        loaded = bench.load(bench.save(lowered))
        if bench.subject.computes:
            compare_calls(bench, case, loaded)
    except BackendError as error:  # refusing is for the time when the wheel is built
        raise Fault(f"what it lowered does not load or run: {words(error)}") from error
    return taken(bench, case, lowered)


def compare_calls(bench: Bench, case: Case, loaded: LoadedModel) -> None:
    """Call a loaded model as the case says, and compare each result, and what became of the arguments.

    Raises:
        Fault: if something differs.
    """
    for number, call in enumerate(eager_calls(case.module(), case.arguments()), 1):
        given = call.copied()
        found = loaded(*given)
        difference = first_difference(found, call.result, bench.subject.tolerance)
        if difference:
            raise Fault(f"call {number}, {difference}")
        difference = first_difference(given, call.after, bench.subject.tolerance)
        if difference:
            raise Fault(f"call {number} leaves its arguments otherwise than eager: {difference}")


def taken(bench: Bench, case: Case, lowered: Lowered) -> str:
    """Return how much of a program is in partitions, in words."""
    total = count_operations(bench.edge(case).graph_module)
    part = "all" if lowered.delegated >= total else f"{lowered.delegated} of {total}"
    note = "" if bench.subject.computes else "; lowered, packaged and loaded, but not run"
    return f"{part} operations in {lowered.partitions} partition{'s' * (lowered.partitions > 1)}{note}"


def words(error: BaseException) -> str:
    """Return an exception in one line."""
    text = f"{error.what}{f' ({error.found})' * bool(error.found)}" if isinstance(error, LowerError) else f"{error}"
    line = " ".join(text.split())
    return line if isinstance(error, LowerError) else f"{type(error).__name__}: {line:.300}"
