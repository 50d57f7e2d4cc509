"""Recurrent networks as OpenVINO's own operators."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.parametrizations import weight_norm

from hatch_lower import load
from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, get_lowered_submodules
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.torch_private.recurrent import recurrent_shapes

if find_spec("openvino") is None:
    pytest.skip("OpenVINO is not installed", allow_module_level=True)

from hatch_lower.backends.openvino.compile import OpenvinoBackend
from hatch_lower.backends.openvino.recurrent import CELLS

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning"),
]


class Network(nn.Module):
    """A network from a state that may be given; returns the numbers of all steps and the last states."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        return self.network(x, states[0] if len(states) == 1 else states or None)


def lower(module: nn.Module, *inputs: Tensor, shapes: Any = None) -> LoweredProgram:
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)
    return to_edge_transform_and_lower(program, partitioner=[OpenvinoBackend.partitioner({})]).to_executorch()


def delegate(lowered: LoweredProgram) -> LoweredBackendModule:
    ((_, module, _),) = get_lowered_submodules(lowered.programs["forward"].graph_module)
    return module


def operators_of(lowered: LoweredProgram) -> list[str]:
    nodes = delegate(lowered).original_module.graph_module.graph.nodes
    return [operator_name(node.target) for node in nodes if node.op == "call_function"]


def layers_of(lowered: LoweredProgram) -> list[str]:
    meta = delegate(lowered).meta
    assert meta is not None
    return [name for name in meta["debug_handle_map"] if "Sequence" in name]


def flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [each for item in value for each in flat(item)]


def equals_eager(model: Any, module: nn.Module, *inputs: Tensor) -> bool:
    with torch.no_grad():
        expected = flat(module(*inputs))
    found = flat(model(*inputs))
    return len(found) == len(expected) and all(
        torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
        for one, other in zip(found, expected, strict=True)
    )


NETWORKS = [
    (nn.LSTM, 11, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    (nn.LSTM, 1, {"num_layers": 3, "bias": False}),
    (nn.GRU, 11, {"num_layers": 2, "bidirectional": True}),
    (nn.GRU, 1, {"bias": False, "batch_first": True}),
    (nn.RNN, 5, {"bidirectional": True, "bias": False}),
    (nn.RNN, 5, {"num_layers": 2, "nonlinearity": "relu", "batch_first": True}),
]


@pytest.mark.parametrize(("kind", "steps", "options"), NETWORKS)
def test_a_network_is_an_operation_for_each_layer(
    kind: type[nn.Module], steps: int, options: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    made: Any = kind
    module = Network(made(6, 16, **options))
    place = 0 if options.get("batch_first") else 1

    def numbers(batch: int) -> Tensor:
        x = torch.randn(steps, batch, 6)
        return x if place else x.transpose(0, 1).contiguous()

    lowered = lower(module, numbers(3), shapes=({place: Dim("batch", min=1, max=64)},))
    assert sum(name in CELLS for name in operators_of(lowered)) == 1
    assert len(layers_of(lowered)) == options.get("num_layers", 1)
    model = load(save_program(lowered, tmp_path / "program"))
    assert all(equals_eager(model, module, numbers(batch)) for batch in (3, 1, 64))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_number_of_steps_may_be_dynamic(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    made: Any = kind
    module, x = Network(made(6, 16, 2, bidirectional=True)), torch.randn(5, 2, 6)
    with recurrent_shapes():  # as in a build
        lowered = lower(module, x, shapes=({0: Dim("steps", min=1, max=99)},))
    assert len(layers_of(lowered)) == 2
    model = load(save_program(lowered, tmp_path / "program"))
    assert all(equals_eager(model, module, torch.randn(steps, 2, 6)) for steps in (1, 99, 5, 1))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_states_are_passed_on(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    made: Any = kind
    module = Network(made(6, 16, 2, bidirectional=True))
    states = [torch.randn(4, 2, 16) for _ in range(2 if kind is nn.LSTM else 1)]
    x = torch.randn(7, 2, 6)
    lowered = lower(module, x, *states)
    model = load(save_program(lowered, tmp_path / "program"))
    assert equals_eager(model, module, x, *states)
    assert equals_eager(model, module, -x, *(state.tanh() for state in states))


def test_last_states_alone_may_be_used(tmp_path: Path) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.head = nn.LSTM(6, 16, 2, batch_first=True), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            _, (hidden, _) = self.network(x)
            result: Tensor = self.head(hidden[-1])
            return result

    module, x = Last(), torch.randn(2, 5, 6)
    lowered = lower(module, x)
    assert len(layers_of(lowered)) == 2
    assert equals_eager(load(save_program(lowered, tmp_path / "program")), module, x)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_numbers_out_of_the_ordinary_are_eagers(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    made: Any = kind
    module, x = Network(made(6, 16)), torch.randn(4, 3, 6)
    model = load(save_program(lower(module, x), tmp_path / "program"))
    for value in (1e30, -1e4, math.inf, -math.inf, math.nan):
        given = x.clone()
        given[1, 1, 2] = value
        assert equals_eager(model, module, given), value


@pytest.mark.parametrize("change", ["projection", "weights"])
def test_other_networks_are_taken_apart(change: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.LSTM(6, 16, proj_size=4 if change == "projection" else 0)
    module = Network(weight_norm(network, "weight_hh_l0") if change == "weights" else network)
    x = torch.randn(3, 2, 6)
    lowered = lower(module, x)
    assert not set(operators_of(lowered)) & set(CELLS)
    assert equals_eager(load(save_program(lowered, tmp_path / "program")), module, x)
