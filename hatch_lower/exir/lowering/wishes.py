"""Operators that partitioners ask to keep whole, and the check that a backend then takes each call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch.export import ExportedProgram, default_decompositions

from hatch_lower.errors import EdgeError
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.dialects._ops import EdgeOpOverload, torch_overload
from hatch_lower.exir.graph.surgery import all_nodes, functionalized
from hatch_lower.exir.lowering.convert import Wanted
from hatch_lower.exir.lowering.regions import without_regions
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
