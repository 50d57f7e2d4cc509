"""Numbers that OpenVINO computes in the kernel of the operation before: eager's, whatever is fused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.export import Dim

from hatch_lower import load
from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

if find_spec("openvino") is None:
    pytest.skip("OpenVINO is not installed", allow_module_level=True)

from hatch_lower.backends.openvino.compile import OpenvinoBackend
from hatch_lower.backends.openvino.library import engine, import_openvino
from hatch_lower.backends.openvino.prepare import joined_heads
from hatch_lower.backends.openvino.run import keep_numbers

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]


class Quotients(nn.Module):
    """Numbers divided by what several kinds of kernels compute."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.row = nn.Parameter(torch.rand(1, 8) + 1)
        self.convolution, self.linear = nn.Conv1d(6, 6, 3, padding=1), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        length = torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)  # as in linear attention
        norms = x * length, torch.rsqrt(x.abs().amax((1, 2))), torch.rsqrt(x.pow(2).sum(1)), x * torch.rsqrt(1 + x * x)
        reductions = 2 / (x.abs().sum(-1) + 1), self.row / (x.abs().sum(1) + 1), 1 / x.exp().prod(2)
        kernels = 2 / (self.convolution(x).abs() + 1), 3 / (self.linear(x) + 50), self.row / (self.linear(x) + 50)
        return *norms, *reductions, *kernels, x.exp().sum(1) / 1.5, x.mean(2) / 0.7, 5 / F.softmax(x, -1)


