"""Models that PT2E quantized, in ONNX Runtime: what is taken, which kernels compute it, and how exactly."""

from __future__ import annotations

import math
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from support.quantized import conv_net, mlp, quantized, x86_quantizer, xnnpack_quantizer
from torch import Tensor, nn

import hatch_lower
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.numbers import Tolerance, number_difference

pytest.importorskip("onnxscript")
if find_spec("onnxruntime") is None:
    pytest.skip("ONNX Runtime is not installed", allow_module_level=True)

import onnx
import onnxruntime

from hatch_lower.backends.onnxruntime.compile import OnnxruntimeBackend
from hatch_lower.backends.onnxruntime.integers import LONGEST
from hatch_lower.backends.onnxruntime.run import EXACT_BYTES

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ops = torch.ops.quantized_decomposed


def lower(module: nn.Module, *args: Tensor, **options: Any) -> LoweredProgram:
    program = torch.export.export(module, args, strict=False)
    partitioner = OnnxruntimeBackend.partitioner({"finite-only": True, **options})
    return to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()


def reasons(lowered: LoweredProgram) -> list[str]:
    return list(lowered.reasons["forward"].values())


def model_of(lowered: LoweredProgram) -> onnx.GraphProto:
    (delegate,) = get_lowered_backend_modules(lowered.programs["forward"].graph_module)
    return onnx.load_from_string(delegate.processed_bytes).graph


def operators(lowered: LoweredProgram) -> Counter[str]:
    return Counter(node.op_type for node in model_of(lowered).node)


def right_operands(lowered: LoweredProgram) -> list[str]:
    """Return the names of what products of integers take on the right: integers and zero points."""
    graph = model_of(lowered)
    makers = {name: node for node in graph.node for name in node.output}
    found = []
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            found += [node.input[1], node.input[3]]
        if node.op_type == "Conv":
            found += makers[node.input[1]].input[::2]
    return found


def kernels(folder: Path) -> Counter[str]:
    """Return the operators that ONNX Runtime makes of a program's only partition."""
    written = folder.parent / "optimized.onnx"

    class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.optimized_model_filepath = str(written)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "SessionOptions", Options)
        hatch_lower.load(folder)
    return Counter(node.op_type for node in onnx.load(str(written), load_external_data=False).graph.node)


class Quantized(nn.Module):
    """A layer between pairs of quantize and dequantize, with weights that the caller chooses."""

    def __init__(self, layer: nn.Module, weight: Tensor, zero_points: Tensor | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("bias", layer.bias.detach().clone())
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.full((len(weight),), 0.5))
        self.register_buffer(
            "zeros", torch.zeros(len(weight), dtype=torch.int64) if zero_points is None else zero_points
        )

    def forward(self, x: Tensor) -> Tensor:
        given = 0, 255, torch.uint8
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.5, 3, *given), 0.5, 3, *given)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        if isinstance(self.layer, nn.Linear):
            return nn.functional.linear(x, weight, self.bias)
        return rounded(nn.functional.conv2d(x, weight, self.bias), 4096.0)


def rounded(result: Tensor, scale: float) -> Tensor:
    # without this, ONNX Runtime makes no convolution of integers
    given = scale, 128, 0, 255, torch.uint8
    return ops.dequantize_per_tensor(ops.quantize_per_tensor(result, *given), *given)


@pytest.mark.parametrize("quantizer", [xnnpack_quantizer, x86_quantizer])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_quantized_mlp_is_one_partition_and_as_eager(tmp_path: Path, quantizer: Any, *, dynamic: bool) -> None:
    module, (x,) = mlp(64, 16)
    eager = quantized(module, (x,), quantizer(dynamic=dynamic))
    lowered = lower(eager, x)
    assert not reasons(lowered)
    assert operators(lowered)["MatMulInteger"] == 3
    assert not operators(lowered)["Gemm"]
    model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    torch.manual_seed(0)
    for given in (x, torch.randn_like(x)):
        assert number_difference(eager(given).detach(), model(given), Tolerance(quantized=True))[0] == ""


