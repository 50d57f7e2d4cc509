"""Partitions from the tags on nodes: their operations, their constants, and an order in which all can run.

The time is linear in the graph: the tagged program is read once.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument
from torch.fx import GraphModule, Node

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec
from hatch_lower.exir.graph.state import STATE_MUTATIONS, constant_of, constant_placeholders
from hatch_lower.exir.graph.surgery import attribute_of, output_values


@dataclass(slots=True, eq=False)
class Partition:
    """The nodes of a tag in a graph; the same tag in a nested graph is a separate partition."""

    module: GraphModule
    tag: str
    spec: DelegationSpec
    nodes: list[Node] = field(default_factory=list)  # its operations, in graph order
    owned: list[Node] = field(default_factory=list)  # placeholders of constants that go into the delegate
    inputs: list[Node] = field(default_factory=list)  # values from outside, in order of their first use
    outputs: list[Node] = field(default_factory=list)  # operations whose values are used outside, in graph order
    # owned buffers and the operations whose values are written back to them
    mutations: list[tuple[Node, Node]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """All partitions of a graph, and an order of its operations in which each partition is a single call."""

    partitions: tuple[Partition, ...]
    order: tuple[Node | Partition, ...]  # operations outside partitions, and partitions
    nested: Mapping[str, PartitionPlan]  # of the branches and bodies of control flow outside partitions, by attribute

    def all_partitions(self) -> Iterator[Partition]:
        yield from self.partitions
        for plan in self.nested.values():
            yield from plan.all_partitions()


def plan_partitions(
    program: ExportedProgram, tags: Mapping[str, DelegationSpec], kept: Callable[[str, torch.Tensor], bool]
) -> PartitionPlan:
    """Group tagged nodes, decide the ownership of constants, and order everything, or raise a `PartitionError`."""
    # `kept`: whether a constant must stay outside a backend's delegates, by the backend's id
    constants = frozenset(constant_placeholders(program))
    return plan_graph(program.graph_module, tags, constants, lambda member: decide_ownership(program, member, kept))


def plan_graph(
    module: GraphModule,
    tags: Mapping[str, DelegationSpec],
    constants: frozenset[Node],
    own: Callable[[Mapping[Node, Partition]], None],
) -> PartitionPlan:
    partitions = group_by_tag(module, tags, constants)
    member = {node: partition for partition in partitions for node in partition.nodes}
    order = order_operations(module, member)
    own(member)
    collect_borders(member, partitions)
    nested: dict[str, PartitionPlan] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and node not in member and node.target not in nested:
            found = attribute_of(module, node.target)
            if isinstance(found, GraphModule):
                # constants enter branches and bodies as inputs, so their partitions own no constants
                nested[node.target] = plan_graph(found, tags, frozenset(), lambda member: None)
    return PartitionPlan(tuple(each for each in order if isinstance(each, Partition)), tuple(order), nested)


def group_by_tag(
    module: GraphModule, tags: Mapping[str, DelegationSpec], constants: frozenset[Node]
) -> list[Partition]:
    found: dict[str, Partition] = {}
    for node in module.graph.nodes:
        # a graph attribute belongs to its users' partition; a tag of its own is ignored
        tag = common_tag(node) if node.op == "get_attr" else node.meta.get(DELEGATION_TAG)
        if tag is None:
            continue
        if tag not in tags:
            raise PartitionError(
                f"a node carries the tag `{tag}`, which the partitioner did not declare",
                where=f"node `{node.name}`",
                hint="return every tag in `PartitionResult.partition_tags`",
            )
        if node.op == "output" or (node.op == "placeholder" and node not in constants):
            raise PartitionError(
                f"the {'output' if node.op == 'output' else 'user input'} `{node.name}` is tagged `{tag}`",
                hint="tag operations, parameters, buffers and lifted constants only",
            )
        if node.op != "placeholder":
            require_whole(node, tag)
            found.setdefault(tag, Partition(module, tag, tags[tag])).nodes.append(node)
    return list(found.values())


def common_tag(node: Node) -> str | None:
    tags = {user.meta.get(DELEGATION_TAG) for user in node.users}
    return tags.pop() if len(tags) == 1 else None


def require_whole(node: Node, tag: str) -> None:
    # a delegate returns tensors, so a tuple of results cannot leave a partition
    if node.target is operator.getitem:
        pairs = [(node.args[0], node)]
    else:
        pairs = [(node, user) for user in node.users if user.target is operator.getitem]
    for producer, item in pairs:
        other = item if producer is node else producer
        if isinstance(other, Node) and other.op == "call_function" and other.meta.get(DELEGATION_TAG) != tag:
            raise PartitionError(
                f"the operation `{producer}` and its result `{item}` are in different partitions",
                where=f"tag `{tag}`",
                found=f"`{other.name}` has the tag `{other.meta.get(DELEGATION_TAG)}`",
                hint="give an operation with several results and all its `getitem` nodes one tag",
            )


def order_operations(module: GraphModule, member: Mapping[Node, Partition]) -> list[Node | Partition]:
    """Order operations and partitions so that each comes after its inputs, otherwise in the graph's order."""
    # a heap: the order shapes the plan's bytes, so only the graph may determine the order
    units: dict[int, Node | Partition] = {}
    unit_of: dict[Node, int] = {}
    first: dict[str, int] = {}
    for position, node in enumerate(module.graph.nodes):
        if node.op in ("placeholder", "output"):
            continue
        partition = member.get(node)
        number = position if partition is None else first.setdefault(partition.tag, position)
        unit_of[node] = number
        units[number] = node if partition is None else partition
    needs: dict[int, list[int]] = {number: [] for number in units}
    for node, number in unit_of.items():
        needs[number] += [unit_of[source] for source in node.all_input_nodes if unit_of.get(source, number) != number]
    sorter = TopologicalSorter(needs)
    try:
        sorter.prepare()
    except CycleError as error:
        raise circle_error(error.args[1][::-1], units, unit_of) from None
    ready: list[int] = []
    order: list[Node | Partition] = []
    while sorter:
        for number in sorter.get_ready():
            heapq.heappush(ready, number)
        number = heapq.heappop(ready)
        order.append(units[number])
        sorter.done(number)
    return order


