"""One partition as a program of its own: with the owner's names and weights, and in the form that a backend sees."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

from hatch_lower.exir.backend.partitioner import DELEGATION_TAG
from hatch_lower.exir.dialects.edge.verify import EdgeVerifier
from hatch_lower.exir.graph.state import CONSTANT_KINDS, constant_of, constant_specs, stand_ins
from hatch_lower.exir.graph.surgery import attribute_of, flat_signature
from hatch_lower.exir.lowering.partition import Partition
from hatch_lower.runtime.torch_private.programs import Verifier
from hatch_lower.runtime.torch_private.symbols import ValueRanges

MUTATIONS = {InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION, InputKind.BUFFER: OutputKind.BUFFER_MUTATION}
CONSTANT_ORDER = {kind: position for position, kind in enumerate(CONSTANT_KINDS)}


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """A partition as a backend sees it: numbered from 0, without names, positions or sources of the model."""

    program: ExportedProgram  # constants are `c0`, …, inputs `x0`, …, operations `n0`, …; debug handles count from 1
    handles: tuple[int, ...]  # the owner's debug handle of local handle `i + 1`


def argument_of(node: Node) -> ArgumentSpec:
    value = node.meta["val"]
    if isinstance(value, torch.SymBool):
        return SymBoolArgument(node.name)
    if isinstance(value, torch.SymFloat):
        return SymFloatArgument(node.name)
    if isinstance(value, (int, torch.SymInt)):
        return SymIntArgument(node.name)
    return TensorArgument(node.name)


def extract(owner: ExportedProgram, partition: Partition) -> ExportedProgram:
    """Return a partition as a program that shares the owner's tensors."""
    # its inputs are the owned parameters, buffers and lifted constants, then the values from outside; its outputs are
    # the new values of owned buffers, then the values that the outside uses
    specs = {spec.arg.name: spec for spec in constant_specs(owner)}
    owned = sorted(partition.owned, key=lambda node: CONSTANT_ORDER[specs[node.name].kind])
    graph = Graph()
    copies: dict[Node, Node] = {}
    attributes: dict[str, object] = {}
    input_specs: list[InputSpec] = []
    for node in owned:
        copies[node] = copy_placeholder(graph, node)
        spec = specs[node.name]
        input_specs.append(InputSpec(spec.kind, TensorArgument(copies[node].name), spec.target, spec.persistent))
    for node in partition.inputs:
        copies[node] = copy_placeholder(graph, node)
        input_specs.append(InputSpec(InputKind.USER_INPUT, argument_of(copies[node]), None))
    for node in partition.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta.pop(DELEGATION_TAG, None)
        if node.op == "get_attr":
            attributes[str(node.target)] = attribute_of(partition.module, str(node.target))
    output_specs = [
        OutputSpec(MUTATIONS[specs[buffer.name].kind], TensorArgument(copies[value].name), specs[buffer.name].target)
        for buffer, value in partition.mutations
    ]
    output_specs += [OutputSpec(OutputKind.USER_OUTPUT, argument_of(copies[node]), None) for node in partition.outputs]
    values = [copies[value] for _, value in partition.mutations] + [copies[node] for node in partition.outputs]
    graph.output(tuple(values)).meta["val"] = tuple(value.meta["val"] for value in values)
    return share_constants(attributes, graph, ExportGraphSignature(input_specs, output_specs), owner)


def copy_placeholder(graph: Graph, node: Node) -> Node:
    placeholder = graph.placeholder(node.name)
    placeholder.meta = {key: value for key, value in node.meta.items() if key != DELEGATION_TAG}
    return placeholder


def share_constants(
    attributes: dict[str, object], graph: Graph, signature: ExportGraphSignature, owner: ExportedProgram
) -> ExportedProgram:
    """Return a program that shares its owner's constants, under the same names."""
    specs = [spec for spec in signature.input_specs if spec.kind in CONSTANT_KINDS]
    tensors = {str(spec.target): constant_of(owner, spec) for spec in specs}
    return make_program(attributes, graph, signature, tensors, owner.state_dict.keys(), owner.range_constraints)


