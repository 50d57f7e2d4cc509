"""Models that PT2E quantized, in AOTInductor: what is taken, and linear layers over integers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.older import UNSIGNED_PRODUCTS
from support.quantized import conv_net, mlp, quantized, x86_quantizer, xnnpack_quantizer
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

import hatch_lower
from hatch_lower.backends.aoti import run
from hatch_lower.backends.aoti.compile import AotiBackend, AotiPartitioner
from hatch_lower.backends.aoti.configuration import ISAS, parse_options
from hatch_lower.backends.aoti.prepare import AotiCopy
from hatch_lower.backends.aoti.run import AotiDelegate
from hatch_lower.backends.call_map import call_facts
from hatch_lower.errors import BackendError, ProgramError
from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.backend.backend_details import PreprocessResult
from hatch_lower.exir.delegate import executorch_call_delegate
from hatch_lower.exir.graph.state import constant_of, constant_placeholders, constant_specs
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.format.plan import read_plan
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.numbers import Tolerance, number_difference
from hatch_lower.runtime.selection import cpu_flags
from hatch_lower.runtime.torch_private import inductor
from hatch_lower.runtime.torch_private.inductor import packed_weight

pytestmark = pytest.mark.torch

VNNI = "x86-64-v4-vnni"
ops = torch.ops.quantized_decomposed


def edge_of(module: nn.Module, *args: Tensor, shapes: Any = None) -> ExportedProgram:
    program = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
    return to_edge(program, keep=[torch.ops.aten.linear.default, torch.ops.aten.conv2d.default])


def written(program: ExportedProgram, *, multiplies: bool = True) -> tuple[Any, list[str]]:
    """Return what inductor is given, with the program's weights, to call it as it is, and its operators."""
    copied = AotiCopy(program, multiplies=multiplies)
    tensors = [constant_of(program, spec) for spec in constant_specs(program)]
    given = {f"c{place}": tensor for place, tensor in enumerate(tensors)}
    for name, places in copied.packed.items():
        where = asdict(places)
        given[name] = packed_weight(tensors[where.pop("constant")], **where)
    assert given.keys() == copied.attributes.keys()
    module = GraphModule(given, copied.graph)
    return module, [str(node.target) for node in copied.graph.nodes if node.op == "call_function"]


class Layer(nn.Module):
    """A linear layer, quantized with zero points on both sides."""

    def __init__(self, dtype: torch.dtype = torch.uint8, *, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.given = torch.iinfo(dtype).min, torch.iinfo(dtype).max, dtype
        self.register_buffer("weight", torch.randint(-128, 127, (5, 16), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(5) + 0.5)
        self.register_buffer("zeros", torch.tensor([0, 3, -7, 128, 1000]))
        self.bias = nn.Parameter(torch.randn(5)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.05, 11, *self.given), 0.05, 11, *self.given)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        return nn.functional.linear(x, weight, self.bias)


@UNSIGNED_PRODUCTS
@pytest.mark.parametrize("quantizer", [xnnpack_quantizer, x86_quantizer])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_quantized_mlp_is_one_partition_over_integers(quantizer: Any, *, dynamic: bool) -> None:
    module, (x,) = mlp()
    eager = quantized(module, (x,), quantizer(dynamic=dynamic))
    program = edge_of(eager, x)
    found = AotiPartitioner(parse_options({})).partition(program)
    assert not found.reasons
    assert len(found.partition_tags) == 1
    function, operators = written(edge_of(eager, x))
    assert operators.count("aten._int_mm.default") == 3
    assert not any("choose_qparams" in operator for operator in operators)
    torch.manual_seed(0)
    for given in (x, torch.randn_like(x)):
        found = number_difference(eager(given).detach(), function(given)[0].detach(), Tolerance(quantized=True))
        assert found[0] == ""


def test_a_quantized_convolutional_net_is_one_partition() -> None:
    module, inputs = conv_net()
    found = AotiPartitioner(parse_options({})).partition(edge_of(quantized(module, inputs), *inputs))
    assert not found.reasons
    assert len(found.partition_tags) == 1


def test_a_pool_between_integers_is_none_that_inductor_knows() -> None:
    """Its own operator for that has no native call."""

    class Pool(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            given = 0.05, 3, -128, 127, torch.int8
            x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *given), *given)
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(F.max_pool2d(x, 2), *given), *given)

    x = torch.randn(1, 2, 4, 4)
    function, operators = written(edge_of(Pool(), x))
    assert not any("dequantize" in operator for operator in operators)
    assert torch.equal(function(x)[0], Pool()(x))


