"""A submodule of a graph as a program that owns its constants, for backends that fuse nodes by themselves.

`to_backend` does not come through here: it takes partitions out of a program without a submodule in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import getitem

from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import GraphModule, Node

from hatch_lower.errors import PartitionError
from hatch_lower.exir.graph.state import CONSTANT_KINDS, constant_of
from hatch_lower.exir.graph.surgery import attribute_of
from hatch_lower.exir.lowering.extract import argument_of, make_program
from hatch_lower.exir.lowering.submodules import arrange_graph_outputs, arrange_graph_placeholders


def create_exported_program_from_submodule(
    submodule: GraphModule, owning_program: ExportedProgram, tag: str, call_module_node: Node, is_submodule: bool
) -> tuple[ExportedProgram, dict[str, InputSpec], dict[str, OutputSpec]]:
    """Return a submodule as a program that shares the owner's tensors, and what the owner need not hold any longer.

    Its inputs are the owned parameters, then the owned buffers, then everything else; its outputs are the new values of
    owned buffers, then the others. The submodule and the `getitem` nodes of its call are put into that order; nothing
    else of the owner is changed.

    Args:
        submodule: from `create_submodule_from_nodes`; its graph belongs to the result.
        owning_program: the program whose graph calls it. A constant is owned if its placeholder there carries `tag`.
        tag: the partition's tag.
        call_module_node: the call.
        is_submodule: whether the call is in a branch or body of control flow, where nothing is owned.

    Returns:
        The program; the owner's input specifications of owned constants by placeholder, without those that others use
        too; its output specifications of the new values of owned buffers by the name of the value.

    Raises:
        PartitionError: if a new value of an owned buffer is used in the owner for something else too.
    """
    arrange_graph_placeholders(submodule, owning_program, tag)
    owned = {} if is_submodule else owned_specs(owning_program, tag)
    buffers = {str(spec.target) for spec in owned.values() if spec.kind is InputKind.BUFFER}
    input_specs = [
        InputSpec(spec.kind, TensorArgument(node.name), spec.target, spec.persistent)
        if (spec := owned.get(node.name)) is not None
        else InputSpec(InputKind.USER_INPUT, argument_of(node), None)
        for node in submodule.graph.find_nodes(op="placeholder")
    ]
    consumed: dict[str, OutputSpec] = {}
    output_specs: list[OutputSpec] = []
    values = submodule.graph.output_node().args[0]
    assert isinstance(values, (list, tuple))
    for index, value in enumerate(values):
        assert isinstance(value, Node)
        found = dict(mutations(owning_program, call_module_node, index, buffers))
        for result, mutation in found.items():
            consumed[result] = mutation
            output_specs.append(OutputSpec(mutation.kind, TensorArgument(value.name), mutation.target))
        if not found:
            output_specs.append(OutputSpec(OutputKind.USER_OUTPUT, argument_of(value), None))
    arrange_graph_outputs(submodule, output_specs, call_module_node)
    inside = {str(spec.target): spec for spec in input_specs if spec.target is not None}
    tensors = {name: constant_of(owning_program, spec) for name, spec in inside.items()}
    program = make_program(
        {str(node.target): attribute_of(submodule, node.target) for node in submodule.graph.find_nodes(op="get_attr")},
        submodule.graph,
        ExportGraphSignature(input_specs, output_specs),
        {name: tensor for name, tensor in tensors.items() if name in owning_program.state_dict},
        {name: tensor for name, tensor in tensors.items() if name not in owning_program.state_dict},
        owning_program,
    )
    return program, {name: owned[name] for name in released(owning_program, call_module_node, owned)}, consumed


def owned_specs(program: ExportedProgram, tag: str) -> dict[str, InputSpec]:
    """Return the specifications of the constants whose placeholders carry a tag, by placeholder."""
    tagged = {
        node.name for node in program.graph.find_nodes(op="placeholder") if node.meta.get("delegation_tag") == tag
    }
    specs = program.graph_signature.input_specs
    return {spec.arg.name: spec for spec in specs if spec.kind in CONSTANT_KINDS and spec.arg.name in tagged}


def mutations(
    program: ExportedProgram, call: Node, index: int, buffers: Collection[str]
) -> Iterator[tuple[str, OutputSpec]]:
    """Yield the result of a call with that index and what the owner says of it, if it is the new value of a buffer.

    Raises:
        PartitionError: if it is something else too.
    """
    returned = program.graph.output_node().args[0]
    assert isinstance(returned, (list, tuple))
    # by place: the signature may still have the name of a node that is in the submodule now
    specs = list(zip(returned, program.graph_signature.output_specs, strict=True))
    for node in call.users:
        if node.target is not getitem or node.args[1] != index:
            continue
        here = [spec for value, spec in specs if value is node]
        changed = [spec for spec in here if spec.kind is OutputKind.BUFFER_MUTATION and spec.target in buffers]
        if changed and (len(here) > 1 or any(user.op != "output" for user in node.users)):
            raise PartitionError(
                f"the new value of the buffer `{changed[0].target}` is used for something else too",
                where=f"call `{call.name}`",
                found=", ".join(f"`{user.name}`" for user in node.users),
                hint="leave the buffer's placeholder without a tag, so that it stays in the owner",
            )
        yield from ((node.name, spec) for spec in changed)


def released(program: ExportedProgram, call: Node, owned: dict[str, InputSpec]) -> list[str]:
    """Return the placeholders of owned constants that only the call uses."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    return [name for name in owned if set(nodes[name].users) <= {call}]
