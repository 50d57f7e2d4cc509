"""Folding of results that depend on literals alone: rolled places, windows of an interpolation, masks.

Engines compute few operators on integers, and further operators need their results: a single `aten.fmod` of an
`aten.arange` cuts a partition in two.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from itertools import count

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Graph, Node, map_arg

from hatch_lower.exir.graph.nodes import is_view
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.surgery import copy_graph, reach, rebuild_program
from hatch_lower.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name, schema_of

LARGEST = 1 << 16  # bytes of a result
MADE = frozenset({"arange", "full", "ones", "scalar_tensor", "zeros"})  # cheap, and engines know them
UNKNOWN = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
VARYING = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class FoldLiterals(ExportedProgramPassBase):
    """Replaces results that depend on neither inputs nor weights by constants of at most 64 KiB."""

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        attributes, graph = copy_graph(exported_program.graph_module)
        values = literal_values(graph)
        folded = last_computed(graph, values.keys() - handed_out(graph), values)
        if not folded:
            return ExportedProgramPassResult(exported_program, False)
        signature = exported_program.graph_signature
        constants = dict(exported_program.constants)
        specs = list(signature.input_specs)
        place = sum(spec.kind is not InputKind.USER_INPUT for spec in specs)
        behind = list(graph.nodes)[place]  # the first input of a call, or else the first operation
        known = constants.keys() | exported_program.state_dict.keys()
        names = (name for name in map("folded_{}".format, count()) if name not in known)
        for node, target in zip(folded, names, strict=False):
            with graph.inserting_before(behind):
                constant = graph.placeholder(f"c_{target}")
            constant.meta["val"] = node.meta["val"]
            constants[target] = values[node]
            specs.insert(place, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(constant.name), target))
            place += 1
            node.replace_all_uses_with(constant)
        for node in reversed(values):
            if not node.users:
                graph.erase_node(node)
        signature = replace(signature, input_specs=specs)
        program = rebuild_program(exported_program, attributes, graph, signature=signature, constants=constants)
        return ExportedProgramPassResult(program, True)


def literal_values(graph: Graph) -> dict[Node, torch.Tensor]:
    """Return the results that depend on literals alone, in graph order."""
    values: dict[Node, torch.Tensor] = {}
    for node in graph.nodes:
        if is_repeatable(node) and all(source in values for source in node.all_input_nodes):
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            with suppress(Exception), torch.no_grad():  # an operation that raises here raises in each call, as in eager
                value = torch_operator(node.target)(*args, **kwargs)
                if is_like(value, node.meta["val"]):
                    values[node] = value
    return values


def is_repeatable(node: Node) -> bool:
    operator, value = torch_operator(node.target), node.meta.get("val")
    if not isinstance(operator, OpOverload) or not isinstance(value, torch.Tensor):
        return False
    if VARYING & set(operator.tags) or schema_of(operator).is_mutable or base_name(operator) in UNKNOWN:
        return False
    plain = value.device.type == "cpu" and value.layout is torch.strided
    if not plain or not all(isinstance(size, int) for size in (*value.shape, *value.stride())):
        return False
    # an expanded tensor reserves no memory
    return base_name(operator) == "expand" or math.prod(value.shape) * value.itemsize <= LARGEST


def is_like(value: torch.Tensor, promised: torch.Tensor) -> bool:
    return (value.dtype, value.shape, value.stride()) == (promised.dtype, promised.shape, promised.stride())


def handed_out(graph: Graph) -> set[Node]:
    """Return the nodes whose memory the caller or an operator may write to."""
    given = [*graph.output_node().all_input_nodes]
    for node in graph.nodes:
        operator = torch_operator(node.target)
        if isinstance(operator, OpOverload) and schema_of(operator).is_mutable:
            given += node.all_input_nodes
    return reach(given, lambda node: node.all_input_nodes if gives_memory_on(node) else [])


def gives_memory_on(node: Node) -> bool:
    operator = torch_operator(node.target)
    if not isinstance(operator, OpOverload):  # `getitem`, or control flow, whose graphs are not examined
        return True
    return any(result.alias_info is not None for result in schema_of(operator).returns)


def last_computed(graph: Graph, foldable: set[Node], values: dict[Node, torch.Tensor]) -> list[Node]:
    """For each chain of literals, return the last node that computes a value, not only creates or views a tensor."""
    read: set[Node] = set()  # by nodes that stay
    chosen: list[Node] = []
    for node in reversed(graph.nodes):
        stays = node not in values or node in read
        if stays and node in foldable and not is_view(node) and base_name(torch_operator(node.target)) not in MADE:
            chosen.append(node)
        elif stays:
            read.update(node.all_input_nodes)
    return chosen[::-1]