@pytest.mark.parametrize("quantizer", [xnnpack_quantizer, x86_quantizer])
def test_a_quantized_convolution_stands_between_pairs(tmp_path: Path, quantizer: Any) -> None:
    module, (image,) = conv_net()
    eager = quantized(module, (image,), quantizer())
    lowered = lower(eager, image)
    assert not reasons(lowered)
    assert operators(lowered)["Conv"] == 2
    model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    assert number_difference(eager(image).detach(), model(image), Tolerance(quantized=True))[0] == ""


def test_onnx_runtime_convolves_integers(tmp_path: Path) -> None:
    module, (image,) = conv_net()
    nodes = kernels(save_program(lower(quantized(module, (image,)), image), tmp_path / "saved"))
    assert nodes["QLinearConv"] == 2
    assert nodes["MatMulInteger"] + nodes["MatMulIntegerToFloat"] == 1
    assert not nodes["Conv"]
    assert not nodes["Gemm"]


def test_a_weight_is_one_byte_a_number_in_the_file_of_constants(tmp_path: Path) -> None:
    module, inputs = mlp(256)
    sizes = []
    for each in (module, quantized(module, inputs)):
        folder = save_program(lower(each, *inputs), tmp_path / str(len(sizes)))
        sizes.append(sum(path.stat().st_size for path in folder.rglob("constants.safetensors")))
    assert sizes[1] < 0.3 * sizes[0]


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_the_greatest_products_do_not_saturate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: int
) -> None:
    # on this processor, in its own way and in that of processors without the instruction
    own = torch.cpu._is_vnni_supported()
    layers = [(nn.Linear(64, 8), (8, 64)), (nn.Conv2d(16, 8, 2), (8, 16, 2, 2))]
    for number, (layer, shape) in enumerate(layers):
        eager = Quantized(layer, torch.full(shape, sign * 127, dtype=torch.int8))
        x = torch.full((2, 64) if number == 0 else (1, 16, 4, 4), 200.0)
        folder = save_program(lower(eager, x), tmp_path / str(number))
        assert float(eager(x).abs().max()) > 200_000
        for has in sorted({own, False}):
            monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda has=has: has)
            found = kernels(folder)
            assert found["QLinearConv"] if number else found["MatMulInteger"] + found["MatMulIntegerToFloat"]
            torch.testing.assert_close(hatch_lower.load(folder)(x), eager(x), rtol=1e-6, atol=0)


