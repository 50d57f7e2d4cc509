"""Extraction of nodes into a submodule, and the order of a submodule's inputs and outputs.

Backends fuse nodes with these functions. `to_backend` does not: `splice` replaces all partitions in one pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
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
from torch.fx import Graph, GraphModule, Node

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG
from hatch_lower.exir.graph.state import constant_placeholders, output_pairs
from hatch_lower.exir.graph.surgery import attribute_of, output_values
from hatch_lower.exir.lowering.extract import argument_of, share_constants

FORGOTTEN = ("nn_module_stack", "source_fn_stack")


class OutputCountError(PartitionError, RuntimeError):
    """A `RuntimeError`, as in ExecuTorch."""


def create_submodule_from_nodes(
    gm: GraphModule, node_list: Iterable[Node], tag: str, skip_legalize_graph: bool = False
) -> tuple[GraphModule, Node]:
    """Move nodes of a graph into a module of their own, `fused_<tag>`, in place.

    The module takes the values from outside in order of their first use and returns a flat list: a node with several
    results is opened to its `getitem` nodes. In the caller each result is a `getitem` of the returned `call_module`
    node, and the graph stays in topological order.

    Args:
        node_list: operations of the graph, in any order.
        skip_legalize_graph: do not compile the caller's code again, because more changes follow.

    Raises:
        PartitionError: if a path leaves the nodes and comes back, or a node with several results is used whole outside.
    """
    nodes = in_graph_order(gm.graph, node_list, tag)
    members = set(nodes)
    inputs = list(dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in members))
    outputs = [node for node in nodes if any(user not in members for user in node.users)]
    require_openable(outputs, members, tag)
    place = make_room(nodes, members, tag)
    module, results = build_submodule(gm, nodes, inputs, outputs)
    name = f"fused_{tag}"
    gm.add_submodule(name, module)
    with gm.graph.inserting_before(place):
        call = gm.graph.call_module(name, tuple(inputs))
    call.meta["val"] = [result.meta.get("val") for result in results]
    replace_outputs(call, outputs, members)
    for node in reversed(nodes):
        gm.graph.erase_node(node)
    if not skip_legalize_graph:
        gm.recompile()
    return module, call


def in_graph_order(graph: Graph, node_list: Iterable[Node], tag: str) -> list[Node]:
    nodes = sorted(set(node_list))
    if not nodes or any(node.graph is not graph or node.op in ("placeholder", "output") for node in nodes):
        raise PartitionError(
            "a submodule is made of operations of the graph that calls it",
            where=f"tag `{tag}`",
            found=", ".join(f"`{node.name}`" for node in nodes) or "no nodes",
            hint="pass operations of `gm.graph`",
        )
    return nodes


def make_room(nodes: Sequence[Node], members: set[Node], tag: str) -> Node:
    """Move nodes that need results of `nodes` behind all inputs of `nodes`; return the node to call before."""
    # linear in the number of nodes from the first to the last
    came_from: dict[Node, Node] = {}
    later: list[Node] = []
    node = nodes[0]
    last = nodes[-1]
    while True:
        if node in members:
            source = next((needed for needed in node.all_input_nodes if needed in came_from), None)
            if source is not None:
                raise circle(node, source, came_from, tag)
        else:
            source = next((needed for needed in node.all_input_nodes if needed in came_from or needed in members), None)
            if source is not None:
                came_from[node] = source
                later.append(node)
        if node is last:
            break
        node = node.next
    place = last.next
    for node in later:
        place.prepend(node)
    return later[0] if later else place


def circle(node: Node, source: Node, came_from: dict[Node, Node], tag: str) -> PartitionError:
    path = [node, source]
    while path[-1] in came_from:
        path.append(came_from[path[-1]])
    return PartitionError(
        f"the nodes of `{tag}` cannot run as one call: a path leaves them and comes back",
        where=f"tag `{tag}`",
        found=" → ".join(f"`{step.name}`" for step in reversed(path)),
        hint="take the nodes on the path too, or split the group",
    )


def build_submodule(
    gm: GraphModule, nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]
) -> tuple[GraphModule, list[Node]]:
    graph = Graph()
    copies: dict[Node, Node] = {}
    attributes: dict[str, object] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op in ("get_attr", "call_module"):
            attributes[str(node.target)] = attribute_of(gm, str(node.target))
    results = [open_result(copies[node], index) for node in outputs for index in range(result_count(node))]
    graph.output(results)
    return GraphModule(attributes, graph), results


def has_results(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (list, tuple))


def result_count(node: Node) -> int:
    return len(node.meta["val"]) if has_results(node) else 1


def open_result(node: Node, index: int) -> Node:
    if not has_results(node):
        return node
    for user in node.users:
        if user.target is getitem and user.args[1] == index:
            return user
    item = node.graph.call_function(getitem, (node, index))
    item.meta = {**node.meta, "val": node.meta["val"][index]}
    return item


def require_openable(outputs: Sequence[Node], members: set[Node], tag: str) -> None:
    for node in outputs:
        for user in node.users if has_results(node) else ():
            if user not in members and (user.target is not getitem or not isinstance(user.args[1], int)):
                raise PartitionError(
                    f"`{user.name}` uses all results of `{node.name}` as one value",
                    where=f"tag `{tag}`",
                    hint="take both, or neither",
                )


def replace_outputs(call: Node, outputs: Sequence[Node], members: set[Node]) -> None:
    first, before = 0, call
    for node in outputs:
        outside = [user for user in node.users if user not in members]
        if has_results(node):
            for user in outside:
                user.args = (call, first + int(str(user.args[1])) % result_count(node))
        else:
            with call.graph.inserting_after(before):
                before = call.graph.call_function(getitem, (call, first))
            before.meta = {key: value for key, value in node.meta.items() if key not in FORGOTTEN}
            for user in outside:
                user.replace_input_with(node, before)
        first += result_count(node)


def arrange_graph_placeholders(gm: GraphModule, owning_program: ExportedProgram, tag: str = "") -> GraphModule:
    """Move the placeholders of a submodule so that owned parameters come first, then owned buffers, then the rest.

    Placeholders have the names that they have in the owner; a constant is owned if it carries `tag` there.
    """
    order = (InputKind.PARAMETER, InputKind.BUFFER)
    owned = owned_specs(owning_program, tag)
    ranks = {node.name: order.index(spec.kind) for node, spec in owned.items() if spec.kind in order}
    first = next(node for node in gm.graph.nodes if node.op != "placeholder")
    for node in sorted(gm.graph.find_nodes(op="placeholder"), key=lambda node: ranks.get(node.name, len(order))):
        first.prepend(node)
    gm.recompile()
    return gm


WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def arrange_graph_outputs(gm: GraphModule, output_specs: list[OutputSpec], call_module_node: Node) -> GraphModule:
    """Move the outputs of a submodule that update buffers or inputs before other outputs.

    Their specifications are moved with them, and so are the `getitem` nodes of its call in the owner.

    Raises:
        RuntimeError: as `PartitionError`, if the numbers of outputs and specifications differ.
    """
    values = output_values(gm)
    if len(values) != len(output_specs):
        raise OutputCountError(
            "a submodule's outputs and their specifications differ in number",
            where=f"`{call_module_node.target}`",
            found=f"{len(values)} outputs, {len(output_specs)} specifications",
        )
    order = sorted(range(len(values)), key=lambda index: output_specs[index].kind not in WRITTEN)
    gm.graph.output_node().args = ([values[index] for index in order],)
    output_specs[:] = [output_specs[index] for index in order]
    moved = {before: after for after, before in enumerate(order)}
    for user in list(call_module_node.users):
        if user.target is getitem:
            user.args = (call_module_node, moved[int(str(user.args[1]))])
    given = call_module_node.meta.get("val")
    if isinstance(given, (list, tuple)):
        call_module_node.meta["val"] = [given[index] for index in order]
    gm.recompile()
    return gm


def create_exported_program_from_submodule(
    submodule: GraphModule, owning_program: ExportedProgram, tag: str, call_module_node: Node, is_submodule: bool
) -> tuple[ExportedProgram, dict[str, InputSpec], dict[str, OutputSpec]]:
    """Return a submodule as a program that shares the owner's tensors, and the specifications that the owner can drop.

    Its inputs are the owned parameters, then the owned buffers, then everything else; its outputs are the new values of
    owned buffers, then other outputs. The submodule and the `getitem` nodes of its call are put into that order; the
    rest of the owner stays unchanged.

    Args:
        submodule: from `create_submodule_from_nodes`; its graph belongs to the result.
        owning_program: the program whose graph calls the submodule. A constant is owned if its placeholder there
            carries `tag`.
        is_submodule: whether the call is in a branch or body of control flow, where no constant is owned.

    Returns:
        The program; the owner's input specifications of owned constants without other users, by placeholder; its
        output specifications of the new values of owned buffers by the name of the value.

    Raises:
        PartitionError: if a new value of an owned buffer has another user in the owner.
    """
    arrange_graph_placeholders(submodule, owning_program, tag)
    owned = {} if is_submodule or not tag else owned_specs(owning_program, tag)
    by_name = {node.name: spec for node, spec in owned.items()}
    buffers = {str(spec.target) for spec in owned.values() if spec.kind is InputKind.BUFFER}
    input_specs = [
        InputSpec(spec.kind, TensorArgument(node.name), spec.target, spec.persistent)
        if (spec := by_name.get(node.name)) is not None
        else InputSpec(InputKind.USER_INPUT, argument_of(node), None)
        for node in submodule.graph.find_nodes(op="placeholder")
    ]
    consumed: dict[str, OutputSpec] = {}
    output_specs: list[OutputSpec] = []
    for index, value in enumerate(output_values(submodule)):
        if not isinstance(value, Node):
            raise PartitionError(
                "a submodule returns a value that none of its operations computes",
                where=f"tag `{tag}`, output {index}",
                found=repr(value),
                hint="let the calling graph return literals",
            )
        found = dict(mutations(owning_program, call_module_node, index, buffers))
        for result, mutation in found.items():
            consumed[result] = mutation
            output_specs.append(OutputSpec(mutation.kind, TensorArgument(value.name), mutation.target))
        if not found:
            output_specs.append(OutputSpec(OutputKind.USER_OUTPUT, argument_of(value), None))
    arrange_graph_outputs(submodule, output_specs, call_module_node)
    attributes = {
        str(node.target): attribute_of(submodule, node.target) for node in submodule.graph.find_nodes(op="get_attr")
    }
    signature = ExportGraphSignature(input_specs, output_specs)
    program = share_constants(attributes, submodule.graph, signature, owning_program)
    unused = {node.name: spec for node, spec in owned.items() if set(node.users) <= {call_module_node}}
    return program, unused, consumed


def owned_specs(program: ExportedProgram, tag: str) -> dict[Node, InputSpec]:
    """Return the specifications of the constants whose placeholders carry a tag, or for an empty tag have none."""
    constants = constant_placeholders(program)
    return {node: spec for node, spec in constants.items() if node.meta.get(DELEGATION_TAG, "") == tag}


def mutations(
    program: ExportedProgram, call: Node, index: int, buffers: Collection[str]
) -> Iterator[tuple[str, OutputSpec]]:
    """Yield the name and specification of a call's result if the owner writes the result to a buffer."""
    # by place: the signature may still have the name of a node that is in the submodule now
    pairs = output_pairs(program)
    for node in call.users:
        if node.target is not getitem or node.args[1] != index:
            continue
        here = [spec for spec, value in pairs if value is node]
        changed = [spec for spec in here if spec.kind is OutputKind.BUFFER_MUTATION and spec.target in buffers]
        if changed and (len(here) > 1 or any(user.op != "output" for user in node.users)):
            raise PartitionError(
                f"the new value of the buffer `{changed[0].target}` has another use",
                where=f"call `{call.name}`",
                found=", ".join(f"`{user.name}`" for user in node.users),
                hint="leave the buffer's placeholder without a tag, so that it stays in the owner",
            )
        yield from ((node.name, spec) for spec in changed)
