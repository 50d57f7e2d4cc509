"""Recurrent networks as ONNX's own operators, one for each layer, whatever the length of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from onnxscript.function_libs.torch_lib.tensor_typing import TFloat
from onnxscript.onnx_opset import opset20

op: Any = opset20
Value: TypeAlias = Any

# the places of ONNX's gates among torch's
LSTM_GATES = (0, 3, 1, 2)  # input, output, forget, cell
GRU_GATES = (1, 0, 2)  # update, reset, hidden

# The exporter reads these functions' annotations for ONNX's type of each parameter.


def lstm(
    input: TFloat,
    hx: Sequence[TFloat],
    params: Sequence[TFloat],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Value:
    layers = layers_of(params, has_biases, num_layers, bidirectional)
    return write_layers(op.LSTM, LSTM_GATES, input, hx, layers, batch_first, {})


def with_one_state(
    kernel: Callable[..., Any], gates: Sequence[int], options: Callable[[int], Mapping[str, object]]
) -> Callable[..., Value]:
    """Return the translation of a network without an LSTM's cell; `options` maps the number of directions."""

    def network(
        input: TFloat,
        hx: TFloat,
        params: Sequence[TFloat],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Value:
        layers = layers_of(params, has_biases, num_layers, bidirectional)
        return write_layers(kernel, gates, input, [hx], layers, batch_first, options(1 + bidirectional))

    return network


Layer: TypeAlias = Sequence[Sequence[Value]]  # the weights and biases of each direction


def layers_of(params: Sequence[Value], has_biases: bool, num_layers: int, bidirectional: bool) -> list[Layer]:
    count, directions = (4 if has_biases else 2), 1 + bidirectional
    rows = [params[begin : begin + count] for begin in range(0, len(params), count)]
    return [rows[layer * directions : (layer + 1) * directions] for layer in range(num_layers)]


def write_layers(
    kernel: Callable[..., Any],
    gates: Sequence[int],
    given: Value,
    states: Sequence[Value],
    layers: Sequence[Layer],
    batch_first: bool,
    options: Mapping[str, object],
) -> Value:
    """Write the layers; return the sequence of results, and the last states of all layers and directions."""
    x = op.Transpose(given, perm=[1, 0, 2]) if batch_first else given
    directions = len(layers[0])
    kinds = {"direction": "bidirectional" if directions == 2 else "forward", "hidden_size": states[0].shape[2]}
    lasts: list[list[Value]] = [[] for _ in states]
    for number, rows in enumerate(layers):
        weights = [stacked([gate_order(row[place], gates) for row in rows]) for place in (0, 1)]
        biases = [op.Concat(*(gate_order(bias, gates) for bias in row[2:]), axis=0) for row in rows if len(row) == 4]
        places = op.Constant(value_ints=[number * directions]), op.Constant(value_ints=[(number + 1) * directions])
        begins = [op.Slice(state, *places, op.Constant(value_ints=[0])) for state in states]
        results, *ends = kernel(x, *weights, stacked(biases) if biases else None, None, *begins, **kinds, **options)
        # the directions of [length, directions, batch, size] come side by side
        x = op.Reshape(op.Transpose(results, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
        for last, end in zip(lasts, ends, strict=False):
            last.append(end)
    x = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    return x, *(last[0] if len(last) == 1 else op.Concat(*last, axis=0) for last in lasts)


def gate_order(gathered: Value, gates: Sequence[int]) -> Value:
    """Return a weight or a bias with ONNX's order of gates."""
    if len(gates) == 1:
        return gathered
    parts = op.Split(gathered, num_outputs=len(gates), axis=0)
    return op.Concat(*(parts[gate] for gate in gates), axis=0)


def stacked(values: Sequence[Value]) -> Value:
    """Return the values of the directions in a dimension of their own."""
    first = op.Constant(value_ints=[0])
    return op.Concat(*(op.Unsqueeze(value, first) for value in values), axis=0)


OWN_RECURRENT: Mapping[Any, Callable[..., Any]] = {
    # torch multiplies by the reset gate after the product with the hidden state
    torch.ops.aten.gru.input: with_one_state(op.GRU, GRU_GATES, lambda _: {"linear_before_reset": 1}),
    torch.ops.aten.lstm.input: lstm,
    torch.ops.aten.rnn_relu.input: with_one_state(
        op.RNN, (0,), lambda directions: {"activations": ["Relu"] * directions}
    ),
    torch.ops.aten.rnn_tanh.input: with_one_state(
        op.RNN, (0,), lambda directions: {"activations": ["Tanh"] * directions}
    ),
}
