"""Operations with side effects, which torch orders by tokens.

An operation takes a token and returns the next, and so does the program. Lowering removes the tokens: the graph's own
order is enough, and the program is then called with tensors alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Node

from hatch_lower.exir.graph.state import input_pairs, named_after, output_pairs
from hatch_lower.runtime.torch_private.operators import schema_of
from hatch_lower.runtime.torch_private.programs import change_signature

WITH_EFFECTS = torch.ops.higher_order.with_effects


def remove_tokens(program: ExportedProgram) -> None:
    """Replace calls with tokens by direct calls of the operations, in place."""
    inputs = input_pairs(program)
    given = [spec for spec, _ in inputs if spec.kind is not InputKind.TOKEN]
    if len(given) == len(inputs):
        return
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=WITH_EFFECTS):
        call_directly(node)
    results = [(spec, value) for spec, value in output_pairs(program) if spec.kind is not OutputKind.TOKEN]
    graph.output_node().args = (tuple(value for _, value in results),)
    for spec, node in inputs:
        if spec.kind is InputKind.TOKEN:
            graph.erase_node(node)
    program.graph_module.recompile()
    change_signature(program, ExportGraphSignature(given, [named_after(spec, value) for spec, value in results]))


def call_directly(node: Node) -> None:
    """Replace a call with a token by a direct call of the operation."""
    given: Any = node.args
    token, op, *args = given
    _, *values = node.meta["val"]
    several = len(schema_of(op).returns) > 1
    with node.graph.inserting_before(node):
        call = node.graph.call_function(op, tuple(args), dict(node.kwargs))
    call.meta = {**node.meta, "val": tuple(values) if several else next(iter(values), None)}
    for result in list(node.users):
        place: Any = result.args[1]
        if several and place:
            result.args = (call, place - 1)
        else:
            result.replace_all_uses_with(call if place else token)
            node.graph.erase_node(result)
    node.graph.erase_node(node)
