"""Are wrong inputs refused, before they reach the delegate and by the delegate itself?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hatch_lower.errors import InputError
from hatch_lower.lowering.module import LoweredBackendModule
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.testing.bench import Bench
from hatch_lower.testing.case import Case
from hatch_lower.testing.outcome import Fault, NotClaimedError
from hatch_lower.testing.probes import probe
from hatch_lower.testing.watched import watched

__all__ = ["check_delegate_refuses", "check_runtime_refuses"]

PROBES = ("operators/perceptron", "operators/arithmetic float32", "operators/fused")


def check_runtime_refuses(bench: Bench, cases: Sequence[Case]) -> str:
    """Call a lowered program with wrong arguments, and then look at what its delegate is given for right ones.

    Raises:
        Fault: if a wrong argument is not refused before the delegate runs, or the delegate is given something else than
            its partition's inputs.
    """
    case = probe(bench, cases, *PROBES)
    handed: list[list[Any]] = []

    def note(delegate: Delegate, inputs: list[Tensor]) -> Sequence[Any]:
        handed.append(list(inputs))
        return delegate.run(inputs)

    loaded = bench.load(bench.save(bench.lowered(case)), watched(bench.delegate(), run=note))
    right = case.arguments()[0]
    tried = 0
    for what, arguments in wrong_arguments(right):
        tried += 1
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
        expected = {signature_of(module) for module in bench.partitions(case)}
        for inputs in handed:
            found = tuple(described(each) for each in inputs)
            if found not in expected:
                raise Fault(f"the delegate is given ({', '.join(found)})")
    return f"{tried} wrong calls of `{case.name}`"


def check_delegate_refuses(bench: Bench, cases: Sequence[Case]) -> str:
    """Hand wrong inputs to the delegate itself, which nothing but its own checks can refuse.

    Raises:
        Fault: if it returns a result.
        NotClaimedError: if the delegate relies on the runtime's checks, as it may.
    """
    if not bench.subject.checks_inputs:
        raise NotClaimedError("the delegate relies on the runtime, which checks before the call")
    case = probe(bench, cases, *PROBES)
    made: list[tuple[Delegate, list[Tensor]]] = []

    def keep(delegate: Delegate, inputs: list[Tensor]) -> Sequence[Any]:
        made.append((delegate, list(inputs)))
        return delegate.run(inputs)

    bench.load(bench.save(bench.lowered(case)), watched(bench.delegate(), run=keep))(*case.arguments()[0])
    delegate, inputs = made[0]
    tried = 0
    for what, arguments in wrong_arguments(tuple(inputs)):
        tried += 1
        try:
            delegate.run(list(arguments))
        except Exception:
            continue
        raise Fault(f"the delegate takes {what}")
    return f"{tried} wrong calls of `{case.name}`"


def wrong_arguments(right: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield what is wrong, and arguments that are wrong so."""
    first, rest = right[0], right[1:]
    other = torch.int64 if first.dtype.is_floating_point else torch.float32
    yield (
        f"{str(other).removeprefix('torch.')} instead of {str(first.dtype).removeprefix('torch.')}",
        (
            first.to(other),
            *rest,
        ),
    )
    yield "a dimension too many", (first[None], *rest)
    yield "another size", (torch.cat([first, first], -1), *rest)
    yield "an argument too few", rest
    yield "an argument too many", (*right, first)


def signature_of(module: LoweredBackendModule) -> tuple[str, ...]:
    """Return the inputs of a partition, described."""
    program = module.original_module
    names = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return tuple(described(node.meta["val"]) for node in nodes)


def described(value: Any) -> str:
    """Return the dtype, shape and strides of a tensor; of a number its type."""
    if not isinstance(value, Tensor):
        return "a number"
    shape, strides = tuple(map(str, value.shape)), tuple(map(str, value.stride()))
    return f"{value.dtype} {shape} {strides}"