class Twice(nn.Module):
    """Two products of bytes with one weight, or with equal ones, and one zero point."""

    def __init__(self, *shape: int, tied: bool, per_channel: bool) -> None:
        super().__init__()
        self.per_channel = per_channel
        weight = torch.full(shape, 127, dtype=torch.int8)
        weight[0] = -128
        self.register_buffer("first", weight)
        self.register_buffer("second", weight if tied else weight.clone())
        self.register_buffer("scales", torch.full(shape[:1], 2.0**-9))
        self.register_buffer("zeros", torch.zeros(shape[0], dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        for weight in (self.first, self.second):
            x = rounded(x, 1.0)
            if self.per_channel:
                given = ops.dequantize_per_channel(weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
            else:
                given = ops.dequantize_per_tensor(weight, 2.0**-9, 0, -128, 127, torch.int8)
            x = nn.functional.linear(x, given) if given.dim() == 2 else nn.functional.conv2d(x, given)
        return rounded(x, 1.0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("shape", [(16, 16), (16, 16, 1, 1)], ids=["linear", "convolution"])
def test_products_with_the_same_weight_and_zero_point_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], *, tied: bool, per_channel: bool
) -> None:
    eager = Twice(*shape, tied=tied, per_channel=per_channel)
    x = torch.randint(-128, 128, (2, 16, *shape[2:])).float()
    lowered = lower(eager, x)
    names = right_operands(lowered)
    assert len(set(names)) == len(names) == 4
    folder = save_program(lowered, tmp_path / "saved")
    # ONNX Runtime refuses a model if it makes a constant unsigned that two products share
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    found = kernels(folder)
    assert found["QLinearConv"] + found["MatMulInteger"] + found["MatMulIntegerToFloat"] == 2
    assert torch.equal(hatch_lower.load(folder)(x), eager(x))


def test_a_right_operand_that_a_call_computes_is_unsigned(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            facts = 1.0, 0, -128, 127, torch.int8
            both = [ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *facts), *facts) for x in (query, key)]
            return both[0] @ both[1]

    query, key = torch.full((2, 4, 64), 127.0), torch.full((2, 64, 8), -128.0)
    lowered = lower(Attention(), query, key)
    literals = {each.name: each.data_type for each in model_of(lowered).initializer}
    _, zero_point = right_operands(lowered)
    assert literals[zero_point] == onnx.TensorProto.UINT8
    folder = save_program(lowered, tmp_path / "saved")
    assert torch.equal(hatch_lower.load(folder)(query, key), Attention()(query, key))


def test_equal_operations_of_a_float_model_are_joined_on_any_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Equal(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.sin(x) + 1, torch.sin(x) * 2

    folder = save_program(lower(Equal(), torch.ones(3)), tmp_path / "saved")
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert kernels(folder)["Sin"] == 1


def test_sums_of_bytes_are_exact_where_a_processor_lacks_the_instruction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = mlp()
    folder = save_program(lower(quantized(module, inputs), *inputs), tmp_path / "saved")
    seen = []

    class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
        def add_session_config_entry(self, key: str, value: str) -> None:
            seen.append((key, value))
            super().add_session_config_entry(key, value)

    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    for has in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda has=has: has)
        hatch_lower.load(folder)
    assert [value for key, value in seen if key == EXACT_BYTES] == ["0", "1"]


def test_sums_that_may_overflow_stay_in_floating_point(tmp_path: Path) -> None:
    long = 1 << 17
    for bias in (True, False):
        eager = Quantized(nn.Linear(long, 2), torch.full((2, long), 127, dtype=torch.int8))
        eager.bias = eager.bias if bias else None
        x = torch.full((1, long), 200.0)
        lowered = lower(eager, x)
        assert not operators(lowered)["MatMulInteger"]
        model = hatch_lower.load(save_program(lowered, tmp_path / str(bias)))
        torch.testing.assert_close(model(x), eager(x), rtol=1e-3, atol=0)


def test_convolutions_whose_sums_may_overflow_stay_in_floating_point(tmp_path: Path) -> None:
    for channels, kernel in ((LONGEST // 8, "Conv"), (LONGEST // 16, "QLinearConv")):
        eager = Quantized(nn.Conv2d(channels, 4, 3), torch.ones(4, channels, 3, 3, dtype=torch.int8))
        folder = save_program(lower(eager, torch.rand(1, channels, 3, 3)), tmp_path / kernel)
        assert kernels(folder)[kernel] == 1


def test_so_many_products_of_two_bytes_cannot_overflow() -> None:
    """Each factor is up to 255 away from its zero point."""
    assert 255 * 255 * LONGEST < 2**31 <= 255 * 255 * 2 * LONGEST


def test_scales_of_the_dimension_that_is_summed_stay_in_floating_point(tmp_path: Path) -> None:
    class Turned(Quantized):
        axis = 0

        def forward(self, x: Tensor) -> Tensor:
            given = 0, 255, torch.uint8
            x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.5, 3, *given), 0.5, 3, *given)
            weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, self.axis, -128, 127, torch.int8)
            return x @ weight if x.dim() == 2 else rounded(nn.functional.conv2d(x, weight, self.bias), 1024.0)

    torch.manual_seed(0)
    cases = [
        ((4, 4), torch.rand(2, 4), 0, "MatMul"),
        ((4, 4), torch.rand(2, 4), 1, "MatMulInteger"),
        ((4, 4, 3, 1), torch.rand(1, 4, 5, 5), 1, "Conv"),
        ((8, 4, 3, 1), torch.rand(1, 4, 5, 5), 1, "Conv"),
        ((4, 4, 3, 1), torch.rand(1, 4, 5, 5), 0, "QLinearConv"),
    ]
    for number, (shape, x, axis, kernel) in enumerate(cases):
        eager = Turned(nn.Linear(4, shape[0]), torch.arange(math.prod(shape), dtype=torch.int8).reshape(shape))
        eager.bias.zero_()
        eager.scales, eager.zeros = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(4, dtype=torch.int64)
        eager.axis = axis
        folder = save_program(lower(eager, x * 50), tmp_path / str(number))
        found = kernels(folder)
        assert found[kernel] == 1, found
        torch.testing.assert_close(hatch_lower.load(folder)(x * 50), eager(x * 50))