def circle_error(
    circle: Sequence[int], units: Mapping[int, Node | Partition], unit_of: Mapping[Node, int]
) -> PartitionError:
    """Return the error for a circle of units, each of which needs the next."""
    edges = []
    for number, needed in pairwise(circle):
        pairs = ((node, source) for node, own in unit_of.items() if own == number for source in node.all_input_nodes)
        edges.append(next(f"`{node}` needs `{source}`" for node, source in pairs if unit_of.get(source) == needed))
    tags = sorted({unit.tag for number in circle if isinstance(unit := units[number], Partition)})
    named = ", ".join(f"`{tag}`" for tag in tags)
    return PartitionError(
        f"the partition{'s' if len(tags) > 1 else ''} {named} cannot run as one call: it needs its own result"
        if len(tags) == 1
        else f"the partitions {named} need each other's results",
        where=f"tag{'s' if len(tags) > 1 else ''} {named}",
        found="; ".join(edges),
        hint="split the partition so that no path leaves it and comes back",
    )


def decide_ownership(
    program: ExportedProgram, member: Mapping[Node, Partition], kept: Callable[[str, torch.Tensor], bool]
) -> None:
    """Give every partition the tagged constants of its operations; partitions share the memory of common constants."""
    # A buffer that the program changes is owned only by a partition that holds all its users and computes its new
    # value; otherwise the buffer stays in the program, where every user sees its changes. State that other methods see
    # stays there too, unless the backend's delegates bind their constants at load.
    nodes = {node.name: node for node in program.graph.nodes}
    new_values = {
        spec.target: nodes[spec.arg.name]
        for spec in program.graph_signature.output_specs
        if spec.kind in STATE_MUTATIONS and isinstance(spec.arg, TensorArgument)
    }
    for node, spec in constant_placeholders(program).items():
        if node.meta.get(DELEGATION_TAG) is None:
            continue
        owners = {member[user].tag: member[user] for user in node.users if user in member}
        constant = constant_of(program, spec)
        if any(kept(partition.spec.backend_id, constant) for partition in owners.values()):
            continue
        if (value := new_values.get(spec.target)) is not None:
            inside = all(user in member for user in node.users) and len(owners) == 1
            if not inside or member.get(value) is not next(iter(owners.values())):
                continue
            member[value].mutations.append((node, value))
        if node.meta.get("no_copy") and (len(owners) > 1 or any(user not in member for user in node.users)):
            raise PartitionError(
                f"the constant `{spec.target}` must not be shared and has users outside its partition",
                where=f"tag `{node.meta.get(DELEGATION_TAG)}`",
                found=", ".join(f"`{user.name}`" for user in node.users),
                hint="remove `no_copy` from its placeholder, or put all its users into one partition",
            )
        for partition in owners.values():
            partition.owned.append(node)


def collect_borders(member: Mapping[Node, Partition], partitions: list[Partition]) -> None:
    for partition in partitions:
        owned = set(partition.owned)
        written = {value for _, value in partition.mutations}
        inputs: dict[Node, None] = {}
        for node in partition.nodes:
            for source in node.all_input_nodes:
                if member.get(source) is not partition and source not in owned:
                    inputs[source] = None
            outside = [user for user in node.users if member.get(user) is not partition]
            if outside and not (node in written and only_written(partition.module, node, outside)):
                partition.outputs.append(node)
        partition.inputs = list(inputs)


def only_written(module: GraphModule, node: Node, outside: list[Node]) -> bool:
    """Return whether the program's output is the only outside user and only writes the value to a buffer."""
    is_returned = all(user.op == "output" for user in outside)
    return is_returned and sum(value is node for value in output_values(module)) == 1
