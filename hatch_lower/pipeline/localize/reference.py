"""Run a program by torch, node by node: the reference values of all comparisons, freed after the last use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node, map_arg

from hatch_lower.exir.delegate import executorch_call_delegate
from hatch_lower.exir.graph.state import (
    CONSTANT_KINDS,
    STATE_MUTATIONS,
    constant_of,
    constant_specs,
    mutated_targets,
    output_pairs,
)
from hatch_lower.exir.graph.surgery import attribute_of

State = dict[str, torch.Tensor]  # constant name to its present contents


def initial_state(programs: Collection[ExportedProgram]) -> State:
    return {
        str(spec.target): constant_of(program, spec).detach().clone()
        for program in programs
        for spec in constant_specs(program)
        if spec.target in mutated_targets(program)
    }


def evaluate(program: ExportedProgram, inputs: Sequence[object], state: State) -> Iterator[tuple[Node, Any]]:
    """Yield each node with its value, the output last; at the end `state` is the next call's initial state."""
    # a delegate call runs the graph from which the delegate was lowered
    # the model's tensors are shared, as an edge program does not change tensors
    left: dict[Node, int] = {node: len(node.users) for node in program.graph.nodes}
    values: dict[Node, Any] = {}
    changed: State = {}
    given = iter(inputs)
    specs = iter(program.graph_signature.input_specs)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            spec = next(specs)
            if spec.kind not in CONSTANT_KINDS:
                value = next(given)
            else:
                value = state[spec.target] if spec.target in state else constant_of(program, spec)
        elif node.op == "output":
            value = map_arg(node.args[0], values.__getitem__)
        else:
            with torch.no_grad():
                value = value_of(program, node, values, state, changed)
        values[node] = value
        yield node, value
        for source in (*node.all_input_nodes, *([] if node.users else [node])):
            left[source] -= 1
            if left[source] <= 0:
                values.pop(source, None)
    state.update(changed)


def value_of(program: ExportedProgram, node: Node, values: Mapping[Node, Any], state: State, changed: State) -> object:
    if node.op == "get_attr":
        return attribute_of(program.graph_module, str(node.target))
    args: Any = map_arg(node.args, values.__getitem__)
    kwargs: Any = map_arg(node.kwargs, values.__getitem__)
    target: Any = node.target
    if target is executorch_call_delegate:
        module, *inputs = args
        inner = dict(state)
        outputs = results_of(module.original_module, inputs, inner)
        changed.update((name, tensor) for name, tensor in inner.items() if tensor is not state.get(name))
        return outputs
    return target(*args, **kwargs)


def results_of(program: ExportedProgram, inputs: Sequence[object], state: State) -> tuple[object, ...]:
    """Return the results of a call of a program; `state` becomes the next call's initial state."""
    result: Any = ()
    for node, value in evaluate(program, inputs, state):
        if node.op == "output":
            result = value
    return user_results(program, tuple(result), state)


def user_results(program: ExportedProgram, result: Sequence[Any], state: State) -> tuple[Any, ...]:
    outputs = []
    for spec, value in zip(program.graph_signature.output_specs, result, strict=True):
        if spec.kind in STATE_MUTATIONS:
            state[str(spec.target)] = value.detach().clone()
        elif spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(value)
    return tuple(outputs)


def values_at(
    program: ExportedProgram, inputs: Sequence[object], state: Mapping[str, torch.Tensor], nodes: Sequence[Node]
) -> list[object]:
    wanted = set(nodes)
    found: dict[Node, object] = {}
    for node, value in evaluate(program, inputs, dict(state)):
        if node in wanted:
            found[node] = value
        if len(found) == len(wanted):
            break
    return [found[node] for node in nodes]


def user_values(program: ExportedProgram) -> list[object]:
    return [value for spec, value in output_pairs(program) if spec.kind is OutputKind.USER_OUTPUT]


def state_values(program: ExportedProgram) -> dict[str, Node]:
    """Return the nodes whose values a program writes to its state, by constant name."""
    written = [(spec, node) for spec, node in output_pairs(program) if spec.kind in STATE_MUTATIONS]
    return {str(spec.target): node for spec, node in written if isinstance(node, Node)}
