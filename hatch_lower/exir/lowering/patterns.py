"""A pass that replaces a pattern of edge operators by a backend operator."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from hatch_lower.errors import EdgeError
from hatch_lower.exir.backend.canonical_partitioners.patterns import find_pattern, ordered_arguments
from hatch_lower.exir.dialects._ops import EdgeOpOverload, edge_overload
from hatch_lower.exir.dialects.backend._ops import BackendOpOverload
from hatch_lower.exir.graph.surgery import graph_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.runtime.torch_private.operators import OpOverload


class ReplacePattern(PassBase):
    """Replaces each occurrence of a pattern by a call of a backend operator, in control flow too.

    An occurrence whose inner values are used elsewhere stays.

    Args:
        op: the operator, with the arguments and results of the pattern.
        pattern: a function of the operator's arguments; by default the function bound to the operator.
        example_inputs: arguments to export the pattern with. Without example inputs the pattern must call operators as
            edge programs do: `torch.ops.aten.add.Tensor` or `ops.edge.aten.add.Tensor`.

    Raises:
        EdgeError: if there is no pattern, or the pattern calls a function that no edge program calls.
    """

    def __init__(
        self,
        op: BackendOpOverload,
        pattern: Callable[..., object] | None = None,
        example_inputs: Sequence[object] | None = None,
    ) -> None:
        super().__init__()
        function = op._equivalent_callable if pattern is None else pattern
        if function is None:
            raise EdgeError(
                f"there is no pattern that the operator {op} could replace",
                hint="bind a pattern with `bind_pattern_to_op`, or pass `pattern`",
            )
        self.op = op
        self.pattern = trace_pattern(function, example_inputs)

    def call(self, graph_module: GraphModule) -> PassResult:
        count = 0
        for module in graph_modules(graph_module):
            places = find_pattern(module.graph, self.pattern)
            replaced = sum(self.replace(module.graph, place) for place in places)
            if replaced:
                module.graph.eliminate_dead_code()
                module.recompile()
            count += replaced
        return PassResult(graph_module, count > 0)

    def replace(self, graph: Graph, place: Mapping[Node, Node]) -> bool:
        """Replace an occurrence, unless a user of a result comes before an input."""
        given = arguments_at(place)
        inputs = [given[node] for node in self.pattern.find_nodes(op="placeholder")]
        returned = self.pattern.output_node().args[0]
        single = isinstance(returned, Node)
        listed: Any = [returned] if single else returned
        results = [place[node] for node in listed if isinstance(node, Node)]
        inside = set(place.values())
        first = min(user for result in results for user in result.users if user not in inside)
        if any(isinstance(value, Node) and not value < first for value in inputs):
            return False
        with graph.inserting_before(first):
            call = graph.call_function(self.op, tuple(inputs))
            call.meta = dict(results[0].meta)  # its debug handle, sources and module path stand for all
            made = [call]
            if not single:
                call.meta["val"] = tuple(result.meta["val"] for result in results)
                made = [graph.call_function(operator.getitem, (call, index)) for index in range(len(results))]
        for result, new in zip(results, made, strict=True):
            if not single:
                new.meta = {**result.meta, "debug_handle": call.meta.get("debug_handle")}
            result.replace_all_uses_with(new, delete_user_cb=lambda user: user not in inside)
        return True


def arguments_at(place: Mapping[Node, Node]) -> dict[Node, Argument]:
    # read at the replacement: since the search, an argument may have become the call that replaced another place
    given: dict[Node, Argument] = {}

    def collect(wanted: Argument, found: Any) -> None:
        if isinstance(wanted, Node):
            given.setdefault(wanted, found)
        elif isinstance(wanted, (list, tuple)):
            for one, other in zip(wanted, found, strict=True):
                collect(one, other)

    for wanted, found in place.items():
        collect(ordered_arguments(wanted), ordered_arguments(found))
    return given


def trace_pattern(pattern: Callable[..., object], example_inputs: Sequence[object] | None = None) -> Graph:
    """Return a pattern as a graph of edge operators, with a placeholder for each argument in order."""
    name = getattr(pattern, "__name__", "pattern")
    graph = recorded_graph(pattern) if example_inputs is None else exported_graph(pattern, example_inputs)
    for node in graph.nodes:
        if node.op not in ("placeholder", "output") and not is_matchable(node):
            raise EdgeError(
                "a pattern calls a function that no edge program calls",
                where=f"pattern `{name}`",
                found=str(node.target),
                hint="call operators as `torch.ops.aten.add.Tensor(x, y)`, or give `example_inputs`",
            )
    unused = [node.name for node in graph.find_nodes(op="placeholder") if not node.users]
    if unused or len(graph.find_nodes(op="placeholder")) != len(inspect.signature(pattern).parameters):
        raise EdgeError(
            "a pattern must use all of its arguments, and no other tensors",
            where=f"pattern `{name}`",
            found=f"unused: {', '.join(unused)}" if unused else "a tensor that is no argument",
            hint="make every tensor that the pattern uses an argument, and remove unused arguments",
        )
    return graph


def is_matchable(node: Node) -> bool:
    return node.op == "call_function" and (isinstance(node.target, EdgeOpOverload) or node.target is operator.getitem)


def recorded_graph(pattern: Callable[..., object]) -> Graph:
    graph = torch.fx.symbolic_trace(pattern).graph
    for node in graph.nodes:
        if isinstance(node.target, OpOverload):
            node.target = edge_overload(node.target)
    return graph


def exported_graph(pattern: Callable[..., object], example_inputs: Sequence[object]) -> Graph:
    class Pattern(torch.nn.Module):
        def forward(self, *args: object) -> object:
            return pattern(*args)

    program = to_edge(torch.export.export(Pattern(), tuple(example_inputs), strict=False))
    graph = Graph()
    returned = graph.graph_copy(program.graph, {})
    values = returned if isinstance(returned, tuple) else (returned,)
    graph.output(values[0] if len(values) == 1 else values)
    return graph