def test_quantizations_without_code_are_not_taken() -> None:
    class Others(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            given = -128, 127, torch.int8
            codes = ops.quantize_per_tensor(x, 0.5, 0, *given)
            return codes, ops.dequantize_per_channel(codes, torch.ones(2), None, 0, *given)

    found = AotiPartitioner(parse_options({})).partition(edge_of(Others(), torch.ones(2, 3, dtype=torch.float16)))
    assert set(found.reasons.values()) == {
        "inductor has no native code that quantizes float16",
        "inductor has no native code for a quantization without zero points",
    }


@pytest.mark.parametrize("dtype", [torch.int8, pytest.param(torch.uint8, marks=UNSIGNED_PRODUCTS)])
@pytest.mark.parametrize("rows", [(3,), (0,), (2, 3)])
def test_zero_points_of_both_operands_are_accounted_for(dtype: torch.dtype, rows: tuple[int, ...]) -> None:
    for bias in (True, False):
        eager, x = Layer(dtype, bias=bias), torch.randn(*rows, 16)
        function, operators = written(edge_of(eager, x))
        assert "aten._int_mm.default" in operators
        torch.testing.assert_close(function(x)[0], eager(x).detach(), rtol=1e-5, atol=1e-3)


@UNSIGNED_PRODUCTS
def test_large_zero_points_and_scales_of_64_bits_are_exact() -> None:
    class Long(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.randint(-128, 127, (5, 16000), dtype=torch.int8)
            self.scales = self.scales.double()
            self.zeros = torch.tensor([0, 3, -7, 128, 100000])

    eager, x = Long(), torch.rand(2, 16000) * 12
    function, operators = written(edge_of(eager, x))
    assert "aten._int_mm.default" in operators
    (found,) = function(x)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, eager(x).detach(), rtol=1e-4, atol=1.0)


@UNSIGNED_PRODUCTS
def test_one_size_may_be_known_at_run_time_only() -> None:
    eager, rows = Layer(), torch.export.Dim("rows", min=2, max=9)
    function, operators = written(edge_of(eager, torch.randn(2, 3, 16), shapes={"x": {0: rows}}))
    assert "aten._int_mm.default" in operators
    x = torch.randn(7, 3, 16)
    torch.testing.assert_close(function(x)[0], eager(x).detach(), rtol=1e-5, atol=1e-3)
    both = {"x": {0: rows, 1: torch.export.Dim("more", min=2, max=9)}}
    assert "aten._int_mm.default" not in written(edge_of(eager, torch.randn(2, 3, 16), shapes=both))[1]


class Convolution(nn.Module):
    """A convolution, quantized with zero points on both sides. Without VNNI, too, no sum of its products saturates."""

    def __init__(
        self, dtype: torch.dtype = torch.uint8, *, channels: int = 4, groups: int = 1, bias: bool = True, **where: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.given, self.where = (torch.iinfo(dtype).min, torch.iinfo(dtype).max, dtype), where
        self.channels, self.groups = channels, groups
        self.register_buffer("weight", torch.randint(-63, 64, (6, channels // groups, 3, 2), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(6) + 0.5)
        self.register_buffer("zeros", torch.tensor([0, 3, -7, 128, 1000, 0]))
        self.bias = nn.Parameter(torch.randn(6)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.05, 11, *self.given), 0.05, 11, *self.given)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        return F.conv2d(x, weight, self.bias, groups=self.groups, **self.where)


CONVOLVED = "onednn.qconv_pointwise.tensor"


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize(
    "where",
    [
        {},
        {"stride": 2, "bias": False},
        {"padding": (2, 1), "stride": (1, 3)},
        {"dilation": (1, 2), "padding": 1},
        {"channels": 48, "groups": 2, "bias": False},
        {"channels": 72, "groups": 3, "padding": (2, 1), "stride": (1, 2), "dilation": (2, 1)},
    ],
)
def test_zero_points_of_a_convolution_are_accounted_for(dtype: torch.dtype, where: dict[str, Any]) -> None:
    eager = Convolution(dtype, **where)
    for x in (torch.randn(2, eager.channels, 9, 8), torch.randn(0, eager.channels, 9, 8)):
        function, operators = written(edge_of(eager, x))
        assert CONVOLVED in operators
        torch.testing.assert_close(function(x)[0], eager(x).detach(), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (48, 2)])
def test_sizes_of_a_convolution_may_be_known_at_run_time_only(channels: int, groups: int) -> None:
    eager = Convolution(padding=1, channels=channels, groups=groups)
    shapes = {"x": {0: torch.export.Dim("rows", min=1, max=9), 2: torch.export.Dim("height", min=4, max=99)}}
    function, operators = written(edge_of(eager, torch.randn(2, channels, 9, 8), shapes=shapes))
    assert CONVOLVED in operators
    for x in (torch.randn(1, channels, 5, 8), torch.randn(9, channels, 17, 8)):
        torch.testing.assert_close(function(x)[0], eager(x).detach(), rtol=1e-5, atol=1e-2)


def test_weights_are_laid_out_for_the_image_where_its_size_is_known() -> None:
    sizes = {"x": {0: torch.export.Dim("rows", min=1, max=9), 2: torch.export.Dim("height", min=50, max=99)}}
    for dilation, size in ((2, (1, 32, 8)), (20, (1, 60, 8))):  # an image that the kernel fits into
        program = edge_of(Convolution(dilation=(dilation, 1)), torch.randn(2, 4, 60, 8), shapes=sizes)
        (places,) = AotiCopy(program, multiplies=True).packed.values()
        assert places.size == size


def test_a_convolution_that_oneDNN_has_not_is_in_floating_point() -> None:  # noqa: N802
    class Wide(Convolution):  # its zero point is of no byte
        def forward(self, x: Tensor) -> Tensor:
            x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.05, 300, *self.given), 0.05, 300, *self.given)
            weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
            return F.conv2d(x, weight, self.bias)

    class Changing(Convolution):  # a copy of its weights would stay what they were
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            self.weight.add_(1)
            return result

    x = torch.randn(2, 4, 9, 8)
    for eager in (Wide(), Changing()):
        assert CONVOLVED not in written(edge_of(eager, x))[1]
    assert CONVOLVED not in written(edge_of(Convolution(), x[0]))[1]  # without a dimension for several


@pytest.mark.parametrize(("channels", "groups"), [(6, 6), (46, 2)])
def test_groups_of_few_channels_are_in_floating_point(channels: int, groups: int) -> None:
    eager = Convolution(channels=channels, groups=groups)
    assert CONVOLVED not in written(edge_of(eager, torch.randn(2, channels, 9, 8)))[1]


def test_weights_that_another_method_changes_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(programs: list[ExportedProgram], compile_specs: object) -> list[PreprocessResult]:
        return [PreprocessResult(b"", suffix="so") for _ in programs]

    monkeypatch.setattr(AotiBackend, "preprocess_many", compile_nothing)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Convolution()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    class Change(Both):
        def forward(self, x: Tensor) -> Tensor:
            self.layer.weight.add_(1)
            return x + 1

    x = torch.randn(2, 4, 9, 8)
    using, changing = Both(), Change()
    changing.layer = using.layer
    programs = {
        name: to_edge(torch.export.export(module, (x,), strict=False), keep=[torch.ops.aten.conv2d.default])
        for name, module in (("forward", using), ("change", changing))
    }
    partitioner = AotiBackend.partitioner({})
    lowered = lower_methods(programs, dict.fromkeys(programs, partitioner))
    (call,) = (node for node in lowered["forward"].program.graph.nodes if node.target is executorch_call_delegate)
    assert "layer.weight" in {
        str(spec.target)
        for node, spec in constant_placeholders(lowered["forward"].program).items()
        if node in call.all_input_nodes
    }


def test_processors_that_may_saturate_compute_in_floating_point() -> None:
    assert [name for name, isa in ISAS.items() if isa.multiplies] == [VNNI]
    eager, x = Layer(), torch.randn(3, 16)
    function, operators = written(edge_of(eager, x), multiplies=False)
    assert "aten._int_mm.default" not in operators
    torch.testing.assert_close(function(x)[0], eager(x).detach())


@pytest.mark.slow
def test_a_compiled_model_gives_eagers_numbers_with_a_byte_a_weight(tmp_path: Path) -> None:
    module, (x,) = conv_net(64)
    module.get_submodule("features").append(nn.Conv2d(64, 64, 3, stride=2, groups=2))
    eager = quantized(module, (x,))
    has_vnni = "avx512_vnni" in cpu_flags(Path("/proc/cpuinfo")) and inductor.multiplies_unsigned_bytes()
    partitioner = AotiBackend.partitioner({"isa": VNNI} if has_vnni else {})
    exported = torch.export.export(eager, (x,), strict=False)
    lowered = to_edge_transform_and_lower(exported, partitioner=[partitioner]).to_executorch()
    folder = save_program(lowered, tmp_path / "saved")
    (plan,) = folder.rglob("default.json")
    (entry,) = read_plan(plan.read_bytes(), "plan").delegates
    assert entry.info.get("multiplies", False) is has_vnni
    packed = entry.info.get("packed", {}).values()
    places = [(given["padding"], given["groups"], given["size"]) for given in packed]
    assert places == [([1, 1], 1, [2, 8, 8]), ([1, 1], 1, [2, 8, 8]), ([0, 0], 2, [2, 8, 8])] * has_vnni
    model = hatch_lower.load(folder)
    found = model(x)
    assert number_difference(eager(x).detach(), found, Tolerance(quantized=True))[0] == ""
    assert found.stride() == eager(x).stride()
    with torch.no_grad():
        for _ in range(3):  # what a layout of weights holds is not used up
            assert torch.equal(model.clone()(x), found)
    weights = sum(parameter.numel() for parameter in module.parameters())
    assert sum(path.stat().st_size for path in folder.rglob("constants.safetensors")) < 1.2 * weights


PLACES = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "size": [1, 4, 4]}


