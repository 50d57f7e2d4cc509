"""Lowering of exported methods: conversion to the edge dialect, passes, then each backend in turn; operators that
partitioners ask to keep whole.

A build and `to_edge_transform_and_lower` share this module; `LoweringSteps` holds their differences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.export import ExportedProgram, default_decompositions

from hatch_lower.cache.store import Store
from hatch_lower.errors import BackendError, EdgeError
from hatch_lower.exir.backend.backend_api import DelegatedMethod, lower_methods
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.dialects._ops import EdgeOpOverload, torch_overload
from hatch_lower.exir.graph.surgery import all_nodes, functionalized
from hatch_lower.exir.lowering.convert import Wanted, to_edge
from hatch_lower.exir.lowering.leave_out import Places, number_places
from hatch_lower.exir.lowering.regions import without_regions
from hatch_lower.exir.pass_base import AnyPass, transform_program
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of

# operators that an edge program cannot hold: always decomposed
NEVER_KEPT = (torch.ops.aten.item.default, torch.ops.aten.unbind.int)

# namespaces of operators that stay whole without a delegate: they describe the quantization of values
FREE_NAMESPACES = ("quantized_decomposed",)


class NotDelegatedError(EdgeError, RuntimeError):
    """An operator was kept whole for a backend but not delegated."""


class Wishes(Frozen):
    """The operators that the partitioners of a method want whole, merged."""

    program: ExportedProgram  # the exported program whose nodes `some` filters, functional if needed
    whole: tuple[OpOverload, ...]  # wanted whole in every call
    some: Mapping[OpOverload, Wanted]  # wanted whole in the calls for which the filter is true
    wanted_by: Mapping[OpOverload, tuple[str, ...]]  # names of partitioners

    @classmethod
    def of(cls, program: ExportedProgram, partitioners: Sequence[Partitioner]) -> Wishes:
        """Ask each partitioner once, before the first decomposition."""
        if partitioners:
            program = functional(without_regions(program))
        whole: dict[OpOverload, None] = {}
        filters: dict[OpOverload, list[Wanted]] = {}
        wanted_by: dict[OpOverload, tuple[str, ...]] = {}
        for partitioner in partitioners:
            operators, wanted = partitioner.ops_to_not_decompose(program)
            for operator in operators:
                op: OpOverload = torch_overload(operator)
                if schema_of(op).is_mutable or op in NEVER_KEPT:  # an edge program is functional
                    continue
                wanted_by[op] = (*wanted_by.get(op, ()), type(partitioner).__name__)
                if wanted is None:
                    whole[op] = None
                else:
                    filters.setdefault(op, []).append(wanted)
        some = {op: any_of(each) for op, each in filters.items() if op not in whole}
        return cls(program, tuple(whole), some, wanted_by)


def any_of(filters: Sequence[Wanted]) -> Wanted:
    return filters[0] if len(filters) == 1 else lambda node: any(wanted(node) for wanted in filters)


def functional(program: ExportedProgram) -> ExportedProgram:
    targets = (node.target for node in all_nodes(program.graph_module))
    if not any(isinstance(target, OpOverload) and schema_of(target).is_mutable for target in targets):
        return program
    return functionalized(program)


def refuse_undelegated(
    method: str, program: ExportedProgram, wishes: Wishes, preserved: Sequence[OpOverload], reasons: Mapping[str, str]
) -> None:
    edge = [
        (node, node.target._op) for node in all_nodes(program.graph_module) if isinstance(node.target, EdgeOpOverload)
    ]
    wanted = wishes.wanted_by.keys() - set(preserved)
    left = [(node, op) for node, op in edge if op in wanted and op.namespace not in FREE_NAMESPACES]
    if left:
        # an operator without a decomposition is in the program without any wish
        table: Collection[object] = default_decompositions()
        left = [(node, op) for node, op in left if op in table]
    if not left:
        return
    node, op = left[0]
    names = ", ".join(f"`{name}`" for name in wishes.wanted_by[op])
    rows = [f"{op} was kept whole for {names}"]
    rows += [f"node `{kept.name}`: {reasons.get(kept.name, 'no partitioner took it')}" for kept, _ in left]
    raise NotDelegatedError(
        f"{op} was not decomposed or delegated",
        where=f"method `{method}`, node `{node.name}`",
        found="\n".join(rows),
        hint="let the partitioner take the operation, or exclude it by the filter of `ops_to_not_decompose`; "
        "`EdgeCompileConfig(preserve_ops=[...])` keeps an operator whole without a delegate",
    )


class Turn(Frozen):
    """A partitioner for each method that is lowered in the same turn."""

    partitioners: Mapping[str, Partitioner]
    name: str = ""  # prefix of the turn's reasons for nodes that it does not take; may be empty


class DelegatedMethods(Frozen):
    edge: Mapping[str, ExportedProgram]  # the programs that the first turn was given
    methods: Mapping[str, DelegatedMethod]  # the results of all turns together
    kept: frozenset[OpOverload]  # operators kept whole for partitioners


class LoweringSteps:
    """Hooks around the steps, such as for reports; the defaults are empty."""

    store: Store | None = None  # of compiled partitions

    def edge(self, method: str) -> AbstractContextManager[object]:
        # enter while a method becomes an edge program
        return nullcontext()

    def ask(self, method: str) -> AbstractContextManager[object]:
        """Enter, within `edge`, while partitioners name the operations to keep whole."""
        return nullcontext()

    def turn(self, turn: Turn) -> AbstractContextManager[Callable[[Mapping[str, DelegatedMethod]], object]]:
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
    steps: LoweringSteps | None = None,
    before: DelegatedMethods | None = None,
) -> DelegatedMethods:
    # `before` is an earlier result for the same methods and partitioners: only the turns run again. An operation that
    # any partitioner wants whole (`ops_to_not_decompose`) stays whole for all partitioners, in any order; so do
    # operators of `preserve` and chosen calls of `preserve_nodes`. `passes` run over a method's edge program before the
    # first turn. With `needs_delegates` an operation that was kept whole for a partitioner but not taken is refused.
    steps = steps or LoweringSteps()
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
    methods = {method: DelegatedMethod(program) for method, program in edge.items()}
    for turn in turns:
        lowered = take_turn(turn, programs_of(methods), steps)
        methods = {method: before.then(lowered[method], turn.name) for method, before in methods.items()}
    if needs_delegates:  # a build keeps the operation: unlike ExecuTorch's runtime, torch runs whole operators
        for method, result in methods.items():
            refuse_undelegated(method, result.program, wishes[method], preserve, result.reasons)
    kept = frozenset(op for method in wishes.values() for op in method.wanted_by)
    return DelegatedMethods(edge, methods, kept if before is None else before.kept)


def take_turn(
    turn: Turn, programs: Mapping[str, ExportedProgram], steps: LoweringSteps
) -> Mapping[str, DelegatedMethod]:
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


def programs_of(methods: Mapping[str, DelegatedMethod]) -> dict[str, ExportedProgram]:
    return {method: lowered.program for method, lowered in methods.items()}
