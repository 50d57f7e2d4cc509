"""What a process that runs many tests need not do again.

The builds of end-to-end tests run in processes of their own, without it.
"""

from __future__ import annotations

import gc
import sys


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
