"""Linear layers of float32 that AOTInductor's code gives to oneDNN, and the activations fused into such layers."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from hatch_lower import load
from hatch_lower.backends.aoti.compile import AotiBackend, compiling, generate_all
from hatch_lower.backends.aoti.configuration import parse_options
from hatch_lower.backends.aoti.layers import LARGE
from hatch_lower.backends.aoti.prepare import AotiCopy
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN computes float32 on x86-64 only"),
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

WIDTH = 512
ROWS = LARGE // WIDTH**2
LINEAR = torch.ops.mkldnn._linear_pointwise.default


class Layer(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor] | None = None, *, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return self.act(result) if self.act else result


def edge_of(module: nn.Module, x: Tensor, shapes: Any = None) -> ExportedProgram:
    program = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=False)
    return to_edge(program, keep=[torch.ops.aten.linear.default])


def linears(program: ExportedProgram, *, onednn: bool = True) -> int:
    return sum(node.target is LINEAR for node in AotiCopy(program, onednn=onednn).graph.nodes)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (2, ROWS, WIDTH)])
@torch.no_grad()
def test_a_large_layer_gives_eagers_numbers(shape: tuple[int, ...], bias: bool) -> None:
    eager, x = Layer(bias=bias), torch.randn(shape)
    program = edge_of(eager, x)
    copied = AotiCopy(program, onednn=True)
    constants = {f"c{place}": constant_of(program, spec) for place, spec in enumerate(constant_specs(program))}
    (result,) = torch.fx.GraphModule(constants, copied.graph)(x)
    assert linears(program) == 1
    torch.testing.assert_close(result, eager(x))


def test_a_layer_of_few_rows_stays_a_product_of_the_blas_library() -> None:
    assert linears(edge_of(Layer(), torch.randn(ROWS - 1, WIDTH))) == 0


@pytest.mark.parametrize(("width", "count"), [(WIDTH, 1), (16, 0)])
def test_an_unknown_number_of_rows_leaves_the_choice_to_the_weights(width: int, count: int) -> None:
    shapes = ({0: Dim("rows", max=99)},)
    assert linears(edge_of(nn.Linear(width, width), torch.randn(3, width), shapes)) == count


class Changed(Layer):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        self.layer.weight.add_(1)
        return result


class Transposed(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layer.weight = nn.Parameter(self.layer.weight.detach().t())


class Computed(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.layer.weight * 2)


@pytest.mark.parametrize("kind", [Changed, Transposed, Computed])
@torch.no_grad()
def test_weights_that_change_or_do_not_lie_in_order_stay_with_the_blas_library(kind: type[Layer]) -> None:
    assert linears(edge_of(kind(), torch.randn(ROWS, WIDTH))) == 0


@pytest.mark.parametrize("shape", [(), (1,), (1, WIDTH), (ROWS, WIDTH), (ROWS, 1)], ids=str)
@torch.no_grad()
def test_a_bias_of_another_form_than_a_row_stays_with_the_blas_library(shape: tuple[int, ...]) -> None:
    # eager broadcasts any bias; oneDNN reads a number for each column
    layer = Layer()
    layer.layer.bias = nn.Parameter(torch.randn(shape))
    assert linears(edge_of(layer, torch.randn(ROWS, WIDTH))) == 0


def test_other_numbers_and_other_processors_stay_with_the_blas_library() -> None:
    x = torch.randn(ROWS, WIDTH)
    assert linears(edge_of(Layer().double(), x.double())) == 0
    assert linears(edge_of(Layer(), x[0])) == 0
    assert linears(edge_of(Layer(), x), onednn=False) == 0


def code_of(module: nn.Module, x: Tensor, isa: str = "x86-64-v3") -> str:
    options = parse_options({"isa": isa})
    with compiling(options):
        ((_, generated),) = generate_all([edge_of(module, x)], options)
    return generated.wrapper


UNLIKE = {
    "relu": F.relu,
    "added": lambda x: F.relu(x + 1),
    "leaky": lambda x: F.leaky_relu(x, 0.0),
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -2, 3),
    "clamp": lambda x: x.clamp(0, 1),
    "limits": lambda x: x.clamp(min=0).clamp(max=1),
    "hardsigmoid": F.hardsigmoid,
}


@pytest.mark.parametrize("name", UNLIKE)
def test_an_activation_that_would_lose_nan_is_not_fused(name: str) -> None:
    code = code_of(Layer(UNLIKE[name]), torch.randn(ROWS, WIDTH))
    assert code.count("aoti_torch_cpu__linear_pointwise(") == 1
    assert '"none"' in code


def of_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))


def of_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (torch.tanh((x + x * x * x * 0.044715) * 0.7978845608028654) + 1)


GELUS = (of_erf, of_tanh)


@pytest.mark.parametrize("gelu", GELUS)
def test_a_gelu_that_a_model_computes_is_not_fused(gelu: Callable[[Tensor], Tensor]) -> None:
    assert '"gelu"' not in code_of(Layer(gelu), torch.randn(ROWS, WIDTH), "x86-64-v4")


@pytest.mark.parametrize(("isa", "attribute"), [("x86-64-v3", "none"), ("x86-64-v4", "gelu")])
def test_gelu_is_fused_with_avx512_only(isa: str, attribute: str) -> None:
    assert f'"{attribute}"' in code_of(Layer(F.gelu), torch.randn(ROWS, WIDTH), isa)


def explicit_relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * 0.0)


def test_a_layer_whose_result_is_compared_stays_with_the_blas_library() -> None:
    assert linears(edge_of(Layer(explicit_relu), torch.randn(ROWS, WIDTH))) == 0


def compiled(module: nn.Module, folder: Path, x: Tensor, shapes: Any = None, isa: str = "x86-64-v3") -> Any:
    program = torch.export.export(module, (x,), dynamic_shapes=shapes)
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({"isa": isa})])
    return load(save_program(lowered.to_executorch(), folder))


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_activation_keeps_the_sign_of_zero(tmp_path: Path) -> None:
    class Reciprocals(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(1 / act(x) for act in (F.relu, F.relu6, lambda x: x.clamp(0, 2), lambda x: x.clamp(0)))

    x = torch.randn(99, 16) * 0.0
    torch.testing.assert_close(compiled(Reciprocals(), tmp_path / "saved", x)(x), Reciprocals()(x), rtol=0, atol=0)


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_layer_gives_eagers_numbers_and_nan(tmp_path: Path) -> None:
    acts = [*UNLIKE.values(), lambda x: F.gelu(x, approximate="tanh"), F.silu, F.hardswish, explicit_relu, *GELUS]

    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.gelu = nn.ModuleList([Layer(each) for each in acts]), Layer(F.gelu)

        def forward(self, x: Tensor) -> Tensor:
            added = self.layers[0].layer(x) + x
            smooth = self.gelu(x.clamp(-9, 9))  # eager's own `gelu` of infinity is NaN in some calls
            return torch.cat([added, smooth, *(layer(x) for layer in self.layers)], -1)

    eager, x = Several(), torch.randn(ROWS, WIDTH)
    x[0, 0], x[1, 1], x[2] = float("nan"), float("inf"), 0.0
    model = compiled(eager, tmp_path / "saved", x, {"x": {0: Dim("rows", max=99)}})
    for rows in (x, x[:1], x[:5]):
        torch.testing.assert_close(model(rows), eager(rows), equal_nan=True)
