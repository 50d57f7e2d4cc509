"""Models that PT2E quantized, with the backend `executorch`: products with integers, and what stays outside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from support.quantized import conv_net, mlp, quantized, x86_quantizer, xnnpack_quantizer
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import hatch_lower
from hatch_lower.backends.executorch.compile import ExecutorchBackend
from hatch_lower.backends.executorch.pipeline import refuse_unusable
from hatch_lower.backends.executorch.quantized import moved
from hatch_lower.errors import BackendError
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, get_lowered_backend_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytest.importorskip("executorch")

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

FINITE = {"finite-only": True}
STRICT = {"finite-only": False}


def lower(program: ExportedProgram) -> LoweredProgram:
    return to_edge_transform_and_lower(program, partitioner=[ExecutorchBackend.partitioner(FINITE)]).to_executorch()


def delegates(lowered: LoweredProgram) -> list[LoweredBackendModule]:
    return get_lowered_backend_modules(lowered.exported_program().graph_module)


def why_not(program: ExportedProgram, options: dict[str, Any]) -> dict[str, str]:
    """Return the reasons by operator."""
    partitioner = ExecutorchBackend.partitioner(options)
    edge = to_edge(program, keep=partitioner.ops_to_not_decompose(program)[0])
    names = {node.name: str(torch_operator(node.target)) for node in edge.graph.nodes}
    return {names[name]: reason for name, reason in partitioner.partition(edge).reasons.items()}


def output_step(program: ExportedProgram) -> float:
    """Return by how much two neighbours among the integers of the output differ."""
    scales = [node.args[1] for node in program.graph.nodes if "dequantize_per_tensor" in str(node.target)]
    assert isinstance(scales[-1], float)
    return scales[-1]


def float_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * 4 for parameter in module.parameters())


@pytest.mark.parametrize(("module", "inputs"), [mlp(256, 16), conv_net(96, 8)], ids=["mlp", "conv_net"])
def test_a_quantized_model_is_one_partition_of_integers(
    module: nn.Module, inputs: tuple[Tensor, ...], tmp_path: Path
) -> None:
    simulated = quantized(module, inputs)
    program = torch.export.export(simulated, inputs)
    lowered = lower(program)
    (partition,) = delegates(lowered)
    assert not lowered.reasons["forward"]
    assert {str(name).partition(":")[0] for name in partition.result.debug_handle_map or ()} == {"0"}
    assert "0:XnnpackBackend" in (partition.result.debug_handle_map or ())
    folder = save_program(lowered, tmp_path / "out")
    packaged = [*folder.rglob("constants.*"), *folder.rglob("*.pte")]
    assert sum(path.stat().st_size for path in packaged) < 0.3 * float_bytes(module)
    model, step = hatch_lower.load(folder), output_step(program)
    torch.manual_seed(1)
    given = [torch.randn_like(inputs[0]) for _ in range(10)]
    steps = torch.cat([(model(x) - simulated(x)) / step for x in given])
    # where eager's float lies between two integers, XNNPACK may round to the other one
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-3)
    assert steps.abs().max() < 1.01


def test_a_quantized_model_with_a_dynamic_batch_is_one_partition(tmp_path: Path) -> None:
    module, inputs = mlp()
    simulated = quantized(module, inputs)
    # the graph that PT2E makes has the sizes of its example
    program = torch.export.export(quantized_for_any_batch(module, inputs), inputs, dynamic_shapes=ROWS)
    lowered = lower(program)
    assert len(delegates(lowered)) == 1
    model, step = hatch_lower.load(save_program(lowered, tmp_path / "out")), output_step(program)
    for rows in (1, 8, 3):
        x = torch.randn(rows, 32)
        assert (model(x) - simulated(x)).abs().max() < 1.01 * step


ROWS = ({0: Dim("rows", min=1, max=8)},)


def quantized_for_any_batch(module: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(
        torch.export.export(module, inputs, dynamic_shapes=({0: Dim.DYNAMIC(min=1, max=8)},)).module(),
        xnnpack_quantizer(),
    )
    prepared(*inputs)
    converted: nn.Module = convert_pt2e(prepared)
    return converted


@pytest.mark.parametrize("make", [mlp, conv_net])
def test_integers_chosen_at_run_time_are_taken_where_they_are_chosen_once(make: Any, tmp_path: Path) -> None:
    module, inputs = make()
    one = tuple(each[:1].clone() for each in inputs)
    simulated = quantized(module, one, xnnpack_quantizer(dynamic=True))
    lowered = lower(torch.export.export(simulated, one))
    assert len(delegates(lowered)) == 1
    assert not lowered.reasons["forward"]
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    x = torch.randn_like(one[0])
    torch.testing.assert_close(model(x), simulated(x))
    reasons = why_not(torch.export.export(quantized(module, inputs, xnnpack_quantizer(dynamic=True)), inputs), FINITE)
    assert reasons["aten.linear.default"].startswith("XNNPACK quantizes each row or image of `")
    assert reasons["quantized_decomposed.dequantize_per_channel.default"] == reasons["aten.linear.default"]


class Shared(nn.Module):
    """A layer whose result is used twice, as integers both times: PT2E quantizes a result for all its uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        y = torch.relu(self.layers[0](x))
        return self.layers[1](y), y + 1


