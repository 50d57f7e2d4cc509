"""The rules of the edge dialect.

A rule takes a node and returns a message if the node breaks the rule. The rules of `STRUCTURE_RULES` hold for every
edge program and are checked whenever torch makes a program; other rules hold for finished programs, and some operators
may be exempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.dialects.edge._ops import EdgeOpOverload
from hatch_lower.exir.graph.surgery import attribute_of, graph_modules
from hatch_lower.runtime.torch_private.operators import HigherOrderOperator, OpOverload, schema_of
from hatch_lower.runtime.torch_private.programs import SpecViolationError, Verifier

SHOWN = 8  # how many violations an error lists

ATEN_NAMESPACES = ("aten", "prims")


class EdgeViolationError(EdgeError, SpecViolationError):
    """A program breaks a rule of the edge dialect."""


# a node, the module whose graph it is in, and the torch overloads that need not be core ATen
Rule = Callable[[Node, GraphModule, Collection[OpOverload]], "str | None"]


def is_edge_operator(node: Node, module: GraphModule, exempt: Collection[OpOverload]) -> str | None:
    """Refuse torch's own overloads: edge programs are recognized by their edge operators."""
    return f"{node.target} is not an edge operator" if isinstance(node.target, OpOverload) else None


def is_functional(node: Node, module: GraphModule, exempt: Collection[OpOverload]) -> str | None:
    """Refuse operators that change their arguments."""
    if isinstance(node.target, EdgeOpOverload) and schema_of(node.target._op).is_mutable:
        return f"edge operator {node.target} changes its arguments"
    return None


def has_debug_handle(node: Node, module: GraphModule, exempt: Collection[OpOverload]) -> str | None:
    """Require a debug handle on every operation."""
    missing = node.op == "call_function" and "debug_handle" not in node.meta
    return f"node {node.name} has no debug handle" if missing else None


def is_core_aten(node: Node, module: GraphModule, exempt: Collection[OpOverload]) -> str | None:
    """Refuse ATen operators that are not in the core set; asserts, which have no results, may stay."""
    if not isinstance(node.target, EdgeOpOverload):
        return None
    op = node.target._op
    core = torch.Tag.core in op.tags or torch.Tag.view_copy in op.tags
    if core or op.namespace not in ATEN_NAMESPACES or op in exempt or not schema_of(op).returns:
        return None
    return f"operator {node.target} is not core ATen"


def has_contiguous_attribute(node: Node, module: GraphModule, exempt: Collection[OpOverload]) -> str | None:
    """Refuse attribute tensors with gaps or transposed dimensions."""
    if node.op != "get_attr":
        return None
    found = attribute_of(module, str(node.target))
    if not isinstance(found, torch.Tensor) or found.layout is not torch.strided or is_dense(found):
        return None
    return f"the attribute tensor {node.target} is neither contiguous nor channels-last"


STRUCTURE_RULES: tuple[Rule, ...] = (is_edge_operator, is_functional, has_debug_handle)
DIALECT_RULES: tuple[Rule, ...] = (*STRUCTURE_RULES, is_core_aten, has_contiguous_attribute)

HINTS: Mapping[Rule, str] = MappingProxyType(
    {
        is_core_aten: "keep it whole with `EdgeCompileConfig(preserve_ops=[...])`, exempt it with "
        "`_core_aten_ops_exception_list`, or let a backend take it",
        has_contiguous_attribute: "call `.contiguous()` on it before exporting",
    }
)


def find_violations(
    module: GraphModule, rules: Iterable[Rule] = DIALECT_RULES, exempt: Iterable[OpOverload] = ()
) -> Iterator[tuple[Rule, Node, str]]:
    listed, exempt = tuple(rules), frozenset(exempt)
    for inner in graph_modules(module):
        for node in inner.graph.nodes:
            for rule in listed:
                if (message := rule(node, inner, exempt)) is not None:
                    yield rule, node, message


def verify_edge(
    program: ExportedProgram, *, rules: Iterable[Rule] = DIALECT_RULES, exempt: Iterable[OpOverload] = ()
) -> None:
    """Check a finished edge program; raise an `EdgeViolationError` that lists the violations."""
    refuse_violations(find_violations(program.graph_module, rules, exempt))


def refuse_violations(violations: Iterator[tuple[Rule, Node, str]]) -> None:
    found: dict[str, tuple[Rule, Node]] = {}
    for rule, node, message in violations:
        found.setdefault(message, (rule, node))
    if not found:
        return
    first, (rule, node) = next(iter(found.items()))
    # a row for each message: if an operator breaks a rule, all its calls do
    rows = [f"{message} (node `{culprit.name}`)" for message, (_, culprit) in found.items()]
    more = [f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    raise EdgeViolationError(
        first,
        where=f"node `{node.name}`",
        found="\n".join([*rows[:SHOWN], *more]) if len(rows) > 1 else "",
        hint=HINTS.get(rule, "make edge programs with `to_edge`, and passes that keep to the dialect"),
    )


def is_dense(tensor: torch.Tensor) -> bool:
    likely = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim(), torch.contiguous_format)
    return tensor.is_contiguous(memory_format=likely) or tensor.is_contiguous()


class EdgeVerifier(Verifier):
    """Torch's check of a new edge program: `STRUCTURE_RULES`, and the kinds of targets and attributes."""

    dialect = "HATCH_LOWER_EDGE"

    def allowed_op_types(self) -> tuple[type[Any], ...]:
        return (EdgeOpOverload, OpOverload, HigherOrderOperator)  # a rule refuses torch's own, with a better message

    def allowed_getattr_types(self) -> tuple[type[Any], ...]:
        return (*super().allowed_getattr_types(), torch.Tensor, torch.ScriptObject)

    def check_additional(self, gm: GraphModule) -> None:
        refuse_violations(find_violations(gm, STRUCTURE_RULES))
