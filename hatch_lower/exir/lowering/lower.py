"""Lowering of exported methods: conversion to the edge dialect, passes, then each backend in turn.

A build and `to_edge_transform_and_lower` share this module; `Steps` holds their differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch.export import ExportedProgram

from hatch_lower.cache.store import Store
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.backend_api import Lowered, lower_methods
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.lowering.convert import Wanted, to_edge
from hatch_lower.exir.lowering.leave_out import Places, number_places
from hatch_lower.exir.lowering.wishes import Wishes, any_of, refuse_undelegated
from hatch_lower.exir.pass_base import AnyPass, transform_program
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.torch_private.operators import OpOverload


class Turn(Frozen):
    """A partitioner for each method that is lowered in the same turn."""

    partitioners: Mapping[str, Partitioner]
    name: str = ""  # prefix of the turn's reasons for nodes that it does not take; may be empty


class LoweredMethods(Frozen):
    edge: Mapping[str, ExportedProgram]  # the programs that the first turn was given
    methods: Mapping[str, Lowered]  # the results of all turns together
    kept: frozenset[OpOverload]  # operators kept whole for partitioners


class Steps:
    """Hooks around the steps, such as for reports; the defaults are empty."""

    store: Store | None = None  # of compiled partitions

    def edge(self, method: str) -> AbstractContextManager[object]:
        # enter while a method becomes an edge program
        return nullcontext()

    def ask(self, method: str) -> AbstractContextManager[object]:
        """Enter, within `edge`, while partitioners name the operations to keep whole."""
        return nullcontext()

    def turn(self, turn: Turn) -> AbstractContextManager[Callable[[Mapping[str, Lowered]], object]]:
        """Enter during a turn; yields a function that receives the results of this turn alone."""
        return nullcontext(lambda lowered: None)

    def left_out(self, turn: Turn) -> Mapping[str, Places]:
        """Return, by method, the operations that the turn must not take."""
        return {}

    def leaves_out(self, turn: Turn, programs: Mapping[str, ExportedProgram], error: BackendError) -> bool:
        """Return whether to repeat a failed turn; `left_out` then has more operations than before."""
        return False


def lower_exported(
    exported: Mapping[str, ExportedProgram],
    turns: Sequence[Turn],
    *,
    preserve: Sequence[OpOverload] = (),
    preserve_nodes: Mapping[OpOverload, Wanted] = {},
    passes: Mapping[str, Sequence[AnyPass]] = {},
    needs_delegates: bool = False,
    steps: Steps | None = None,
    before: LoweredMethods | None = None,
) -> LoweredMethods:
    """Lower all methods of a model."""
    # `before` is an earlier result for the same methods and partitioners: only the turns run again. An operation that
    # any partitioner wants whole (`ops_to_not_decompose`) stays whole for all partitioners, in any order; so do
    # operators of `preserve` and chosen calls of `preserve_nodes`. `passes` run over a method's edge program before the
    # first turn. With `needs_delegates` an operation that was kept whole for a partitioner but not taken is refused.
    steps = steps or Steps()
    wishes: dict[str, Wishes] = {}
    edge: dict[str, ExportedProgram] = {}
    for method, program in () if before is not None else exported.items():
        with steps.edge(method):
            with steps.ask(method):
                asked = [turn.partitioners[method] for turn in turns if method in turn.partitioners]
                wishes[method] = Wishes.of(program, asked)
            keep = [*preserve, *wishes[method].whole]
            some = either(preserve_nodes, wishes[method].some)
            edge[method] = to_edge(wishes[method].program, keep=keep, keep_nodes=some)
            if passes.get(method):
                edge[method] = transform_program(edge[method], passes[method])
            number_places(edge[method])
    edge = edge if before is None else dict(before.edge)
    methods = {method: Lowered(program) for method, program in edge.items()}
    for turn in turns:
        lowered = take_turn(turn, programs_of(methods), steps)
        methods = {method: before.then(lowered[method], turn.name) for method, before in methods.items()}
    if needs_delegates:  # a build keeps the operation: unlike ExecuTorch's runtime, torch runs whole operators
        for method, result in methods.items():
            refuse_undelegated(method, result.program, wishes[method], preserve, result.reasons)
    kept = frozenset(op for method in wishes.values() for op in method.wanted_by)
    return LoweredMethods(edge, methods, kept if before is None else before.kept)


def take_turn(turn: Turn, programs: Mapping[str, ExportedProgram], steps: Steps) -> Mapping[str, Lowered]:
    while True:
        left_out = steps.left_out(turn)
        try:
            with steps.turn(turn) as tell:
                lowered = lower_methods(programs, turn.partitioners, store=steps.store, left_out=left_out)
                tell(lowered)
        except BackendError as error:
            if not steps.leaves_out(turn, programs, error):
                raise
        else:
            return lowered


def either(first: Mapping[OpOverload, Wanted], second: Mapping[OpOverload, Wanted]) -> dict[OpOverload, Wanted]:
    """Merge two mappings to filters; an operator in both gets a filter that is true where either is."""
    both = {op: any_of([first[op], second[op]]) for op in first if op in second}
    return {**first, **second, **both}


def programs_of(methods: Mapping[str, Lowered]) -> dict[str, ExportedProgram]:
    return {method: lowered.program for method, lowered in methods.items()}