@pytest.mark.parametrize(
    "changed",
    [
        {"constant": 1},
        {"groups": 0},
        {"stride": [1]},
        {"dilation": [1, 0]},
        {"padding": [-1, 0]},
        {"size": [4, 4]},
        {"size": [1, 0, 4]},
    ],
)
def test_a_layout_that_no_convolution_has_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    packed = {"constant": 0, "zero_point": 0, "groups": 1, **PLACES, **changed}
    info = {"constants": 1, "bound": [], "openmp": [], "packed": {"p0": packed}, **call_facts(0, [], [])}
    with pytest.raises(ProgramError) as caught:
        AotiDelegate.load(DelegateBlob(tmp_path / "net.so", info), [torch.zeros(1, 1, 1, 1, dtype=torch.int8)])
    known = {"constant": "constant 1 of 1", "groups": "a convolution in 0 groups"}
    assert caught.value.found == known.get(next(iter(changed)), f"a convolution with {PLACES | changed}")


def test_a_layout_that_the_weights_have_not_is_refused(tmp_path: Path) -> None:
    for shape, groups in (((1, 1, 9, 9), 1), ((4, 1, 3, 3), 3)):
        where = {"zero_point": 0, "groups": groups, **PLACES}
        with pytest.raises(ProgramError) as caught:
            run.pack(DelegateBlob(tmp_path / "net.so", {}), torch.zeros(shape, dtype=torch.int8), where)
        assert caught.value.found == f"weights of {shape} for a convolution with {where}"


