"""The rules of the edge dialect, as torch checks them when an edge program is made."""

from __future__ import annotations

from typing import Any

from torch._export.verifier import SpecViolationError, Verifier
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule

from hatch_lower.edge.ops import EdgeOpOverload

__all__ = ["EdgeVerifier"]


class EdgeVerifier(Verifier):
    """An edge program calls edge operators, symbolic-size functions and higher-order operators, nothing else."""

    dialect = "HATCH_LOWER_EDGE"

    def allowed_op_types(self) -> tuple[type[Any], ...]:
        """Return the operator types that may stand in an edge graph."""
        return (EdgeOpOverload, OpOverload, HigherOrderOperator)

    def check_valid_op(self, op: Any) -> None:
        """Refuse bare torch overloads and operators that change their arguments."""
        if isinstance(op, OpOverload):
            msg = f"{op} is not an edge operator"
            raise SpecViolationError(msg)
        if isinstance(op, EdgeOpOverload) and op._op._schema.is_mutable:
            msg = f"edge operator {op} changes its arguments"
            raise SpecViolationError(msg)

    def check_additional(self, gm: GraphModule) -> None:
        """Require a debug handle on every operation of every graph."""
        for module in gm.modules():
            if isinstance(module, GraphModule):
                for node in module.graph.nodes:
                    if node.op == "call_function" and "debug_handle" not in node.meta:
                        msg = f"node {node.name} has no debug handle"
                        raise SpecViolationError(msg)
