"""The flow of values between operations, by debug handles, through delegates and nested graphs.

A plan has only a delegate's inputs and outputs; the lowered graph also has the flow inside.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from torch.fx import GraphModule, Node

from hatch_lower.exir.graph.surgery import output_values
from hatch_lower.exir.graph_module import submodule_of
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.format.debug_map import input_number
from hatch_lower.pipeline.emit.graphs import CONTROL_FLOW, GRAPHS
from hatch_lower.pipeline.emit.signature import user_inputs
from hatch_lower.runtime.torch_private.programs import executorch_call_delegate

Makers: TypeAlias = frozenset[int]  # handles and numbers of inputs from which a value is computed
NONE: Makers = frozenset()


class Flow:
    def __init__(self, known: Collection[int]) -> None:
        self._known = known  # the debug map's handles; a node without such a handle passes on its inputs' makers
        self._reads: dict[int, Makers] = {}

    def reads(self) -> dict[int, tuple[int, ...]]:
        return {handle: tuple(sorted(self._reads[handle])) for handle in sorted(self._reads) if self._reads[handle]}

    def follow(self, module: GraphModule, given: Mapping[Node, Makers]) -> tuple[Makers, ...]:
        """Note a graph's edges and return the makers of its outputs; `given` has the makers of its placeholders."""
        makers: dict[Node, Makers] = {}
        results: dict[Node, tuple[Makers, ...]] = {}  # of calls whose outputs come from different operations
        for node in module.graph.nodes:
            if node.op == "placeholder":
                makers[node] = given.get(node, NONE)
            elif node.op != "call_function":
                makers[node] = NONE
            elif node.target is operator.getitem and node.args[0] in results:
                makers[node] = results[node.args[0]][node.args[1]]
            elif node.target is executorch_call_delegate:
                results[node] = self._follow_delegate(module, node, makers)
                makers[node] = union(results[node])
            else:
                before = union(makers[argument] for argument in node.all_input_nodes)
                if node.target in CONTROL_FLOW:
                    before |= self._follow_nested(module, node, makers)
                makers[node] = self._note(node, before)
        return tuple(makers.get(value, NONE) if isinstance(value, Node) else NONE for value in output_values(module))

    def _note(self, node: Node, before: Makers) -> Makers:
        handle = node.meta.get("debug_handle")
        if handle is None or handle not in self._known:
            return before
        # nodes from the decomposition of an operation share its handle
        self._reads[handle] = self._reads.get(handle, NONE) | (before - {handle})
        return frozenset({handle})

    def _follow_delegate(self, module: GraphModule, node: Node, makers: Mapping[Node, Makers]) -> tuple[Makers, ...]:
        _, lowered = submodule_of(module, node, 0, LoweredBackendModule)
        program = lowered.original_module
        inputs = [placeholder for _, placeholder in user_inputs(program)]
        given = dict(zip(inputs, (makers_of(value, makers) for value in node.args[1:]), strict=True))
        return self.follow(program.graph_module, given)

    def _follow_nested(self, module: GraphModule, node: Node, makers: Mapping[Node, Makers]) -> Makers:
        _, parts = CONTROL_FLOW[node.target]
        lists = [value for value in node.args if isinstance(value, list | tuple)]
        operands = [makers_of(value, makers) for values in lists for value in values]
        made = NONE
        for place, part in enumerate(parts):
            if part in GRAPHS:
                _, nested = submodule_of(module, node, place, GraphModule)
                inputs = [inner for inner in nested.graph.nodes if inner.op == "placeholder"]
                made |= union(self.follow(nested, dict(zip(inputs, operands, strict=True))))
        return made


def flow_of(module: GraphModule, inputs: list[Node], known: Collection[int]) -> dict[int, tuple[int, ...]]:
    # `known` are the handles of the method's debug map
    flow = Flow(known)
    flow.follow(module, {node: frozenset({input_number(at)}) for at, node in enumerate(inputs)})
    return flow.reads()


def makers_of(value: object, makers: Mapping[Node, Makers]) -> Makers:
    return makers[value] if isinstance(value, Node) else NONE


def union(listed: Iterable[Makers]) -> Makers:
    return NONE.union(*listed)
