"""Copies of graph modules and exported programs that share only tensors."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, Target
from torch.fx.traceback import NodeSource

from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.programs import Verifier, copy_calling_convention, decompose_program

MapTarget = Callable[[Target], Target]


def attribute_of(module: torch.nn.Module, target: str) -> Any:
    found: Any = module
    for name in target.split("."):
        found = getattr(found, name)
    return found


def nested_graph_modules(module: GraphModule) -> Iterator[tuple[str, GraphModule]]:
    """Yield the graph modules that a graph refers to (branches and bodies of control flow), in graph order."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            found = attribute_of(module, node.target)
            if isinstance(found, GraphModule):
                yield node.target, found


def graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    """Yield a graph module and all nested graph modules, outermost first."""
    yield module
    for _, nested in nested_graph_modules(module):
        yield from graph_modules(nested)


def all_nodes(module: GraphModule) -> Iterator[Node]:
    for inner in graph_modules(module):
        yield from inner.graph.nodes


def functionalized(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which no operator changes its inputs; other operators stay whole."""
    # where sizes are dynamic, torch computes this operator's shapes by a function that takes fewer arguments
    torn = torch.ops.aten.std_mean.dim
    return decompose_program(program, {torn: default_decompositions()[torn]})


def output_values(module: GraphModule) -> tuple[Argument, ...]:
    values = module.graph.output_node().args[0]
    return tuple(values) if isinstance(values, (list, tuple)) else (values,)


def computes(node: Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem  # which only takes a result


def reach(nodes: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return the given nodes, and all nodes to which steps lead."""
    reached = set(nodes)
    pending = list(reached)
    while pending:
        new = set(step(pending.pop())) - reached
        reached |= new
        pending += new
    return reached


def tensor_attributes(module: GraphModule, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the attribute tensors of a graph and its nested graphs, by path from the outermost graph."""
    for node in module.graph.find_nodes(op="get_attr"):
        attribute = attribute_of(module, node.target)
        if isinstance(attribute, torch.Tensor):
            yield f"{prefix}{node.target}", attribute
    for target, nested in nested_graph_modules(module):
        yield from tensor_attributes(nested, f"{prefix}{target}.")


def oldest_ancestor(node: Node) -> NodeSource | None:
    """Return the node of the exported program from which torch recorded that a node was made."""
    oldest: NodeSource | None = None
    ancestors: Sequence[NodeSource] = node.meta.get("from_node") or ()
    while ancestors:
        oldest = ancestors[-1]
        ancestors = oldest.from_node
    return oldest


def count_operations(module: GraphModule) -> int:
    return sum(map(computes, all_nodes(module)))


def copy_graph_module(module: GraphModule, map_target: MapTarget = lambda target: target) -> GraphModule:
    """Return a copy with its own graphs, nodes and metadata dictionaries; attributes that are no graphs are shared."""
    copied = GraphModule(*copy_graph(module, map_target))
    copied.meta.update(module.meta)
    return copied


def copy_node(graph: Graph, node: Node, copies: Mapping[Node, Node]) -> Node:
    copied = graph.node_copy(node, copies.__getitem__)
    # Signatures refer to placeholders by name. torch renames the copy of a placeholder with the name of a Python
    # built-in, such as a parameter called `input`.
    if node.op == "placeholder":
        keep_name(copied, node)
    return copied


def keep_name(copied: Node, node: Node) -> None:
    if copied.name != node.name:  # only if needed: torch updates its tables of names
        copied.name = node.name


def copy_graph(module: GraphModule, map_target: MapTarget = lambda target: target) -> tuple[dict[str, object], Graph]:
    attributes: dict[str, object] = {}
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in module.graph.nodes:
        copied = copy_node(graph, node, copies)
        keep_name(copied, node)  # of all nodes: the signature refers to outputs by name too
        if node.op == "call_function":
            copied.target = map_target(node.target)
        elif node.op == "get_attr" and node.target not in attributes:
            found = attribute_of(module, node.target)
            nested = isinstance(found, GraphModule)
            attributes[node.target] = copy_graph_module(found, map_target) if nested else found
        copies[node] = copied
    copy_calling_convention(module.graph, graph)
    return attributes, graph


def rebuild_program(
    program: ExportedProgram,
    root: GraphModule | dict[str, object],
    graph: Graph,
    *,
    signature: ExportGraphSignature | None = None,
    state_dict: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    call_graph: list[ModuleCallEntry] | None = None,
    verifier: type[Verifier] | None = None,
) -> ExportedProgram:
    rebuilt = ExportedProgram(
        root=root,  # a dictionary saves torch making a module of the attributes twice
        graph=graph,
        graph_signature=program.graph_signature if signature is None else signature,
        state_dict=dict(program.state_dict if state_dict is None else state_dict),
        range_constraints=dict(program.range_constraints),
        module_call_graph=program.module_call_graph if call_graph is None else call_graph,
        example_inputs=program.example_inputs,
        constants=dict(program.constants if constants is None else constants),
        verifiers=program.verifiers if verifier is None else [verifier],
    )
    rebuilt.graph_module.meta.update(program.graph_module.meta)
    return rebuilt


def copy_program(
    program: ExportedProgram, map_target: MapTarget = lambda target: target, verifier: type[Verifier] | None = None
) -> ExportedProgram:
    return rebuild_program(
        program,
        *copy_graph(program.graph_module, map_target),
        signature=copy_signature(program.graph_signature),
        call_graph=copy.deepcopy(program.module_call_graph),
        verifier=verifier,
    )


def copy_signature(signature: ExportGraphSignature) -> ExportGraphSignature:
    return ExportGraphSignature(
        [replace(spec, arg=copy.copy(spec.arg)) for spec in signature.input_specs],
        [replace(spec, arg=copy.copy(spec.arg)) for spec in signature.output_specs],
    )


def flat_signature(inputs: int, results: int) -> ModuleCallSignature:
    in_spec = tensors.tree_flatten(((0,) * inputs, {}))[1]
    return ModuleCallSignature([], [], in_spec, tensors.tree_flatten((0,) * results)[1])
