"""Recurrent networks of fake tensors: sizes as by torch's own operations, without a trace of each step."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.unlike_eager import UNLIKE_EAGER
from hatch_lower.runtime.torch_private.recurrent import RECURRENT, recurrent_shapes
from hatch_lower.runtime.torch_private.unimported import numbers

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")]

KINDS: list[Any] = [nn.LSTM, nn.GRU, nn.RNN]


def results(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    values = [value for node in program.graph.nodes if isinstance(value := node.meta.get("val"), tuple)]
    return [(tensor.shape, tensor.stride(), tensor.dtype) for value in values for tensor in value]


LATER = pytest.mark.skipif(
    numbers(torch.__version__) < (2, 13), reason="the trace of an LSTM's states is wrong in torch 2.11 and 2.12"
)


@pytest.mark.parametrize("kind", KINDS)
def test_results_have_torchs_own_sizes_and_strides(kind: Any) -> None:
    for bidirectional, batch_first in itertools.product((False, True), repeat=2):
        network = kind(3, 4, 2, bidirectional=bidirectional, batch_first=batch_first).eval()
        x = torch.randn(2, 3, 3)
        expected = torch.export.export(network, (x,))
        with recurrent_shapes():
            program = torch.export.export(network, (x,))
        assert results(program) == results(expected)
        assert str(program.graph) == str(expected.graph)


@LATER
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_still_decomposes(kind: Any) -> None:
    network, x = kind(3, 4).eval(), torch.randn(2, 3, 3)
    program = torch.export.export(network, (x,))
    expected = str(program.run_decompositions().graph)
    with recurrent_shapes():
        decomposed = program.run_decompositions()
    assert str(decomposed.graph) == expected
    with torch.no_grad():
        found, wanted = tree_leaves(decomposed.module()(x)), tree_leaves(network(x))
    torch.testing.assert_close(found, wanted)


@pytest.mark.skipif(
    numbers(torch.__version__) < (2, 13), reason="torch 2.13 or later keeps the number of steps dynamic"
)
def test_the_number_of_steps_may_be_dynamic() -> None:
    network, x = nn.LSTM(3, 4, batch_first=True).eval(), torch.randn(2, 5, 3)
    with recurrent_shapes():
        program = torch.export.export(network, (x,), dynamic_shapes=({1: Dim("steps", min=1, max=9)},))
    edge = to_edge(program, keep_nodes=UNLIKE_EAGER)
    assert "aten.lstm.input" in {operator_name(node.target) for node in edge.graph.nodes}
    with torch.no_grad():
        for steps in (1, 9):
            given = torch.randn(2, steps, 3)
            torch.testing.assert_close(edge.module()(given)[0], network(given)[0])


def test_a_known_number_of_steps_is_taken_apart() -> None:
    program = torch.export.export(nn.LSTM(3, 4).eval(), (torch.randn(2, 3, 3),))
    edge = to_edge(program, keep_nodes=UNLIKE_EAGER)
    assert "aten.lstm.input" not in {operator_name(node.target) for node in edge.graph.nodes}


def test_torchs_own_kernels_are_put_back() -> None:
    before = [dict(op.py_kernels) for op in RECURRENT]
    with pytest.raises(KeyError), recurrent_shapes():
        raise KeyError
    assert [dict(op.py_kernels) for op in RECURRENT] == before
    network, x = nn.GRU(3, 4).eval(), torch.randn(2, 3, 3)

    def sequence(given: Tensor) -> Tensor:
        result: Tensor = network(given)[0]
        return result

    with recurrent_shapes(), torch.no_grad():
        assert torch.equal(sequence(x), network(x)[0])
