"""Moving nodes of a graph into a module that it calls, and putting inputs and outputs of such a module in order.

`to_backend` does not come through here: it replaces all partitions in one pass. Backends use these to fuse nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import getitem
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec
from torch.fx import Graph, GraphModule, Node

from hatch_lower.errors import PartitionError
from hatch_lower.exir.graph.surgery import attribute_of

FORGOTTEN = ("nn_module_stack", "source_fn_stack")


class OutputCountError(PartitionError, RuntimeError):
    """There is not one output specification for each output."""


def create_submodule_from_nodes(
    gm: GraphModule, node_list: Iterable[Node], tag: str, skip_legalize_graph: bool = False
) -> tuple[GraphModule, Node]:
    """Move nodes of a graph into a module of their own, `fused_<tag>`, in place.

    The module takes the values from outside in order of their first use and returns a flat list: a node with several
    results is opened to its `getitem` nodes. In the caller each result is a `getitem` of the call. The caller's graph
    stays in topological order; the time is linear in the nodes and what stands between the first and the last of them.

    Args:
        gm: the caller; it is changed.
        node_list: operations of its graph, in any order.
        tag: names the module.
        skip_legalize_graph: do not compile the caller's code again, because more changes follow.

    Returns:
        The module and the `call_module` node that calls it.

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
    """Return nodes in the order of their graph."""
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
    """Move nodes that need results of `nodes` behind all that `nodes` need, and return the one to call before."""
    came_from: dict[Node, Node] = {}
    later: list[Node] = []
    node = nodes[0]
    last = nodes[-1]
    while True:
        if node in members:
            source = next((each for each in node.all_input_nodes if each in came_from), None)
            if source is not None:
                raise circle(node, source, came_from, tag)
        else:
            source = next((each for each in node.all_input_nodes if each in came_from or each in members), None)
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
    """Return the error for nodes that need their own result, with the path that proves it."""
    path = [node, source]
    while path[-1] in came_from:
        path.append(came_from[path[-1]])
    return PartitionError(
        f"the nodes of `{tag}` cannot run as one call: a path leaves them and comes back",
        where=f"tag `{tag}`",
        found=" → ".join(f"`{each.name}`" for each in reversed(path)),
        hint="take the nodes between them too, or split them",
    )


def build_submodule(
    gm: GraphModule, nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]
) -> tuple[GraphModule, list[Node]]:
    """Return nodes as a module, and the nodes of its graph that it returns."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    attributes: dict[str, Any] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op in ("get_attr", "call_module"):
            attributes[str(node.target)] = attribute_of(gm, str(node.target))
    results: list[Node] = []
    for node in outputs:
        results += [open_result(copies[node], index) for index in range(result_count(node))]
    graph.output(results)
    return GraphModule(attributes, graph), results


def has_results(node: Node) -> bool:
    """Return whether a node's value is a sequence."""
    return isinstance(node.meta.get("val"), (list, tuple))


def result_count(node: Node) -> int:
    """Return how many values the caller gets for a node."""
    return len(node.meta["val"]) if has_results(node) else 1


def open_result(node: Node, index: int) -> Node:
    """Return the `getitem` of one result of a node, the one that is there or a new one, or a node with one result."""
    if not has_results(node):
        return node
    for user in node.users:
        if user.target is getitem and user.args[1] == index:
            return user
    item = node.graph.call_function(getitem, (node, index))
    item.meta = {**node.meta, "val": node.meta["val"][index]}
    return item


def require_openable(outputs: Sequence[Node], members: set[Node], tag: str) -> None:
    """Refuse nodes whose several results are used outside as one value."""
    for node in outputs:
        for user in node.users if has_results(node) else ():
            if user not in members and (user.target is not getitem or not isinstance(user.args[1], int)):
                raise PartitionError(
                    f"`{user.name}` uses all results of `{node.name}` as one value",
                    where=f"tag `{tag}`",
                    hint="take both, or neither",
                )


def replace_outputs(call: Node, outputs: Sequence[Node], members: set[Node]) -> None:
    """Give the outside users of moved nodes the results of the call."""
    first, before = 0, call
    for node in outputs:
        outside = [user for user in node.users if user not in members]
        if has_results(node):
            for user in outside:
                index = user.args[1]
                assert isinstance(index, int)
                user.args = (call, first + index % result_count(node))
        else:
            with call.graph.inserting_after(before):
                before = call.graph.call_function(getitem, (call, first))
            before.meta = {key: value for key, value in node.meta.items() if key not in FORGOTTEN}
            for user in outside:
                user.replace_input_with(node, before)
        first += result_count(node)


def arrange_graph_placeholders(gm: GraphModule, owning_program: ExportedProgram, tag: str = "") -> GraphModule:
    """Move the placeholders of a submodule so that owned parameters come first, then owned buffers, then the others.

    Args:
        gm: a submodule whose placeholders have the names that they have in the owner; it is changed.
        owning_program: the program that the submodule was taken from.
        tag: the partition's tag; a constant is owned if the owner's placeholder carries it.

    Returns:
        `gm`.
    """
    tags = {
        node.name: node.meta.get("delegation_tag", "") for node in owning_program.graph.find_nodes(op="placeholder")
    }
    ranks = {
        spec.arg.name: rank
        for rank, kind in enumerate((InputKind.PARAMETER, InputKind.BUFFER))
        for spec in owning_program.graph_signature.input_specs
        if spec.kind is kind and tags.get(spec.arg.name) == tag
    }
    placeholders = list(gm.graph.find_nodes(op="placeholder"))
    if placeholders:
        start = next(iter(gm.graph.nodes))
        for node in sorted(placeholders, key=lambda node: ranks.get(node.name, 2)):
            if node is not start:
                start.prepend(node)
            else:
                start = start.next
        gm.recompile()
    return gm


WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def arrange_graph_outputs(gm: GraphModule, output_specs: list[OutputSpec], call_module_node: Node) -> GraphModule:
    """Move the outputs of a submodule that update buffers or inputs before the others, in the caller too.

    Args:
        gm: the submodule; it is changed.
        output_specs: what each of its outputs is; they are moved with them.
        call_module_node: the call in the owner; the `getitem` nodes that use it are changed.

    Returns:
        `gm`.

    Raises:
        RuntimeError: as `PartitionError`, if there is not one specification for each output.
    """
    output = gm.graph.output_node()
    values = output.args[0]
    assert isinstance(values, (list, tuple))
    if len(values) != len(output_specs):
        raise OutputCountError(
            "a submodule's outputs and their specifications differ in number",
            where=f"`{call_module_node.target}`",
            found=f"{len(values)} outputs, {len(output_specs)} specifications",
        )
    order = sorted(range(len(values)), key=lambda index: output_specs[index].kind not in WRITTEN)
    output.args = ([values[index] for index in order],)
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
