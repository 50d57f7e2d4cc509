"""Partitioners that claim all they can, for backends that take any operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec, PartitionResult
from hatch_lower.exir.backend.utils import tag_placeholders
from hatch_lower.exir.graph.nodes import producer_of
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.surgery import attribute_of
from hatch_lower.runtime.torch_private.operators import OpOverload


def refuse_options(backend: str, options: Mapping[str, object]) -> None:
    if options:
        names = ", ".join(f"`{name}`" for name in sorted(options))
        raise BackendError(
            f"the backend `{backend}` has no options", found=names, hint=f'name it without a table: `"{backend}"`'
        )


def claim(
    program: ExportedProgram, spec: DelegationSpec, takes: Callable[[Node], bool], reason: str
) -> PartitionResult:
    """Tag all operations that `takes` accepts, and the constants that they use, in as few partitions as possible.

    A partition ends where a refused operation stands between two accepted operations, so that no partition needs its
    own result. The operations in branches and bodies of refused control flow are tagged in the same way; their
    partitions are separate from partitions of the same tag outside, and own no constants, as constants are inputs
    there.
    """
    tags: dict[str, DelegationSpec] = {}
    reasons: dict[str, str] = {}
    pending = [program.graph_module]
    while pending:
        module = pending.pop()
        refused = tag_operations(module, spec, takes, tags)
        reasons.update((node.name, reason) for node in refused)
        inner = (source for node in refused for source in node.all_input_nodes if source.op == "get_attr")
        attributes = (attribute_of(module, str(source.target)) for source in dict.fromkeys(inner))
        pending += [attribute for attribute in attributes if isinstance(attribute, GraphModule)]
    # every partition that uses a constant owns it; but buffers stay in the program: another method of the model, which
    # is not known here, may change or read them
    tag_placeholders(program, lambda spec: spec.kind is not InputKind.BUFFER)
    return PartitionResult(program, dict(sorted(tags.items())), reasons)


def tag_operations(
    module: GraphModule, spec: DelegationSpec, takes: Callable[[Node], bool], tags: dict[str, DelegationSpec]
) -> list[Node]:
    """Tag the operations of one graph that `takes` accepts; return the other operations. `tags` is extended."""
    levels: dict[Node, int] = {}
    ends: dict[Node, int] = {}
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        sources = node.all_input_nodes
        level = max((levels.get(source, ends.get(source, -1) + 1) for source in sources), default=0)
        if takes(node):
            levels[node] = level
            tag = f"{spec.backend_id}_{level}"
            node.meta[DELEGATION_TAG] = tag
            tags[tag] = spec
        else:
            ends[node] = max((levels.get(source, ends.get(source, -1)) for source in sources), default=-1)
    return list(ends)


def is_operation(node: Node) -> bool:
    """Return whether a node computes tensors by an operator: no control flow, no arithmetic on sizes, no assertion."""
    overload = torch_operator(producer_of(node).target)
    if not isinstance(overload, OpOverload) or not has_tensor(node.meta.get("val")):
        return False
    # delegates take tensors and integers only
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return not any(isinstance(value, (torch.SymFloat, torch.SymBool)) for value in values)


def has_tensor(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(item is None or has_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)