@pytest.mark.parametrize(
    ("layer", "shape", "kernel"),
    [(nn.Linear(16, 4), (2, 16), "Gemm"), (nn.Conv2d(16, 4, 1), (2, 16, 3, 3), "Conv")],
    ids=["linear", "convolution"],
)
def test_float_weights_between_integers_stay_as_they_are(
    layer: nn.Module, shape: tuple[int, ...], kernel: str, tmp_path: Path
) -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return rounded(self.layer(rounded(x, 0.01)), 0.001)

    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-0.01, 0.01)
        layer.get_parameter("weight").flatten()[0] = 1.0  # of which the others are a fraction of one step of 8 bits
    eager, x = Between().eval(), torch.rand(shape)
    x[:, 0] = 0
    folder = save_program(lower(eager, x), tmp_path / "saved")
    assert kernels(folder)[kernel] == 1
    expected = eager(x).detach()
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(hatch_lower.load(folder)(x), expected, rtol=0, atol=1e-6)


def test_biases_of_convolutions_of_integers_are_kept(tmp_path: Path) -> None:
    eager = Quantized(nn.Conv2d(2, 4, 1), torch.ones(4, 2, 1, 1, dtype=torch.int8))
    eager.bias.copy_(torch.tensor([-4.0, 8.0, -100.0, 60.0]) * 4096)
    x = torch.rand(1, 2, 3, 3)
    folder = save_program(lower(eager, x), tmp_path / "saved")
    assert kernels(folder)["QLinearConv"] == 1
    assert torch.equal(hatch_lower.load(folder)(x), eager(x))


