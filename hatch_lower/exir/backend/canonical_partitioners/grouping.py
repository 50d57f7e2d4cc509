"""Grouping of operations into partitions, in linear time and never circular.

Each operation gets a level, counted from the end of the graph, that grows only where a path passes from a taken
operation to an operation that is not taken. Taken operations of one level form a partition. A path that leaves a
partition either passes through an operation that is not taken, or enters a partition of a lower level; both lead to
lower levels only, so no two partitions need each other. No division into fewer partitions exists: along the path that
gives an operation its level, each level must be a partition of its own. Counting from the end puts an operation that
could be in several partitions into the last possible partition, as torch's partitioner does.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sympy.utilities.iterables import connected_components, strongly_connected_components
from torch.fx import Graph, Node


@dataclass(frozen=True, slots=True)
class Grouping:
    partitions: tuple[tuple[Node, ...], ...]  # nodes in graph order; each needs results of earlier partitions only
    given_up: dict[Node, str] = field(default_factory=dict)  # members of groups that were given up, to the reason


def group_nodes(
    graph: Graph,
    supports: Callable[[Node], bool],
    groups: Sequence[Collection[Node]] = (),
    leaves: Iterable[Node] = (),
    *,
    connected: bool = False,
) -> Grouping:
    """Divide the supported operations of a graph into as few partitions as possible.

    Args:
        supports: whether an operation can be taken by itself; called once for each operation. A `getitem` always
            follows the operation with several results.
        groups: operations that are taken together or, unless supported, not at all. Overlapping groups are merged.
        leaves: placeholders and graph attributes to put into the partition of their first user; other nodes are
            ignored.
        connected: split each partition into its connected parts.
    """
    # Linear in the graph's edges, except for groups that a path leaves through an unsupported operation and enters
    # again: each group that is given up costs a pass over the nodes entangled with the group.
    atoms = Atoms(graph, supports, groups)
    levels = atoms.levels()
    part_of = {node: part for node, atom in atoms.of.items() if (part := levels[atom]) is not None}
    for node in leaves:
        if node.op in ("placeholder", "get_attr"):
            user = next((user for user in node.users if user in part_of), None)
            if user is not None:
                part_of[node] = part_of[user]
    if connected:
        part_of = connected_parts(graph, part_of, atoms.entangled)
    parts: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in part_of:
            parts.setdefault(part_of[node], []).append(node)
    given_up = {
        node: atoms.reasons[atom]
        for node, atom in atoms.of.items()
        if atom in atoms.reasons and node not in part_of  # some members are taken by themselves
    }
    return Grouping(tuple(tuple(parts[number]) for number in sorted(parts)), given_up)


class Atoms:
    """Operations that cannot be separated, as numbers: each with the `getitem` nodes that select its results.

    Groups are further vertices after the atoms, with edges to and from their members, so that every operation on a path
    between members is strongly connected with the group.
    """

    def __init__(self, graph: Graph, supports: Callable[[Node], bool], groups: Sequence[Collection[Node]]) -> None:
        self.of: dict[Node, int] = {}
        self.heads: list[Node] = []
        self.alone: list[bool] = []
        self.followers: list[list[int]] = []
        self.members: list[list[int]] = []
        self.entangled: list[list[Node]] = []
        self.reasons: dict[int, str] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "output", "get_attr"):
                continue
            source = node.args[0] if node.target is operator.getitem else None
            if isinstance(source, Node) and source in self.of:
                self.of[node] = self.of[source]
                continue
            self.of[node] = len(self.heads)
            self.heads.append(node)
            self.alone.append(bool(supports(node)))
            self.followers.append([])
        for node, atom in self.of.items():
            for source in node.all_input_nodes:
                before = self.of.get(source, atom)
                if before != atom:
                    self.followers[before].append(atom)
        self.taken = list(self.alone)
        self._add_groups(groups)

    def _add_groups(self, groups: Sequence[Collection[Node]]) -> None:
        listed = {node for group in groups for node in group}
        for members in merge_groups([{self.of[node] for node in group if node in self.of} for group in groups]):
            # a `getitem` that is listed without its operation would include the operation
            headless = [self.heads[atom] for atom in members if not self.alone[atom] and self.heads[atom] not in listed]
            if headless:
                reason = f"its group holds a result of `{headless[0].name}` without the operation"
                self.reasons.update(dict.fromkeys(members, reason))
                continue
            vertex = len(self.followers)
            self.followers.append(members)
            self.members.append(members)
            for atom in members:
                self.taken[atom] = True
                self.followers[atom].append(vertex)

    def settle(self) -> Iterator[list[int]]:
        """Decide which groups are taken; yield units in topological order. Atoms of entangled groups are one unit."""
        count = len(self.heads)
        if not self.members:  # no groups: the graph's own order is topological
            yield from ([atom] for atom in range(count))
            return
        pending = [self.components(range(len(self.followers)))]
        while pending:
            unit = next(pending[-1], None)
            if unit is None:
                pending.pop()
                continue
            group = self.misfit(unit) if len(unit) > 1 else None
            if group is not None:
                pending.append(self.components([vertex for vertex in unit if vertex != group]))
            elif unit[0] < count:
                yield [vertex for vertex in unit if vertex < count]

    def components(self, vertices: Iterable[int]) -> Iterator[list[int]]:
        """Return the strongly connected components among `vertices` in topological order."""
        inside = dict.fromkeys(vertices)
        edges = [(vertex, follower) for vertex in inside for follower in self.followers[vertex] if follower in inside]
        return map(sorted, reversed(strongly_connected_components((inside, edges))))

    def misfit(self, unit: Sequence[int]) -> int | None:
        """Give up a group that prevents taking a strongly connected unit whole; return the group, or `None`."""
        # A unit with an atom that is not taken contains a circle through the atom. The group is from a circle with as
        # few groups as possible, so that a group is given up for its own circle before a circle through other groups.
        count = len(self.heads)
        outside = next((vertex for vertex in unit if vertex < count and not self.taken[vertex]), None)
        if outside is None:
            return None
        path = self.circle(outside, set(unit))
        group = max(vertex for vertex in path if vertex >= count)
        place = path.index(group)
        way = [vertex for vertex in path[place + 1 :] + path[:place] if vertex < count]
        proof = " → ".join(f"`{self.heads[vertex].name}`" for vertex in way)
        self.give_up(group, f"its group cannot run as one call: a path leaves it and comes back, {proof}")
        return group

    def give_up(self, group: int, reason: str) -> None:
        for atom in self.members[group - len(self.heads)]:
            self.taken[atom] = self.alone[atom]
            self.reasons[atom] = reason
        self.followers[group] = []

    def circle(self, start: int, inside: set[int]) -> list[int]:
        """Return a circle from `start` within `inside` that passes through as few groups as possible."""
        count = len(self.heads)
        before: dict[int, int] = {}
        cost = {start: 0}
        queue = deque([(0, start)])  # steps cost 0 or 1, so a double-ended queue stays sorted
        while queue:
            spent, vertex = queue.popleft()
            if spent > cost[vertex]:
                continue
            step = int(vertex >= count)
            for follower in self.followers[vertex]:
                if follower == start:
                    path = [vertex]
                    while path[-1] != start:
                        path.append(before[path[-1]])
                    return path[::-1]
                if follower in inside and spent + step < cost.get(follower, len(self.followers) + 1):
                    cost[follower] = spent + step
                    before[follower] = vertex
                    if step:
                        queue.append((spent + step, follower))
                    else:
                        queue.appendleft((spent, follower))
        raise AssertionError("a strongly connected component without a circle")

    def levels(self) -> list[int | None]:
        """Return the number of each atom's partition, in running order; `None` for an atom that is not taken."""
        # the module's docstring proves that the levels are partitions, and that fewer are impossible
        count = len(self.heads)
        reached = [-1] * count  # the highest level, counted from the end, at or after each atom
        levels: list[int | None] = [None] * count
        for unit in reversed(list(self.settle())):
            if len(unit) > 1:
                self.entangled.append([self.heads[atom] for atom in unit])
            taken = self.taken[unit[0]]
            level = 0 if taken else -1
            for atom in unit:
                for follower in self.followers[atom]:
                    if follower < count:
                        level = max(level, reached[follower] + (taken and not self.taken[follower]))
            for atom in unit:
                reached[atom] = level
                levels[atom] = level if taken else None
        last = max(reached, default=-1)
        return [None if level is None else last - level for level in levels]


def merge_groups(groups: Iterable[set[int]]) -> list[list[int]]:
    listed = [members for members in groups if members]
    owner: dict[int, int] = {}
    shared = [(owner.setdefault(atom, number), number) for number, members in enumerate(listed) for atom in members]
    together = connected_components((range(len(listed)), shared))
    return [sorted({atom for number in numbers for atom in listed[number]}) for numbers in together]


def connected_parts(graph: Graph, part_of: dict[Node, int], together: Sequence[Sequence[Node]]) -> dict[Node, int]:
    """Return partitions split into their connected parts; nodes of a list in `together` count as connected."""
    edges = [
        (node, source)
        for node, part in part_of.items()
        for source in node.all_input_nodes
        if part_of.get(source) == part
    ]
    edges += [(nodes[0], node) for nodes in together for node in nodes[1:]]
    position = {node: number for number, node in enumerate(graph.nodes)}
    # by partition first: the parts must still be able to run in order
    parts = sorted(
        connected_components((list(part_of), edges)),
        key=lambda nodes: (part_of[nodes[0]], min(map(position.__getitem__, nodes))),
    )
    return {node: number for number, nodes in enumerate(parts) for node in nodes}