def make_program(
    attributes: dict[str, object],
    graph: Graph,
    signature: ExportGraphSignature,
    tensors: Mapping[str, torch.Tensor],
    in_state: Collection[str],
    ranges: dict[sympy.Symbol, ValueRanges[sympy.Expr]],
    verifier: type[Verifier] = EdgeVerifier,
) -> ExportedProgram:
    users = sum(spec.kind is InputKind.USER_INPUT for spec in signature.input_specs)
    results = sum(spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs)
    return ExportedProgram(
        root=attributes,
        graph=graph,
        graph_signature=signature,
        state_dict={name: tensor for name, tensor in tensors.items() if name in in_state},
        range_constraints=ranges,
        module_call_graph=[ModuleCallEntry("", flat_signature(users, results))],
        constants={name: tensor for name, tensor in tensors.items() if name not in in_state},
        verifiers=[verifier],
    )


def localize_program(program: ExportedProgram, *, weight_free: bool) -> LocalProgram:
    """Return a partition in the form that a backend sees: with the weights, or stand-ins of their layout."""
    # an additional operator upstream must not change a partition's form, and thereby the key of its result
    handles: dict[int, int] = {}
    specs = constant_specs(program)
    names = {spec.arg.name: f"c{index}" for index, spec in enumerate(specs)}
    attributes, graph, renamed = localize_graph(program.graph_module, dict(names), handles)
    weights = [constant_of(program, spec) for spec in specs]
    tensors: dict[str, torch.Tensor] = {}
    targets: dict[str | None, str] = {}
    for spec, tensor in zip(specs, stand_ins(weights) if weight_free else weights, strict=True):
        name = names[spec.arg.name]
        targets.setdefault(spec.target, name)
        if spec.kind is InputKind.PARAMETER and not isinstance(tensor, torch.nn.Parameter):
            tensor = torch.nn.Parameter(tensor, requires_grad=False)  # torch refuses other tensors as parameters
        tensors[name] = tensor
    in_state = {names[spec.arg.name] for spec in specs if spec.target in program.state_dict}
    signature = ExportGraphSignature(
        [
            InputSpec(spec.kind, rename_argument(spec.arg, renamed), names.get(spec.arg.name), spec.persistent)
            for spec in program.graph_signature.input_specs
        ],
        [
            OutputSpec(spec.kind, rename_argument(spec.arg, renamed), targets.get(spec.target))
            for spec in program.graph_signature.output_specs
        ],
    )
    local = make_program(attributes, graph, signature, tensors, in_state, program.range_constraints)
    return LocalProgram(local, tuple(handles))


def rename_argument(argument: ArgumentSpec, renamed: dict[str, str]) -> ArgumentSpec:
    return argument if isinstance(argument, ConstantArgument) else replace(argument, name=renamed[argument.name])


def localize_graph(
    module: GraphModule, names: dict[str, str], handles: dict[int, int]
) -> tuple[dict[str, object], Graph, dict[str, str]]:
    """Return the attributes and the graph of a copy under local names, and the local name of each node."""
    # `names`: known local names of placeholders; `handles`: owner's handle to local handle; both are extended
    graph = Graph()
    copies: dict[Node, Node] = {}
    attributes: dict[str, object] = {}
    renamed: dict[str, str] = {}
    inputs = operations = 0
    for node in module.graph.nodes:
        if node.op == "output":
            copied = graph.output(torch.fx.map_arg(node.args[0], copies.__getitem__))
        elif node.op == "placeholder":
            if node.name not in names:
                names[node.name], inputs = f"x{inputs}", inputs + 1
            copied = graph.placeholder(names[node.name])
        elif node.op == "get_attr":
            target = f"g{len(attributes)}"
            found = attribute_of(module, node.target)
            if isinstance(found, GraphModule):
                found = GraphModule(*localize_graph(found, {}, handles)[:2])
            attributes[target] = found
            copied = graph.get_attr(target)
            # backends written for ExecuTorch read the handle of every node but inputs and outputs
            for user in node.users:
                if "debug_handle" in user.meta:
                    copied.meta["debug_handle"] = handles.setdefault(user.meta["debug_handle"], len(handles) + 1)
                    break
        else:
            args = torch.fx.map_arg(node.args, copies.__getitem__)
            kwargs = torch.fx.map_arg(node.kwargs, copies.__getitem__)
            copied = graph.create_node("call_function", node.target, args, kwargs, name=f"n{operations}")
            operations += 1
            copied.meta["debug_handle"] = handles.setdefault(node.meta["debug_handle"], len(handles) + 1)
        if "val" in node.meta:  # `val` only: names and source lines of the model are in no key
            copied.meta["val"] = node.meta["val"]
        copies[node] = copied
        renamed[node.name] = copied.name
    return attributes, graph, renamed