@UNSIGNED_PRODUCTS
def test_integers_are_not_multiplied_where_their_sums_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = DelegateBlob(
        tmp_path / "net.so", {"constants": 0, "bound": [], "openmp": [], "multiplies": True, **call_facts(0, [], [])}
    )
    monkeypatch.setattr(run, "sums_integers", lambda: False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with pytest.raises(ProgramError) as caught:
        AotiDelegate.load(blob, [])
    assert str(caught.value) == (
        "a compiled partition multiplies integers, and torch's sums of them overflow in this process\n"
        f"  where: {tmp_path / 'net.so'}\n  found: `ONEDNN_MAX_CPU_ISA` is 'AVX2'\n"
        "  to do: set `ONEDNN_MAX_CPU_ISA` to `ALL` before the process starts; on a processor without VNNI load another"
        " recipe"
    )


def test_a_torch_that_multiplies_no_unsigned_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (inductor, run):
        monkeypatch.setattr(module, "multiplies_unsigned_bytes", lambda: False)
    with pytest.raises(BackendError) as built:
        parse_options({"isa": VNNI})
    assert built.value.found == f"`isa` is '{VNNI}', and torch {torch.__version__} multiplies no unsigned bytes"
    info = {"constants": 0, "bound": [], "openmp": [], "multiplies": True, **call_facts(0, [], [])}
    with pytest.raises(ProgramError) as loaded:
        AotiDelegate.load(DelegateBlob(tmp_path / "net.so", info), [])
    assert str(loaded.value) == (
        "a compiled partition multiplies integers, and this torch multiplies no unsigned bytes\n"
        f"  where: {tmp_path / 'net.so'}\n  found: torch {torch.__version__}\n"
        "  to do: install a later torch, or load another recipe"
    )


@UNSIGNED_PRODUCTS
@pytest.mark.skipif("avx512_vnni" not in cpu_flags(Path("/proc/cpuinfo")), reason="the processor has no VNNI")
def test_the_variable_that_takes_the_instructions_away_is_noticed() -> None:
    code = "from hatch_lower.backends.aoti.run import sums_integers; print(sums_integers())"
    for value, expected in (("AVX2", "False"), ("ALL", "True")):
        environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": value}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
