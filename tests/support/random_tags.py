"""Random partitions of graphs, and an oracle that judges them.

The oracle shares no code with the lowering: it closes the relation "needs the result of" over whole partitions by brute
force.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from random import Random

from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

Tags = dict[tuple[int, str], str]
"""Number of the graph in `graphs_of`, and name of a node, to its tag."""


def graphs_of(module: GraphModule) -> Iterator[GraphModule]:
    """Yield a graph module and those nested in it, each once, in graph order."""
    yield module
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(nested := getattr(module, node.target), GraphModule):
            yield from graphs_of(nested)


def producer_of(node: Node) -> Node:
    """Return the operation of which a node takes a result, or the node itself."""
    while node.target is getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node


def draw_tags(module: GraphModule, random: Random) -> Tags:
    """Tag operations at random: scattered, in runs, or all; a result always with its operation."""
    tags: Tags = {}
    for number, each in enumerate(graphs_of(module)):
        style = random.choice(["scattered", "runs", "runs", "all", "none" if number else "runs"])
        names = [f"part_{index}" for index in range(random.randint(1, 4))]
        current: str | None = random.choice(names)
        for node in each.graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is getitem:
                tag = tags.get((number, producer_of(node).name))
            elif style == "none":
                tag = None
            else:
                if style == "scattered" or (style == "runs" and random.random() < 0.3):
                    current = random.choice([*names, None])
                tag = current
            if tag is not None:
                tags[number, node.name] = tag
    return tags


def tag_constants(program: ExportedProgram, tags: Tags, random: Random) -> Tags:
    """Tag most of the constants that tagged operations use, at random by one of their users."""
    found: Tags = {}
    users = set(program.graph_signature.user_inputs)
    for node in program.graph.find_nodes(op="placeholder"):
        known = [tags[0, user.name] for user in node.users if (0, user.name) in tags]
        if node.name not in users and known and random.random() < 0.85:
            found[0, node.name] = random.choice(known)
    return found


@dataclass(slots=True)
class Faults:
    """What is wrong with tags: partitions that need their own results, operations split from their results."""

    circles: set[tuple[int, str]] = field(default_factory=set)
    split: set[tuple[int, str]] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.circles or self.split)


def find_faults(module: GraphModule, tags: Mapping[tuple[int, str], str]) -> Faults:
    """Return what is wrong with tags, by brute force over each graph that is not inside of a partition."""
    faults = Faults()
    for number, each in enumerate_outside(module, tags):
        nodes = [node for node in each.graph.nodes if node.op == "call_function"]
        units = {node: tags.get((number, node.name), f"={node.name}") for node in nodes}
        for node in nodes:
            if node.target is getitem and units[node].strip("=") != units[node.args[0]].strip("="):
                tag = tags.get((number, node.name)), tags.get((number, node.args[0].name))
                if tag != (None, None):
                    faults.split |= {(number, one) for one in tag if one is not None}
        needs = {(units[node], units[source]) for node in nodes for source in node.all_input_nodes if source in units}
        closed = {(user, source) for user, source in needs if user != source}
        for middle, user, source in itertools.product(sorted(set(units.values())), repeat=3):
            if (user, middle) in closed and (middle, source) in closed:
                closed.add((user, source))
        faults.circles |= {(number, unit) for unit, source in closed if unit == source and not unit.startswith("=")}
    return faults


def enumerate_outside(module: GraphModule, tags: Mapping[tuple[int, str], str]) -> Iterator[tuple[int, GraphModule]]:
    """Yield the graphs that are not inside of a tagged operation, with their numbers in `graphs_of`."""
    numbers = {id(each): number for number, each in enumerate(graphs_of(module))}
    pending = [module]
    while pending:
        each = pending.pop()
        yield numbers[id(each)], each
        for node in each.graph.nodes:
            outside = node.op == "get_attr" and not any((numbers[id(each)], user.name) in tags for user in node.users)
            if outside and isinstance(nested := getattr(each, node.target), GraphModule):
                pending.append(nested)


def repair(module: GraphModule, tags: Tags, random: Random) -> Tags:
    """Return tags without faults: partitions in circles are cut in two, over and over."""
    tags = dict(tags)
    fresh = itertools.count()
    names = {
        (number, node.name): producer_of(node).name
        for number, each in enumerate(graphs_of(module))
        for node in each.graph.nodes
        if node.op == "call_function"
    }
    while faults := find_faults(module, tags):
        number, tag = random.choice(sorted(faults.circles | faults.split))
        members = [key for key in names if key[0] == number and tags.get(key) == tag]
        producers = list(dict.fromkeys(names[key] for key in members))
        behind = set(producers[random.randint(1, max(1, len(producers) - 1)) :])
        new = f"cut_{next(fresh)}"
        for key in members:
            if names[key] in behind:
                tags[key] = new
            elif key[1] != names[key] and tags.get((number, names[key])) != tag:
                del tags[key]
    return tags


class TagNodes(Partitioner):
    """Writes tags that were made beforehand.

    Args:
        tags: of nodes of all graphs.
        backend_id: the backend.
        declared: which tags the result declares; all, if it is not given.
    """

    def __init__(self, tags: Mapping[tuple[int, str], str], backend_id: str, declared: Sequence[str] | None = None):
        super().__init__()
        self.tags = dict(tags)
        self.backend = DelegationSpec(backend_id, [CompileSpec("level", b"1")])
        self.declared = sorted(set(tags.values())) if declared is None else declared

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Write the tags."""
        for number, each in enumerate(graphs_of(exported_program.graph_module)):
            for node in each.graph.nodes:
                if (number, node.name) in self.tags:
                    node.meta["delegation_tag"] = self.tags[number, node.name]
        return PartitionResult(exported_program, dict.fromkeys(self.declared, self.backend))
