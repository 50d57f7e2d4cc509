"""What a process that runs many tests need not do again.

The builds of end-to-end tests run in processes of their own, without it.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


def keep_what_is_imported() -> None:
    """Take what the test modules have imported out of every later garbage collection."""
    gc.collect()
    gc.freeze()


class AnyCallable:
    """Stands for `Callable` in annotations that are evaluated and looked at by nobody."""

    def __getitem__(self, parameters: object) -> AnyCallable:
        return self

    def __instancecheck__(self, value: object) -> bool:
        return callable(value)


def leave_annotations_unevaluated() -> None:
    """Let torch define functions without their annotations, thousands of which each `run_decompositions` evaluates."""
    if "torch" in sys.modules:
        import torch

        torch._ops.Callable = AnyCallable()


def remember_decomposable_operators() -> None:
    """Let torch collect the operators that it can decompose once, and again when operators were registered.

    It does so twice in each `run_decompositions`, which takes half of that call's time for a small program.
    """
    if "torch" not in sys.modules:
        return
    import torch
    from torch.export import decomp_utils, exported_program

    collect = exported_program._collect_all_valid_cia_ops
    collected: dict[tuple[object, ...], set[torch._ops.OperatorBase]] = {}

    def remembered() -> set[torch._ops.OperatorBase]:
        composite = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        registered = (*composite, len(torch._C._dispatch_get_all_op_names()))
        if registered not in collected:
            collected[registered] = collect()
        return set(collected[registered])

    for importer in (decomp_utils, exported_program):
        importer._collect_all_valid_cia_ops = remembered


def remember_overrides() -> None:
    """Let torch override an operator as it did the last time, if operator and override are the same.

    Each `run_decompositions` overrides some 500 operators, with fifteen functions each: half of its time, too.
    """
    if "torch" not in sys.modules:
        return
    import torch
    from torch._subclasses import fake_impls
    from torch.export import decomp_utils, exported_program

    override, decomposition_of = exported_program._override_composite_implicit_decomp, decomp_utils._get_decomp_for_cia
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    decompositions: dict[Any, Callable[..., object]] = {}
    overridden: dict[tuple[Any, Any], Override] = {}

    def remembered_decomposition(op: Any) -> Callable[..., object]:
        if composite in op.py_kernels:
            return decomposition_of(op)
        if op not in decompositions:
            decompositions[op] = decomposition_of(op)
        return decompositions[op]

    @contextlib.contextmanager
    def remembered(by_operator: Mapping[Any, Callable[..., object]]) -> Iterator[None]:
        rules = fake_impls.op_implementations_dict
        before = {op: op.py_kernels.copy() for op in by_operator}
        known = {}
        for op, function in by_operator.items():
            last = overridden.get((op, function))
            if last is not None and last.before == before[op] and op not in rules:
                known[op] = last
        new = {op: function for op, function in by_operator.items() if op not in known}
        without_rule = [op for op in new if op not in rules]
        with override(new):
            for op in without_rule:
                overridden[op, new[op]] = Override(before[op], op.py_kernels.copy(), rules[op])
            try:
                for op, last in known.items():
                    exchange(op, last.kernels)
                    rules[op] = last.rule
                yield
            finally:
                for op in known:
                    exchange(op, before[op])
                    fake_impls._deregister_op_impl(op)

    exported_program._get_decomp_for_cia = decomp_utils._get_decomp_for_cia = remembered_decomposition
    exported_program._override_composite_implicit_decomp = remembered


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's kernels in Python `before` it is overridden and while it is, and then its rule for fake tensors."""

    before: Mapping[Any, Any]
    kernels: Mapping[Any, Any]
    rule: Any


def exchange(op: Any, kernels: Mapping[Any, Any]) -> None:
    """Give an operator these kernels in Python, and no others."""
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