def test_a_bias_that_32_bits_cannot_hold_stays_outside(tmp_path: Path) -> None:
    eager = Quantized(nn.Conv2d(2, 4, 1), torch.zeros(4, 2, 1, 1, dtype=torch.int8))
    eager.scales[2:] = torch.finfo(torch.float32).eps  # of channels that are 0, as torch's observers say
    eager.bias.copy_(torch.tensor([40960.0, -40960.0, 100.0, -40960.0]))
    lowered = lower(eager, torch.rand(1, 2, 3, 3))
    assert reasons(lowered) == ["`b_bias` is not a 32-bit multiple of the scale of the products"]
    x = torch.rand(1, 2, 3, 3)
    assert torch.equal(hatch_lower.load(save_program(lowered, tmp_path / "saved"))(x), eager(x))
    eager.bias[3] = 100.0
    lowered = lower(eager, x)
    assert reasons(lowered) == []
    assert torch.equal(hatch_lower.load(save_program(lowered, tmp_path / "small"))(x), eager(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_integers_that_become_another_dtype_than_float32_are_left(tmp_path: Path, dtype: torch.dtype) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scales", torch.tensor([0.1, 0.2, 0.3]))
            self.register_buffer("zeros", torch.tensor([0, 1, 2]))

        def forward(self, x: Tensor) -> Tensor:
            given = -128, 127, torch.int8
            whole = ops.dequantize_per_tensor(x, 0.3, 3, *given, out_dtype=dtype)
            return whole * ops.dequantize_per_channel(x, self.scales, self.zeros, 0, *given, out_dtype=dtype)

    eager, x = Named(), torch.arange(-6, 6, dtype=torch.int8).reshape(3, 4)
    lowered = lower(eager, x)
    name = str(dtype).removeprefix("torch.")
    assert len([each for each in reasons(lowered) if "dequantize" in each and name in each]) == 2 * (name != "float32")
    result = hatch_lower.load(save_program(lowered, tmp_path / "saved"))(x)
    assert result.dtype is dtype
    torch.testing.assert_close(result, eager(x))


def test_products_of_more_dimensions_are_of_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager = Quantized(nn.Linear(8, 4), torch.randint(-128, 127, (4, 8), dtype=torch.int8))
    x = torch.randn(2, 3, 8) * 50
    lowered = lower(eager, x)
    assert operators(lowered)["MatMulInteger"] == 1
    model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    torch.testing.assert_close(model(x), eager(x), rtol=1e-6, atol=1e-5)


def test_zero_points_that_the_integers_have_not_are_not_taken() -> None:
    weight = torch.ones(4, 8, dtype=torch.int8)
    outside = Quantized(nn.Linear(8, 4), weight, torch.tensor([0, 1, 2, 1000]))
    found = "`b_zeros` holds zero points outside of `int8`"
    assert reasons(lower(outside, torch.ones(2, 8))) == [found]

    weights = torch.ones(4, 2, 3, 3, dtype=torch.int8)
    channels = Quantized(nn.Conv2d(2, 4, 3), weights, torch.tensor([0, 1, 2, 3]))
    found = "`b_zeros` holds different zero points for the channels of a convolution"
    assert reasons(lower(channels, torch.ones(1, 2, 5, 5))) == [found]

    class Literal(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.dequantize_per_tensor(x, 0.5, 300, -128, 127, torch.int8) + 1

    assert "a zero point of 300 outside of `int8` is not taken" in reasons(lower(Literal(), weight))


def test_zero_points_that_nobody_knows_are_not_taken() -> None:
    class Given(nn.Module):
        def forward(self, x: Tensor, zeros: Tensor) -> Tensor:
            return ops.dequantize_per_channel(x, torch.ones(4), zeros, 0, -128, 127, torch.int8) + 1

    found = reasons(lower(Given(), torch.ones(4, 2, dtype=torch.int8), torch.zeros(4, dtype=torch.int64)))
    assert "`zeros` holds zero points that are known at run time only" in found


def test_quantizing_nan_is_taken_of_finite_numbers_only() -> None:
    module, inputs = mlp()
    found = reasons(lower(quantized(module, inputs), *inputs, **{"finite-only": False}))
    assert any(
        "`quantized_decomposed.quantize_per_tensor.default` gives other results than eager for NaN" in each
        for each in found
    )


def test_other_providers_get_the_pairs() -> None:
    module, inputs = mlp()
    lowered = lower(quantized(module, inputs), *inputs, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert operators(lowered)["Gemm"] == 3


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_torchs_product_of_integers_is_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return torch._int_mm(x, w.t())

    torch.manual_seed(0)
    limits = torch.iinfo(dtype)
    x, w = torch.randint(limits.min, limits.max, (4, 16), dtype=dtype), torch.randint(-128, 127, (8, 16)).to(torch.int8)
    lowered = lower(Product(), x, w)
    assert operators(lowered)["MatMulInteger"] == 1
    assert torch.equal(hatch_lower.load(save_program(lowered, tmp_path / "saved"))(x, w), Product()(x, w))
