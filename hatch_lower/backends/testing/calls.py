"""Checks of calls: wrong inputs are refused, and results, instances and threads do not affect each other."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hatch_lower.backends.testing.bench import Bench, probe, refuse_null, sample, watched
from hatch_lower.backends.testing.case import Case, Fault, NotClaimedError
from hatch_lower.backends.testing.comparison import (
    EagerCall,
    difference_from_eager,
    eager_calls,
    first_difference,
    works,
)
from hatch_lower.errors import InputError
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.runtime.delegates import Delegate

PROBES = ("operators/perceptron", "operators/arithmetic float32", "operators/fused")


def check_runtime_refuses(bench: Bench, cases: Sequence[Case]) -> str:
    """Call a lowered program with wrong arguments, and then examine its delegate's inputs for right arguments."""
    case = probe(bench, cases, *PROBES)
    handed: list[list[object]] = []

    def note(delegate: Delegate, inputs: list[Tensor]) -> Sequence[object]:
        handed.append(list(inputs))
        return delegate.run(inputs)

    loaded = bench.load(bench.save(bench.lowered(case)), watched(bench.delegate(), run=note))
    right = case.arguments()[0]
    wrong = wrong_arguments(right)
    for what, arguments in wrong.items():
        try:
            loaded(*arguments)
        except InputError:
            pass
        except Exception as error:
            raise Fault(f"{what} is a `{type(error).__name__}` and not an `InputError`: {error}") from error
        else:
            raise Fault(f"{what} is not refused")
        if handed:
            raise Fault(f"{what} reaches the delegate")
    if bench.subject.computes:
        loaded(*right)
        expected = {module_signature(module) for module in bench.partitions(case)}
        for inputs in handed:
            given = tuple(describe_value(value) for value in inputs)
            if given not in expected:
                raise Fault(f"the delegate is given ({', '.join(given)})")
    return f"{len(wrong)} wrong calls of `{case.name}`"


def check_delegate_refuses(bench: Bench, cases: Sequence[Case]) -> str:
    """Hand wrong inputs to the delegate itself, which only its own checks can refuse."""
    if not bench.subject.checks_inputs:
        raise NotClaimedError("the delegate relies on the runtime, which checks before the call")
    case = probe(bench, cases, *PROBES)
    made: list[tuple[Delegate, list[Tensor]]] = []

    def keep(delegate: Delegate, inputs: list[Tensor]) -> Sequence[Any]:
        made.append((delegate, list(inputs)))
        return delegate.run(inputs)

    bench.load(bench.save(bench.lowered(case)), watched(bench.delegate(), run=keep))(*case.arguments()[0])
    delegate, inputs = made[0]
    wrong = wrong_arguments(inputs)
    for what, arguments in wrong.items():
        try:
            delegate.run(list(arguments))
        except Exception:
            continue
        raise Fault(f"the delegate takes {what}")
    return f"{len(wrong)} wrong calls of `{case.name}`"


def wrong_arguments(right: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    first, *rest = right
    other = torch.int64 if first.dtype.is_floating_point else torch.float32
    return {
        f"{dtype_name(other)} instead of {dtype_name(first.dtype)}": (first.to(other), *rest),
        "a dimension too many": (first[None], *rest),
        "another size": (torch.cat([first, first], -1), *rest),
        "a number instead of a tensor": (1.0, *rest),
        "an argument too few": (*rest,),
        "an argument too many": (*right, first),
    }


def module_signature(module: LoweredBackendModule) -> tuple[str, ...]:
    program = module.original_module
    names = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return tuple(describe_value(node.meta["val"]) for node in nodes)


def describe_value(value: object) -> str:
    if not isinstance(value, Tensor):
        return "a number"
    shape, strides = tuple(map(str, value.shape)), tuple(map(str, value.stride()))
    return f"{value.dtype} {shape} {strides}"


ROUNDS = 8
LATER = 64  # consecutive calls: enough to find a fault at the 40th


def check_later_calls(bench: Bench, cases: Sequence[Case]) -> str:
    """Call programs many times in turn with other arguments; compare all results, and at last the first again."""
    refuse_null(bench)
    chosen = sample(bench, cases)
    for case in chosen:
        loaded = bench.load(bench.save(bench.lowered(case)))
        calls = eager_calls(case.module(), case.arguments()[:2])
        result = loaded(*calls[0].copied())
        expected = copy.deepcopy(result)
        for number in range(2, LATER + 1):
            turn = (number - 1) % len(calls)
            if turn == 0:
                loaded.reset()  # eager's state was fresh then, too
            if difference := difference_from_eager(bench, loaded, calls[turn]):
                raise Fault(f"`{case.name}`, call {number}: {difference}")
        loaded.clone()(*calls[-1].copied())
        if difference := first_difference(result, expected, bench.subject.tolerance):
            raise Fault(f"`{case.name}`: a later call overwrites a result: {difference}")
    return f"{LATER} calls of {len(chosen)} programs"


def check_instances(bench: Bench, cases: Sequence[Case]) -> str:
    """Load programs several times and clone them, and call all in turn; state belongs to the instance."""
    refuse_null(bench)
    chosen = [probe(bench, cases, "operators/perceptron", "operators/fused")]
    chosen += bench.claimed([case for case in cases if case.name == "state/counted"])
    for case in filter(partial(works, bench), chosen):
        folder = bench.save(bench.lowered(case))
        first, second = bench.load(folder), bench.load(folder)
        runs = [(instance, eager_calls(case.module(), case.arguments())) for instance in (first, second, first.clone())]
        for number in range(len(runs[0][1])):
            for place, (loaded, calls) in enumerate(runs):
                if difference := difference_from_eager(bench, loaded, calls[number]):
                    name = ("the first", "the second", "the cloned")[place]
                    raise Fault(f"`{case.name}`, {name} instance beside others: {difference}")
        first.reset()
        if difference := difference_from_eager(bench, first, runs[0][1][0]):
            raise Fault(f"`{case.name}`, after `reset`: {difference}")
    return f"3 instances of {len(chosen)} programs"


def check_threads(bench: Bench, cases: Sequence[Case]) -> str:
    """Call one loaded program from several threads at once, each with arguments of its own."""
    refuse_null(bench)
    case = probe(bench, cases, "operators/perceptron", "operators/fused", "operators/functions float32")
    loaded = bench.load(bench.save(bench.lowered(case)))
    calls = eager_calls(case.module(), case.arguments())
    wrong: list[str] = []
    ready = threading.Barrier(len(calls) * 2)

    def work(call: EagerCall) -> None:
        ready.wait()
        for _ in range(ROUNDS):
            try:
                difference = difference_from_eager(bench, loaded, call)
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
