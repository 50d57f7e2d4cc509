"""Do results, instances and threads leave each other alone?"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from hatch_lower.testing.bench import Bench
from hatch_lower.testing.case import Case
from hatch_lower.testing.numbers import Call, eager_calls, first_difference
from hatch_lower.testing.outcome import Fault, NotClaimedError
from hatch_lower.testing.probes import probe, sample
from hatch_lower.testing.running import run_case

__all__ = ["check_instances", "check_results_are_kept", "check_threads"]

ROUNDS = 8


def refuse_null(bench: Bench) -> None:
    """Raise `NotClaimedError` for a backend that computes nothing."""
    if not bench.subject.computes:
        raise NotClaimedError("the backend computes nothing")


def check_results_are_kept(bench: Bench, cases: Sequence[Case]) -> str:
    """Call programs again with other arguments, and look whether the first result is still what it was.

    Raises:
        Fault: if it is not: it is memory that the engine writes to.
    """
    refuse_null(bench)
    chosen = sample(bench, cases)
    for case in chosen:
        loaded = bench.load(bench.save(bench.lowered(case)))
        first, second = (call.copied() for call in eager_calls(case.module(), case.arguments()[:2]))
        found = loaded(*first)
        expected = copy.deepcopy(found)
        loaded(*second)
        loaded.clone()(*second)
        difference = first_difference(found, expected, bench.subject.tolerance)
        if difference:
            raise Fault(f"`{case.name}`: the next call overwrites a result: {difference}")
    return f"{len(chosen)} programs"


def check_instances(bench: Bench, cases: Sequence[Case]) -> str:
    """Load programs several times and clone them, and call all in turn; state belongs to the instance.

    Raises:
        Fault: if an instance computes something else than it does alone.
    """
    refuse_null(bench)
    chosen = [probe(bench, cases, "operators/perceptron", "operators/fused")]
    chosen += bench.claimed([case for case in cases if case.name == "state/counted"])
    for case in filter(partial(works_alone, bench), chosen):
        folder = bench.save(bench.lowered(case))
        one, other = bench.load(folder), bench.load(folder)
        runs = [(each, eager_calls(case.module(), case.arguments())) for each in (one, other, one.clone())]
        for number in range(len(runs[0][1])):
            for place, (loaded, calls) in enumerate(runs):
                difference = difference_of(bench, loaded, calls[number])
                if difference:
                    name = ("the first", "the second", "the cloned")[place]
                    raise Fault(f"`{case.name}`, {name} instance beside others: {difference}")
        one.reset()
        difference = difference_of(bench, one, runs[0][1][0])
        if difference:
            raise Fault(f"`{case.name}`, after `reset`: {difference}")
    return f"3 instances of {len(chosen)} programs"


def check_threads(bench: Bench, cases: Sequence[Case]) -> str:
    """Call one loaded program from several threads at once, each with arguments of its own.

    Raises:
        Fault: if a result is wrong.
    """
    refuse_null(bench)
    case = probe(bench, cases, "operators/perceptron", "operators/fused", "operators/functions float32")
    loaded = bench.load(bench.save(bench.lowered(case)))
    calls = eager_calls(case.module(), case.arguments())
    wrong: list[str] = []
    ready = threading.Barrier(len(calls) * 2)

    def work(call: Call) -> None:
        ready.wait()
        for _ in range(ROUNDS):
            try:
                difference = difference_of(bench, loaded, call)
            except Exception as error:
                difference = f"{type(error).__name__}: {error}"
            if difference:
                wrong.append(difference)
                return

    threads = [threading.Thread(target=work, args=(call,)) for call in (*calls, *calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise Fault(f"`{case.name}` called from several threads: {wrong[0]}")
    return f"{ROUNDS} calls from {len(threads)} threads"


def works_alone(bench: Bench, case: Case) -> bool:
    """Return whether a program computes what eager does; if not, that is found where the program itself is run."""
    try:
        run_case(bench, case)
    except Fault:
        return False
    return True


def difference_of(bench: Bench, loaded: Any, call: Call) -> str:
    """Return how the result of a call differs from eager's."""
    return first_difference(loaded(*call.copied()), call.result, bench.subject.tolerance)
