"""The method and the exported node of an operation that a backend cannot lower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.errors import OperationError
from hatch_lower.exir.lowering.extract import LocalProgram


def place_operation(
    error: OperationError,
    candidates: Iterable[tuple[str, ExportedProgram, LocalProgram, ExportedProgram | None]],
) -> None:
    """Add the method of the failed operation, and the stack of its source line, to an error in place.

    Args:
        error: an error whose node is in one of the programs.
        candidates: for each partition the method, the program that the backend got, the local form, and the partition
            with the names, handles and stacks of the model, if known.
    """
    node = error.node
    for method, given, local, owner in candidates:
        if isinstance(node, Node) and node.graph is given.graph:
            error.where = f"method `{method}`, {error.where}"
            handle = local.handles[node.meta["debug_handle"] - 1]
            stacks = [known.meta for known in (owner.graph.nodes if owner is not None else ())]
            error.stack = next((meta.get("stack_trace") or "" for meta in stacks if is_of(meta, handle)), "")


def is_of(meta: Mapping[str, object], handle: int) -> bool:
    return meta.get("debug_handle") == handle and bool(meta.get("stack_trace"))