class Columns(nn.Module):
    """Constants of several numbers beside reductions."""

    def __init__(self) -> None:
        super().__init__()
        self.column = nn.Parameter(torch.arange(1.0, 7.0).reshape(1, 6, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        total = x.sum(-1, keepdim=True)
        sums = total * self.column, total + self.column, total - self.column, self.column - total, total / self.column
        later = torch.relu(x.amax(-1, keepdim=True) * 2 + 1) - self.column, x.sum(-1).unsqueeze(-1) * self.column
        return *sums, *later, torch.sqrt(x.abs().mean(-1, keepdim=True) + self.column)


class BatchNorms(nn.Module):
    """Batch norms and slopes of channels behind reductions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.slopes = nn.BatchNorm1d(6), nn.PReLU(6)
        for parameter in (*self.norm.parameters(), *self.norm.buffers(), *self.slopes.parameters()):
            parameter.data = torch.arange(1, 7).to(parameter) / 3 if parameter.dim() else parameter

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pooled = self.norm(x.mean(2)), self.norm(x.amax(2, keepdim=True)), F.relu(self.norm(x.sum(2))) + 1
        return *pooled, self.slopes(x.mean(-1))


class Variances(nn.Module):
    """Quotients of reductions and the number of reduced elements, which OpenVINO computes of the sizes."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.var(1, keepdim=True), x.var(1) + 1, x.var(1).sqrt(), x.var((0, 1)), x.var(2), x.var((1, 2))


class Activations(nn.Module):
    """Activations of reductions over a dimension in the middle."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        kinds = F.hardswish, F.hardsigmoid, F.silu, F.mish, F.elu, torch.erf, torch.floor, torch.relu
        # sums of different numbers: a result with several users is in no other kernel
        return tuple(kind((x + place).sum(1)) for place, kind in enumerate(kinds))


class Joined(nn.Module):
    """Absolute values of a one-dimensional concatenation that others read."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        joined = torch.cat([x[0, 0] - 1, x[0, 1], x[1, 0] * 2])
        return joined, joined.abs(), joined + joined.abs(), torch.sin(joined)


class Transposed(nn.Module):
    """Transpositions of a size of 1 behind reductions."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x[:, None]
        column = torch.arange(1.0, 9.0)[:, None]
        means = x.mean(2).transpose(1, 2) * column, x.amax(2).transpose(1, 2).softmax(1), x.sum((0, 2)).t()
        return *means, x.norm(dim=2).permute(2, 0, 1) - 1, x.prod(2).transpose(0, 1) + x.prod(2)


class Reshaped(nn.Module):
    """Other shapes of reductions, with a size of 1 in the reduced dimension and other sizes elsewhere."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        column, square = x[..., :1], x[0, :, :6] + 1
        rows = column.sum(0).reshape(1, 6) + square, (column > 1).any(0).reshape(1, 6).float() * square
        means = x[:1].mean(1).reshape(8, 1) - x[0].t(), column.prod(0).unsqueeze(0).flatten(1) * square
        return *rows, *means, square[:, :1] @ column.amax(0).reshape(1, 6), x[:, :2, :3].sum(0).reshape(1, 6) + square


@pytest.mark.parametrize("kind", [Quotients, Columns, BatchNorms, Variances, Joined, Transposed, Reshaped])
def test_what_is_fused_gives_eagers_numbers(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(1)
    module, x = kind().eval(), torch.randn(2, 6, 8)
    program = torch.export.export(module, (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[OpenvinoBackend.partitioner({})]).to_executorch()
    assert len(get_lowered_backend_modules(lowered.programs["forward"].graph_module)) == 1
    model = load(save_program(lowered, tmp_path / "saved"))
    with torch.no_grad():
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)


def test_activations_of_reductions_give_eagers_numbers_in_batches_of_any_size(tmp_path: Path) -> None:
    module, batch = Activations(), torch.export.Dim("batch", max=8)
    program = torch.export.export(module, (torch.randn(4, 4, 4),), dynamic_shapes=({0: batch},))
    lowered = to_edge_transform_and_lower(program, partitioner=[OpenvinoBackend.partitioner({})]).to_executorch()
    model = load(save_program(lowered, tmp_path / "saved"))
    for rows in (4, 7, 3):
        x = torch.randn(rows, 4, 4)
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)


def test_a_choice_between_a_group_norm_and_its_input_runs(tmp_path: Path) -> None:
    class Chosen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x <= 0.1, F.group_norm(x, 1), x)

    x = torch.randn(3, 2, 8, 8)
    lowered = to_edge_transform_and_lower(
        torch.export.export(Chosen(), (x,)), partitioner=[OpenvinoBackend.partitioner({})]
    ).to_executorch()
    torch.testing.assert_close(load(save_program(lowered, tmp_path / "saved"))(x), Chosen()(x), rtol=1e-4, atol=1e-5)


class Norms(nn.Module):
    """Norms of rows by their root mean square, with a weight of several numbers behind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.rand(8) + 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normed * self.weight, (x - x.mean(-1, keepdim=True)) * self.weight, (x + x.amax(1, keepdim=True)) / 1.5


def test_a_product_that_is_viewed_as_a_number_is_eagers(tmp_path: Path) -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return torch.einsum("ij,ij->", x, y), (x[:1] @ y[:1].t()).reshape([]) + 1

    given = torch.randn(3, 4), torch.randn(3, 4)
    program = torch.export.export(Product(), given)
    lowered = to_edge_transform_and_lower(program, partitioner=[OpenvinoBackend.partitioner({})]).to_executorch()
    torch.testing.assert_close(load(save_program(lowered, tmp_path / "saved"))(*given), Product()(*given))


def test_sums_of_many_dynamic_dimensions_are_eagers(tmp_path: Path) -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor, column: Tensor, y: Tensor, block: Tensor) -> tuple[Tensor, ...]:
            return x + column, y + block  # OpenVINO would compute the second sum in the kernel of the first

    shapes = (3, 3, 3, 3, 4), (3, 3, 3, 3, 1), (3, 4, 3, 4, 3, 3, 2), (1, 4, 1, 4, 3, 3, 1)
    given = tuple(map(torch.randn, shapes))
    sizes = tuple({place: Dim.AUTO for place, size in enumerate(shape) if size > 1} for shape in shapes)
    program = torch.export.export(Sums(), given, dynamic_shapes=sizes)
    lowered = to_edge_transform_and_lower(program, partitioner=[OpenvinoBackend.partitioner({})]).to_executorch()
    torch.testing.assert_close(load(save_program(lowered, tmp_path / "saved"))(*given), Sums()(*given))
    (reason,) = set(lowered.reasons["forward"].values())
    assert reason == "its result has more than 6 dimensions with dynamic sizes, and OpenVINO mixes up the kernels"


def test_squeezes_of_dynamic_sizes_remove_dimensions_of_one_only(tmp_path: Path) -> None:
    class Squeezes(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            single = x[:, :1]
            return x.squeeze() + 1, single.squeeze((1, 2)) + 1, single.squeeze() + 1, x.squeeze().topk(2).indices

    given = torch.randn(5, 3, 4)
    program = torch.export.export(Squeezes(), (given,), dynamic_shapes=({0: Dim("n", min=2, max=9)},))
    lowered = to_edge_transform_and_lower(program, partitioner=[OpenvinoBackend.partitioner({})]).to_executorch()
    model = load(save_program(lowered, tmp_path / "saved"))
    for x in (given, torch.randn(7, 3, 4)):
        torch.testing.assert_close(model(x), Squeezes()(x))


def test_a_computed_operand_ends_a_reductions_kernel(tmp_path: Path) -> None:
    module, x = Norms().eval(), torch.randn(2, 6, 8)
    lowered = to_edge_transform_and_lower(
        torch.export.export(module, (x,)), partitioner=[OpenvinoBackend.partitioner({})]
    ).to_executorch()
    model = load(save_program(lowered, tmp_path / "saved"))
    with torch.no_grad():
        torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-6)


class Heads(nn.Module):
    """Attention over keys that a mask names, with the heads joined behind."""

    def __init__(self, identity: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.identity, self.out = identity, nn.Linear(16, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        seen = F.scaled_dot_product_attention(x, x + 1, x - 1, mask)
        if self.identity:
            seen = seen.view(seen.shape)
        joined = seen.transpose(1, 2).reshape(x.shape[0], x.shape[2], 16)
        result: Tensor = self.out(joined)
        return result


@pytest.mark.parametrize("shape", [(5, 5), (2, 1, 5, 5), (2, 4, 5, 5), (2, 1, 1, 5)])
def test_a_row_that_sees_no_key_is_0_where_heads_are_joined(shape: tuple[int, ...], tmp_path: Path) -> None:
    module, x = Heads(len(shape) == 4).eval(), torch.randn(2, 4, 5, 4)
    mask = torch.rand(shape) > 0.4
    mask[..., 0, :] = False
    lowered = to_edge_transform_and_lower(
        torch.export.export(module, (x, mask)), partitioner=[OpenvinoBackend.partitioner({})]
    ).to_executorch()
    (delegate,) = get_lowered_backend_modules(lowered.programs["forward"].graph_module)
    nodes = delegate.original_module.graph.nodes
    (attention,) = (node for node in nodes if operator_name(node.target) == "aten.scaled_dot_product_attention.default")
    assert (joined_heads(attention, attention.args[3]) is not None) == (shape in ((5, 5), (2, 1, 5, 5), (2, 1, 1, 5)))
    model = load(save_program(lowered, tmp_path / "saved"))
    floats = torch.zeros(shape).masked_fill(~mask, float("-inf"))
    with torch.no_grad():
        torch.testing.assert_close(model(x, mask), module(x, mask))
        torch.testing.assert_close(model(x, ~mask), module(x, ~mask))
    lowered = to_edge_transform_and_lower(
        torch.export.export(module, (x, floats)), partitioner=[OpenvinoBackend.partitioner({})]
    ).to_executorch()
    with torch.no_grad():
        torch.testing.assert_close(load(save_program(lowered, tmp_path / "floats"))(x, floats), module(x, floats))


def test_attention_without_a_batch_is_taken_apart(tmp_path: Path) -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x + 1, x - 1)

    x = torch.randn(5, 8)
    lowered = to_edge_transform_and_lower(
        torch.export.export(Rows(), (x,)), partitioner=[OpenvinoBackend.partitioner({})]
    ).to_executorch()
    assert len(get_lowered_backend_modules(lowered.programs["forward"].graph_module)) == 1
    torch.testing.assert_close(load(save_program(lowered, tmp_path / "saved"))(x), Rows()(x))


def test_a_norm_of_root_mean_squares_is_still_fused() -> None:
    openvino = import_openvino()
    opset = openvino.opset13
    given = openvino.op.Parameter(openvino.Type.f32, openvino.Shape([2, 64]))
    number = lambda value: opset.constant(value, dtype="float32")  # noqa: E731
    squares = opset.power(given, number(2.0))
    mean = opset.reduce_mean(squares, opset.constant([-1], dtype="int64"), True)
    inverse = opset.divide(number(1.0), opset.sqrt(opset.add(mean, number(1e-6))))
    scale = opset.constant([[1.5] * 64], dtype=openvino.Type.f32)
    model = openvino.Model([opset.multiply(scale, opset.multiply(given, inverse))], [given], "norm")
    keep_numbers(openvino, model)
    assert len(model.outputs) == 1
    compiled = engine().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    kinds = {node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops()}
    assert "RMS" in kinds
