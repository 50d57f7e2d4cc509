"""Is every operation of a partition in the debug map that the backend gives?"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.fx import Node

from hatch_lower.graph.surgery import graph_modules
from hatch_lower.lowering.module import LoweredBackendModule
from hatch_lower.testing.bench import Bench
from hatch_lower.testing.case import Case
from hatch_lower.testing.outcome import Fault, NotClaimedError

__all__ = ["check_handles"]


def check_handles(bench: Bench, cases: Sequence[Case]) -> str:
    """Compare the handles of the operations of all partitions with those in their debug maps.

    Raises:
        Fault: if an operation that computes tensors is in no entry, or an entry has a handle of something else.
        NotClaimedError: if the backend gives no debug maps.
    """
    claimed = bench.claimed(cases)
    with_map = 0
    for case in claimed:
        for module in bench.partitions(case):
            given = (module.meta or {}).get("debug_handle_map")
            if given is None:
                continue
            with_map += 1
            compare_handles(case, module, {handle for handles in given.values() for handle in handles})
    if not with_map:
        raise NotClaimedError("the backend takes nothing" if not claimed else "the backend gives no debug map")
    return f"{with_map} partitions"


def compare_handles(case: Case, module: LoweredBackendModule, told: set[int]) -> None:
    """Raise `Fault` unless the told handles are those of a partition's operations."""
    nodes: dict[int, Node] = {}
    needed: set[int] = set()
    for graph_module in graph_modules(module.original_module.graph_module):
        for node in graph_module.graph.nodes:
            handle = node.meta.get("debug_handle")
            if node.op == "call_function" and handle:
                nodes.setdefault(handle, node)
                if has_tensor(node.meta.get("val")):
                    needed.add(handle)
    lost = sorted(needed - told)
    if lost:
        raise Fault(f"`{case.name}`: no instruction of the debug map computes `{nodes[lost[0]].name}`")
    foreign = sorted(told - set(nodes))
    if foreign:
        raise Fault(f"`{case.name}`: the debug map names the handle {foreign[0]}, which no operation inside has")


def has_tensor(value: object) -> bool:
    """Return whether an operation computes tensors; what computes sizes may be no instruction of a delegate."""
    if isinstance(value, (list, tuple)):
        return any(map(has_tensor, value))
    return isinstance(value, Tensor)
