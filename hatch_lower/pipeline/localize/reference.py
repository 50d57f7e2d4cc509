"""Run a program by torch, node by node: the reference values of all comparisons, freed after the last use, and the
distance of a value from its reference.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.rounding import Marks
from hatch_lower.runtime.numbers import Tolerance, number_difference, widest

State = dict[str, torch.Tensor]  # constant name to its present contents


def initial_state(programs: Collection[ExportedProgram]) -> State:
    return {
        str(spec.target): constant_of(program, spec).detach().clone()
        for program in programs
        for spec in constant_specs(program)
        if spec.target in mutated_targets(program)
    }


def evaluate_nodes(program: ExportedProgram, inputs: Sequence[object], state: State) -> Iterator[tuple[Node, Any]]:
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
                value = node_value(program, node, values, state, changed)
        values[node] = value
        yield node, value
        for source in (*node.all_input_nodes, *([] if node.users else [node])):
            left[source] -= 1
            if left[source] <= 0:
                values.pop(source, None)
    state.update(changed)


def node_value(
    program: ExportedProgram, node: Node, values: Mapping[Node, Any], state: State, changed: State
) -> object:
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
    for node, value in evaluate_nodes(program, inputs, state):
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
    for node, value in evaluate_nodes(program, inputs, dict(state)):
        if node in wanted:
            found[node] = value
        if len(found) == len(wanted):
            break
    return [found[node] for node in nodes]


def user_output_values(program: ExportedProgram) -> list[object]:
    return [value for spec, value in output_pairs(program) if spec.kind is OutputKind.USER_OUTPUT]


def state_values(program: ExportedProgram) -> dict[str, Node]:
    """Return the nodes whose values a program writes to its state, by constant name."""
    written = [(spec, node) for spec, node in output_pairs(program) if spec.kind in STATE_MUTATIONS]
    return {str(spec.target): node for spec, node in written if isinstance(node, Node)}


class Distance(Frozen):
    largest: float  # absolute; infinite for values that cannot be subtracted
    is_wrong: bool
    text: str = ""  # the difference in words


class Measure(Frozen):
    """The measure of errors inside a method.

    A sum of large terms near 0 has the rounding error of the terms. So the tolerance is computed from the greatest
    magnitude of a tensor; a larger difference is not rounding. With `strict` the tolerance is computed for each number,
    as in verification. Integers of 8 bits may be off by 1 in a method that rounds to 8 bits.
    """

    tolerance: Tolerance
    strict: bool = False

    def after(self, marks: Marks) -> Measure:
        """Return the measure of a value that went through the given roundings."""
        return Measure(self.tolerance.after(marks), self.strict)

    def distance(self, expected: object, given: object) -> Distance:
        if not isinstance(expected, torch.Tensor) or not isinstance(given, torch.Tensor):
            same = expected == given or (expected != expected and given != given)
            return Distance(0.0 if same else math.inf, not same, "" if same else f"{given!r} instead of {expected!r}")
        if expected.dtype != given.dtype or expected.shape != given.shape:
            told = [f"{dtype_name(tensor.dtype)} {list(tensor.shape)}" for tensor in (given, expected)]
            return Distance(math.inf, True, f"{told[0]} instead of {told[1]}")
        tolerance = self.tolerance
        if not self.strict and expected.dtype.is_floating_point and expected.numel():
            finite = widest(expected)[expected.isfinite()]
            greatest = float(finite.abs().max()) if finite.numel() else 0.0
            tolerance = replace(tolerance, atol=tolerance.atol + tolerance.rtol * greatest)
        if self.tolerance.quantized and expected.dtype in (torch.int8, torch.uint8):
            steps = (expected.to(torch.int16) - given.to(torch.int16)).abs()
            most = float(steps.max()) if expected.numel() else 0.0
            return Distance(most, most > 1, f"off by up to {most:g} steps of 8 bits" if most > 1 else "")
        text, largest = number_difference(expected, given, tolerance)
        if text and not (expected.dtype.is_floating_point or expected.dtype.is_complex):
            return Distance(math.inf, True, text)
        return Distance(largest, bool(text), text)
