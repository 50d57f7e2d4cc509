"""OpenVINO computes dynamic quantization, and rounds where eager rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers operators
from support.modules import Call
from support.quantized import mlp, quantized, quiet, x86_quantizer, xnnpack_quantizer
from torch import Tensor, nn

from hatch_lower import load
from hatch_lower.exir.capture._config import EdgeCompileConfig
from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.exir.lowered_backend_module import get_lowered_submodules
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytest.importorskip("openvino")

from hatch_lower.backends.openvino.compile import OpenvinoBackend

ops = torch.ops.quantized_decomposed
BOUNDS = (-128, 127, 2.0**-12, torch.int8)
FACTS = (-128, 127, torch.int8)


def lower(net: nn.Module, *inputs: Tensor, **options: Any) -> LoweredProgram:
    program = torch.export.export(net, inputs)
    partitioner = OpenvinoBackend.partitioner({"threads": 1, **options})
    config = EdgeCompileConfig(_core_aten_ops_exception_list=[torch.ops.aten._int_mm.default])
    return to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=config).to_executorch()


def taken(lowered: LoweredProgram) -> list[set[str]]:
    """Return the operators of each partition."""
    (program,) = lowered.programs.values()
    graphs = [module.original_module.graph for _, module, _ in get_lowered_submodules(program.graph_module)]
    return [{operator_name(node.target) for node in graph.nodes if node.op == "call_function"} for graph in graphs]


def left(lowered: LoweredProgram) -> str:
    (reasons,) = lowered.reasons.values()
    return "\n".join(reasons.values())


def check(lowered: LoweredProgram, net: Callable[..., Any], folder: Path, *inputs: Tensor) -> None:
    """Compare a program with eager: a number that is rounded otherwise differs by a step of a hundred."""
    found = load(save_program(lowered, folder / "program"))(*inputs)
    with torch.no_grad():
        torch.testing.assert_close(found, net(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("quantizer", [xnnpack_quantizer, x86_quantizer])
def test_scales_of_each_call_leave_one_partition(quantizer: Any, tmp_path: Path) -> None:
    module, (x,) = mlp(64)
    net = quantized(module, (x,), quantizer(dynamic=True))
    lowered = lower(net, x)
    assert (len(taken(lowered)), left(lowered)) == (1, "")
    for factor, inputs in enumerate((x, -7 * x, x.abs(), x.clamp(-1, 1), torch.zeros_like(x), x * 1e-6)):
        check(lowered, net, tmp_path / str(factor), inputs)


@quiet()
@pytest.mark.parametrize("unsigned", [False, True])
def test_scales_of_each_row_leave_one_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsigned: bool
) -> None:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    # torchao writes other integers where the processor of the build has VNNI and no AMX
    monkeypatch.setattr("torchao.kernel.intmm._cpu_is_vnni_supported", lambda: unsigned)
    monkeypatch.setattr("torchao.kernel.intmm._cpu_is_amx_tile_supported", lambda: False)
    net, (x,) = mlp(64)
    quantize_(net, Int8DynamicActivationInt8WeightConfig())
    lowered = lower(net, x)
    if unsigned:  # `docs/openvino.md`
        assert "is uint8" in left(lowered)
        assert all("aten._int_mm.default" not in names for names in taken(lowered))
    else:
        assert (len(taken(lowered)), left(lowered)) == (1, "")
        assert "aten._int_mm.default" in taken(lowered)[0]
    for factor, inputs in enumerate((x, -7 * x, x.clamp(-1, 1), torch.zeros_like(x))):
        check(lowered, net, tmp_path / str(factor), inputs)


def chosen(x: Tensor) -> Any:
    scale, zero_point = ops.choose_qparams.tensor(x, *BOUNDS)
    steps = ops.quantize_per_tensor.tensor(x, scale, zero_point, *FACTS)
    return scale, zero_point, steps, ops.dequantize_per_tensor.tensor(steps, scale, zero_point, *FACTS)


def scale_outside(x: Tensor) -> Any:
    scale, _, _, numbers = chosen(x)
    return scale * 2, numbers.exp()


def integers_outside(x: Tensor) -> Any:
    _, _, steps, numbers = chosen(x)
    return steps, numbers.exp()


def two_choices(x: Tensor) -> Tensor:
    other, _, steps, _ = chosen(x)
    _, zero_point = ops.choose_qparams.tensor(x + 1, *BOUNDS)
    return ops.dequantize_per_tensor.tensor(steps, other, zero_point, *FACTS).exp()


def other_integers(x: Tensor) -> Tensor:
    scale, zero_point, _, numbers = chosen(x)
    return ops.dequantize_per_tensor.tensor(x.to(torch.int8), scale, zero_point, *FACTS) + numbers


def other_numbers(x: Tensor) -> Tensor:
    scale, zero_point, _, numbers = chosen(x)
    steps = ops.quantize_per_tensor.tensor(numbers.exp(), scale, zero_point, *FACTS)
    return ops.dequantize_per_tensor.tensor(steps, scale, zero_point, *FACTS)


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (scale_outside, "uses a scale, which OpenVINO has in float32"),
        (integers_outside, "is used as integers"),
        (two_choices, "its scale is not a result of `choose_qparams`"),
        (other_integers, "has integers that were quantized elsewhere"),
        (other_numbers, "quantizes other numbers than the numbers that its scale was chosen for"),
    ],
)
def test_a_scale_that_leaves_its_operations_is_left(net: Any, reason: str, tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    lowered = lower(Call(net), x)
    assert reason in left(lowered)
    assert not any("choose_qparams" in name for operators in taken(lowered) for name in operators)
    check(lowered, net, tmp_path, x)


def test_an_excluded_operation_leaves_all_that_share_its_scale(tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    lowered = lower(Call(lambda x: chosen(x)[3].exp()), x, exclude=["quantized_decomposed.quantize_per_tensor.tensor"])
    assert taken(lowered) == [{"aten.exp.default"}]
    assert "it belongs to `quantized_decomposed_quantize_per_tensor_tensor`" in left(lowered)


@pytest.mark.parametrize(
    ("count", "net", "partitions"),
    [(1024, torch._int_mm, 1), (1025, torch._int_mm, 0), (1025, lambda x, y: torch._int_mm(x, y).float(), 1)],
    ids=["few", "many", "float32"],
)
def test_sums_of_integers_are_exact_or_become_float32(count: int, net: Any, partitions: int, tmp_path: Path) -> None:
    x, y = (torch.full(shape, -128, dtype=torch.int8) for shape in ((4, count), (count, 3)))
    program = Call(lambda x, y: (net(x, y), (x + 0.5).exp()))
    lowered = lower(program, x, y)
    assert sum("aten._int_mm.default" in operators for operators in taken(lowered)) == partitions
    check(lowered, program, tmp_path, x, y)


def test_integers_without_a_sign_are_multiplied_elsewhere() -> None:
    x, y = torch.ones(4, 8, dtype=torch.uint8), torch.ones(8, 3, dtype=torch.int8)
    lowered = lower(Call(lambda x, y: torch._int_mm(x, y).float().exp()), x, y)
    assert not any("aten._int_mm.default" in operators for operators in taken(lowered))


@pytest.mark.parametrize(
    ("net", "whole"),
    [
        (lambda x: x.round().clamp(-128, 127), True),
        (lambda x: (x.floor() + 3).clamp(0, 100).view(-1), True),
        (lambda x: x.clamp(-128, 127), False),
        (lambda x: x.round().clamp(-128, 128), False),
        (lambda x: x.round().clamp(min=-128), False),
        (lambda x: (x.round() * 0.5).clamp(-128, 127), False),
        (lambda x: x.round().clamp(-0.5, 127), False),
    ],
    ids=["rounded", "a sum", "not rounded", "out of range", "no bound", "halves", "half a bound"],
)
def test_whole_numbers_in_range_become_integers(net: Any, whole: bool, tmp_path: Path) -> None:
    x = torch.arange(-300.0, 300.0).view(20, 30) / 2 + 0.25
    program = Call(lambda x: net(x).to(torch.int8).float().exp())
    lowered = lower(program, x)
    assert (len(taken(lowered)), "OpenVINO converts float32 to int8 differently" in left(lowered)) == (
        1 if whole else 2,
        not whole,
    )
    check(lowered, program, tmp_path, x)


def test_a_number_that_may_be_nan_becomes_no_integer() -> None:
    program = Call(lambda x: x.round().clamp(-128, 127).to(torch.int8))
    lowered = lower(program, torch.randn(3, 4), **{"finite-only": False})
    assert taken(lowered) == [{"aten.round.default"}]
    assert left(lowered).count("`finite-only` is false") == 2


def test_8_bit_integers_are_added_to_float32_and_not_to_each_other(tmp_path: Path) -> None:
    x, y = torch.randn(3, 4), torch.randint(-128, 127, (3, 4), dtype=torch.int8)
    program = Call(lambda x, y: ((x + y).exp(), torch.sub(y, x, alpha=2), torch.add(x, y, alpha=100), y + y))
    lowered = lower(program, x, y)
    assert left(lowered) == "its result is int8"
    check(lowered, program, tmp_path, x, y)
