"""Search for a connected pattern in a graph, in time linear in the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.fx import Graph, Node
from torch.fx.node import Argument

from hatch_lower.errors import PartitionError
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.surgery import reach
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of


def find_pattern(graph: Graph, pattern: Graph, ignore_literals: bool = False) -> list[dict[Node, Node]]:
    """Return the places of a pattern in a graph, without places that overlap an earlier place.

    A placeholder of the pattern matches any value, but the same value in all its uses; two placeholders may match the
    same value. Other nodes match a call of the same operator with the same arguments. Results that the pattern does not
    return must have no other users. Each place, in graph order, maps the pattern's operations to the matching nodes.

    Args:
        ignore_literals: let arguments of the pattern that are no nodes match any value.

    Raises:
        PartitionError: if the pattern has no operation or is not connected.
    """
    matcher = Matcher(pattern, ignore_literals)
    taken: set[Node] = set()
    places = []
    first = matcher.anchors[0]
    for node in graph.nodes:
        if node.op == first.op and node.target == first.target and node not in taken:
            match = matcher.match_at(node)
            if match is not None and taken.isdisjoint(match.values()):
                taken.update(match.values())
                places.append(match)
    return places


def pattern_places(graph: Graph, patterns: Sequence[Graph], ignore_literals: bool) -> list[list[Node]]:
    return [list(place.values()) for pattern in patterns for place in find_pattern(graph, pattern, ignore_literals)]


class Matcher:
    def __init__(self, pattern: Graph, ignore_literals: bool) -> None:
        self.ignore_literals = ignore_literals
        self.returned = set(pattern.output_node().all_input_nodes)
        self.operations = [node for node in pattern.nodes if node.op not in ("placeholder", "output")]
        sinks = [node for node in self.operations if all(user.op == "output" for user in node.users)]
        if not sinks:
            raise PartitionError(
                "a pattern has no operation", found=str(pattern), hint="give a graph with an operation"
            )
        self.anchors, self.ways = order_anchors(sinks, pattern)

    def match_at(self, node: Node) -> dict[Node, Node] | None:
        for match in self.extend({}, 0, node):
            places = {
                key: value
                for key, value in match.items()
                if isinstance(value, Node) and key.op not in ("placeholder", "get_attr")
            }
            if self.is_contained(places):
                return places
        return None

    def extend(self, match: dict[Node, Argument], number: int, node: Node) -> Iterator[dict[Node, Argument]]:
        extended = dict(match)  # a failed candidate must not affect the next candidate
        if not self.match_node(self.anchors[number], node, extended):
            return
        if number + 1 == len(self.anchors):
            yield extended
            return
        start, *way = self.ways[number + 1]
        for candidate in follow_way(extended[start], way):
            yield from self.extend(extended, number + 1, candidate)

    def match_node(self, wanted: Node, given: Argument, match: dict[Node, Argument]) -> bool:
        """Return whether a value matches a node of the pattern; extend `match` with the pair and its arguments."""
        if wanted in match:
            return same_literal(match[wanted], given)
        if wanted.op == "placeholder":
            match[wanted] = given
            return True
        if not isinstance(given, Node) or any(given is match[key] for key in match if key.op != "placeholder"):
            return False
        if wanted.op == "get_attr":
            match[wanted] = given
            return given.op in ("get_attr", "placeholder")
        if wanted.op != given.op or wanted.target != given.target:
            return False
        match[wanted] = given
        return self.match_arguments(ordered_arguments(wanted), ordered_arguments(given), match)

    def match_arguments(self, wanted: Argument, given: Argument, match: dict[Node, Argument]) -> bool:
        if isinstance(wanted, Node):
            return self.match_node(wanted, given, match)
        if isinstance(wanted, (list, tuple)) and isinstance(given, (list, tuple)):
            return len(wanted) == len(given) and all(
                self.match_arguments(one, other, match) for one, other in zip(wanted, given, strict=True)
            )
        return self.ignore_literals or same_literal(wanted, given)

    def is_contained(self, places: dict[Node, Node]) -> bool:
        inside = set(places.values())
        return all(key in self.returned or inside.issuperset(node.users) for key, node in places.items())


def order_anchors(sinks: list[Node], pattern: Graph) -> tuple[list[Node], list[list[Node]]]:
    """Return a pattern's sinks in an order in which each is connected with earlier sinks, and the connecting paths."""
    # the way to a sink leads from a node that the earlier sinks use down to it
    anchors, ways = [sinks[0]], [[sinks[0]]]
    left = sinks[1:]
    while left:
        known = reach(anchors, lambda node: node.all_input_nodes)
        found = [way for sink in left if (way := way_to_sink(sink, known)) is not None]
        if not found:
            raise PartitionError(
                "the pattern is not connected",
                found=", ".join(f"`{node.name}`" for node in (anchors[0], left[0])),
                hint="give each part as a pattern of its own",
            )
        # from an operation if possible: a placeholder may match a value with many users
        best = min(found, key=lambda way: (way[0].op == "placeholder", len(way)))
        anchors.append(best[-1])
        ways.append(best)
        left.remove(best[-1])
    return anchors, ways


def way_to_sink(sink: Node, known: set[Node]) -> list[Node] | None:
    ways, place = [[sink]], 0
    seen = {sink}
    while place < len(ways):
        for source in ways[place][0].all_input_nodes:
            if source not in seen:
                seen.add(source)
                ways.append([source, *ways[place]])
        place += 1
    reached = [way for way in ways if way[0] in known]
    return min(reached, key=lambda way: (way[0].op == "placeholder", len(way)), default=None)


def follow_way(start: Argument, way: list[Node]) -> Iterator[Node]:
    """Yield the nodes that are reached from `start` along users that call the operators of `way`."""
    if not isinstance(start, Node):
        return
    if not way:
        yield start
    else:
        for user in start.users:
            if user.op == way[0].op and user.target == way[0].target:
                yield from follow_way(user, way[1:])


def ordered_arguments(node: Node) -> list[Argument]:
    operator = torch_operator(node.target)
    if not isinstance(operator, OpOverload):
        return [*node.args, *(node.kwargs[name] for name in sorted(node.kwargs))]
    # the same form for equivalent calls: by position, by name, or with a default left out
    given = named_arguments(node)
    return [given.get(argument.name, argument.default_value) for argument in schema_of(operator).arguments]


def same_literal(one: object, other: object) -> bool:
    if isinstance(one, Node) or isinstance(other, Node):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_literal, one, other))
    return type(one) is type(other) and bool(one == other)  # 1, 1.0 and True are equal in Python
