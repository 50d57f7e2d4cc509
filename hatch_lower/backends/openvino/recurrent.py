"""Recurrent networks in OpenVINO's own operators: an operation for each layer, whatever the number of steps.

A layer's operation has several results, and a call in a prepared graph has a single result. So a call stands for the
first result of a layer's operation, and later calls find the other results at the same operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.fx import Node

from hatch_lower.backends.engine_partitioner import complete_arguments
from hatch_lower.exir.graph.operators import operator_name

Opset: TypeAlias = Any  # OpenVINO's operators
Value: TypeAlias = Any  # result of an operator


@dataclass(frozen=True, slots=True)
class Cell:
    """The differences between eager's and OpenVINO's form of a recurrent operator."""

    kind: str  # OpenVINO's operator
    states: int  # tensors that a step hands to the next
    # for each of OpenVINO's gates, the place among eager's
    gates: tuple[int, ...]
    activation: str = ""


CELLS: Mapping[str, Cell] = {
    "aten.lstm.input": Cell("lstm_sequence", 2, (1, 0, 2, 3)),
    "aten.gru.input": Cell("gru_sequence", 1, (1, 0, 2)),
    "aten.rnn_relu.input": Cell("rnn_sequence", 1, (0,), "relu"),
    "aten.rnn_tanh.input": Cell("rnn_sequence", 1, (0,), "tanh"),
}


def cell_of(node: Node) -> Cell:
    return CELLS[operator_name(node.target)]


def directions_of(given: Mapping[str, Any]) -> int:
    return 2 if given["bidirectional"] else 1


def states_of(given: Mapping[str, Any]) -> Sequence[Node]:
    first = given["hx"]
    return list(first) if isinstance(first, (list, tuple)) else [first]


def weights_of(given: Mapping[str, Any], layer: int) -> Sequence[Node]:
    count = directions_of(given) * (4 if given["has_biases"] else 2)
    return list(given["params"][layer * count : (layer + 1) * count])


def why_not_recurrent(node: Node) -> str:
    """Return why OpenVINO does not take a recurrent network."""
    given = complete_arguments(node)
    if given["train"] and given["dropout"]:
        return f"`{operator_name(node.target)}` draws random numbers"
    if len(given["params"]) != given["num_layers"] * len(weights_of(given, 0)):
        return "OpenVINO's LSTM has no projection (`proj_size`)"
    return ""


def write_layer(node: Node, layer: int, opset: Opset, value: Value, *rest: Value) -> Value:
    """Write a layer; `rest` has the states before the first step, of all layers, then the layer's weights."""
    given, cell = complete_arguments(node), cell_of(node)
    directions, has_biases = directions_of(given), given["has_biases"]
    if layer:
        value = joined_directions(opset, value, directions)
    elif not given["batch_first"]:
        value = transposed(opset, value, (1, 0, 2))
    states = [layer_state(opset, state, layer, directions) for state in rest[: cell.states]]
    weights = rest[cell.states :]
    each = len(weights) // directions
    forms = [weights[start : start + each] for start in range(0, len(weights), each)]
    inputs, hidden = (
        for_directions(opset, [reordered(opset, form[place], cell) for form in forms]) for place in (0, 1)
    )
    if has_biases:
        bias = for_directions(opset, [layer_bias(opset, form[2], form[3], cell) for form in forms])
    else:
        size = int(given["params"][1].meta["val"].shape[1])
        rows = len(cell.gates) + (cell.kind == "gru_sequence")
        bias = opset.broadcast(opset.constant(0.0, dtype="float32"), int64_constant(opset, (directions, rows * size)))
    lengths = step_counts(opset, value)
    size = int(given["params"][1].meta["val"].shape[1])
    direction = "bidirectional" if given["bidirectional"] else "forward"
    options: dict[str, Any] = {"linear_before_reset": True} if cell.kind == "gru_sequence" else {}
    if cell.activation:
        options["activations"] = [cell.activation]
    write = getattr(opset, cell.kind)
    return write(value, *states, lengths, inputs, hidden, bias, size, direction, **options)


def step_counts(opset: Opset, value: Value) -> Value:
    # in this form OpenVINO finds that all sequences have all steps
    sizes = opset.shape_of(value)
    zero = int64_constant(opset, 0)
    batch, steps = (opset.gather(sizes, int64_constant(opset, (place,)), zero) for place in (0, 1))
    return opset.broadcast(steps, batch)


def layer_state(opset: Opset, state: Value, layer: int, directions: int) -> Value:
    """Return a layer's part of a state, behind the batch."""
    bounds = (layer * directions, (layer + 1) * directions, 1, 0)
    part = opset.slice(state, *(int64_constant(opset, (bound,)) for bound in bounds))
    return transposed(opset, part, (1, 0, 2))


def joined_directions(opset: Opset, value: Value, directions: int) -> Value:
    """Return a layer's numbers, which stand apart for each direction, side by side."""
    if directions == 1:
        return opset.squeeze(value, int64_constant(opset, (1,)))
    return opset.reshape(transposed(opset, value, (0, 2, 1, 3)), int64_constant(opset, (0, 0, -1)), True)


def reordered(opset: Opset, weight: Value, cell: Cell) -> Value:
    if len(cell.gates) == 1:
        return weight
    parts = opset.split(weight, int64_constant(opset, 0), len(cell.gates))
    return opset.concat([parts.output(place) for place in cell.gates], 0)


def layer_bias(opset: Opset, first: Value, second: Value, cell: Cell) -> Value:
    if cell.kind != "gru_sequence":
        return reordered(opset, opset.add(first, second), cell)
    # the second bias of the new gate is added before the reset
    one, other = (opset.split(each, int64_constant(opset, 0), 3) for each in (first, second))
    sums = [opset.add(one.output(place), other.output(place)) for place in cell.gates[:2]]
    return opset.concat([*sums, one.output(2), other.output(2)], 0)


def for_directions(opset: Opset, values: Sequence[Value]) -> Value:
    return opset.concat([opset.unsqueeze(value, int64_constant(opset, 0)) for value in values], 0)


def write_recurrent_output(node: Node, opset: Opset, value: Value) -> Value:
    """Write the numbers of all steps of the last layer."""
    given = complete_arguments(node)
    joined = joined_directions(opset, value, directions_of(given))
    return joined if given["batch_first"] else transposed(opset, joined, (1, 0, 2))


def write_last_state(place: int, opset: Opset, *layers: Value) -> Value:
    """Write a state after the last step, of all layers."""
    states = [transposed(opset, layer.get_node().output(place), (1, 0, 2)) for layer in layers]
    return states[0] if len(states) == 1 else opset.concat(states, 0)


def transposed(opset: Opset, value: Value, order: Sequence[int]) -> Value:
    return opset.transpose(value, int64_constant(opset, order))


def int64_constant(opset: Opset, values: int | Sequence[int]) -> Value:
    return opset.constant(values if isinstance(values, int) else list(values), dtype="int64")