@pytest.mark.parametrize(
    ("options", "operator", "reason"),
    [
        (STRICT, "quantized_decomposed.quantize_per_tensor.default", "other results than eager for NaN, and"),
        (STRICT, "aten.linear.default", "gives other results than eager for NaN, and `finite-only` is false"),
        ({**FINITE, "exclude": ["aten.relu.default"]}, "aten.linear.default", "`aten.relu.default` is excluded"),
        (
            {**FINITE, "exclude": ["quantized_decomposed.quantize_per_tensor.default"]},
            "quantized_decomposed.dequantize_per_channel.default",
            "`quantized_decomposed.quantize_per_tensor.default` is excluded by the recipe",
        ),
    ],
)
def test_a_product_stays_outside_with_all_that_it_needs(options: dict[str, Any], operator: str, reason: str) -> None:
    module, inputs = mlp()
    program = torch.export.export(quantized(nn.Sequential(module.layers[0], nn.ReLU()), inputs), inputs)
    assert reason in why_not(program, options)[operator]


def test_integers_that_are_only_given_another_scale_stay_outside(tmp_path: Path) -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

        def forward(self, image: Tensor) -> Tensor:
            result: Tensor = self.second(self.first(image)[:, :, :4])
            return result

    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 10, 10),)
    simulated = quantized(Sliced().eval(), inputs)
    program = torch.export.export(simulated, inputs)
    lowered = lower(program)
    (cut,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)
    around = [node for node in (*cut.all_input_nodes, *cut.users) if "quantize_per_tensor" in str(node.target)]
    is_rescaled = len({node.args[1] for node in around}) > 1  # ExecuTorch 1.5 leaves what is cut its scale
    assert len(around) == 2
    assert len(delegates(lowered)) == 1 + is_rescaled
    reason = "it gives integers another scale, and XNNPACK fails there or rounds differently"
    assert (reason in lowered.reasons["forward"].values()) == is_rescaled
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    assert (model(*inputs) - simulated(*inputs)).abs().max() < 1.01 * output_step(program)


def test_what_is_moved_is_found_once_whatever_ways_lead_to_it() -> None:
    graph = torch.fx.Graph()
    facts = (0.5, 0, -128, 127, torch.int8)
    source = graph.call_function(
        torch.ops.quantized_decomposed.dequantize_per_tensor.default, (graph.placeholder("x"), *facts)
    )
    joined = source
    for _ in range(40):
        parts = [graph.call_function(torch.ops.aten.slice.Tensor, (joined, 0, *ends)) for ends in ((0, 1), (1, 2))]
        joined = graph.call_function(torch.ops.aten.cat.default, (parts,))
    quantized_again = graph.call_function(torch.ops.quantized_decomposed.quantize_per_tensor.default, (joined, *facts))
    assert moved(quantized_again) == {source}


def test_integers_of_another_type_stay_outside() -> None:
    module, inputs = mlp()
    reasons = why_not(torch.export.export(quantized(module, inputs, x86_quantizer()), inputs), FINITE)
    assert "integers of the type int8 only" in reasons["quantized_decomposed.quantize_per_tensor.default"]
    assert "aten.linear.default" in reasons


def test_integers_that_are_used_twice_give_eagers_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(4, 8),)
    simulated = quantized(Shared().eval(), inputs)
    program = torch.export.export(simulated, inputs)
    model = hatch_lower.load(save_program(lower(program), tmp_path / "out"))
    for found, expected in zip(model(*inputs), simulated(*inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2 * output_step(program))


def test_a_layer_whose_result_is_used_as_floats_too_stays_outside() -> None:
    def steps(x: Tensor) -> Tensor:
        given = 0.02, 0, -128, 127, torch.int8
        ops = torch.ops.quantized_decomposed
        result: Tensor = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *given), *given)
        return result

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(8, 8, dtype=torch.int8))
            self.register_buffer("scales", torch.ones(8))
            self.register_buffer("zeros", torch.zeros(8, dtype=torch.int64))
            self.register_buffer("bias", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            facts = self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8
            weight = torch.ops.quantized_decomposed.dequantize_per_channel(*facts)
            return nn.functional.linear(x, weight, self.bias)

    class Forked(nn.Module):
        def __init__(self, forks: bool) -> None:
            super().__init__()
            self.layer, self.forks = Layer(), forks

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.layer(steps(x))
            return steps(y), torch.sigmoid(y if self.forks else x)

    for forks in (True, False):
        reasons = why_not(torch.export.export(Forked(forks), (torch.randn(4, 8),)), FINITE)
        assert ("aten.linear.default" in reasons) is forks


def test_a_program_that_executorch_cannot_load_is_an_error_of_the_build() -> None:
    with pytest.raises(BackendError, match="lowered a quantized partition to a program that it cannot load"):
        refuse_unusable(SimpleNamespace(buffer=b"\0" * 64, _tensor_data={}))


def test_a_program_that_executorch_cannot_run_is_an_error_of_the_build() -> None:
    module, inputs = mlp()
    (partition,) = delegates(lower(torch.export.export(module, inputs)))
    with pytest.raises(BackendError, match="lowered a quantized partition to a program that it cannot run"):
        refuse_unusable(SimpleNamespace(buffer=partition.processed_bytes, _tensor_data={}))  # without its weights


def test_a_program_may_refuse_zeros() -> None:
    class Quotient(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.div(x, y, rounding_mode="trunc")

    numbers = torch.ones(2, dtype=torch.int32)
    program = torch.export.export(Quotient(), (numbers, numbers))
    partitioner = ExecutorchBackend.partitioner({**FINITE, "portable-operators": True})
    (partition,) = delegates(to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch())
    refuse_unusable(SimpleNamespace(buffer=partition.processed_bytes, _tensor_data={}))
