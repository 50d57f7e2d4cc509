"""What the executorch backend takes for ExecuTorch's portable kernels, and what it leaves for they fail on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from support.modules import Call
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import hatch_lower
from hatch_lower.backends.executorch.compile import ExecutorchBackend
from hatch_lower.backends.executorch.portable import NAN_LOSING
from hatch_lower.exir.capture._config import EdgeCompileConfig
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytest.importorskip("executorch")

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

NAN, INF = float("nan"), float("inf")
PORTABLE = {"portable-operators": True}
STRICT = {**PORTABLE, "finite-only": False}


def lower(function: Callable[..., Any], *args: Tensor, **kwargs: Any) -> LoweredProgram:
    program = torch.export.export(Call(function).eval(), args, **kwargs)
    return to_edge_transform_and_lower(program, partitioner=[ExecutorchBackend.partitioner(PORTABLE)]).to_executorch()


def reasons(program: ExportedProgram, options: dict[str, Any] = PORTABLE) -> dict[str, str]:
    """Return why operations are not taken, by operator."""
    partitioner = ExecutorchBackend.partitioner(options)
    edge = to_edge(program, keep=partitioner.ops_to_not_decompose(program)[0])
    names = {node.name: str(torch_operator(node.target)) for node in edge.graph.nodes}
    return {names[name]: reason for name, reason in partitioner.partition(edge).reasons.items()}


def test_numbers_beside_integers_without_dimensions_keep_their_type(tmp_path: Path) -> None:
    def calls(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x + 2, 2 - x, x // 2, torch.addcmul(x, x, x), x / 2, x * 2.5, x == 7

    lowered = lower(lambda x, y: (*calls(x), *calls(y)), *(args := tuple(map(integer, (7, 9)))))
    assert len(get_lowered_backend_modules(lowered.exported_program().graph_module)) == 1
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(*args)
    torch.testing.assert_close(tuple(results), (*calls(args[0]), *calls(args[1])), rtol=0, atol=0)


def integer(number: int) -> Tensor:
    return torch.tensor(number, dtype=torch.uint8 if number == 7 else torch.int32)


def test_calls_whose_kernels_give_fixed_sizes_are_left_where_sizes_are_dynamic(tmp_path: Path) -> None:
    """And XNNPACK's own, which makes images of rows by a reshape, are done without it."""
    weight = torch.randn(2, 1, 3)

    def calls(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        smaller = functional.interpolate(x[None], (3, 3), mode="bilinear", antialias=True)
        rows = functional.batch_norm(functional.conv1d(y[:, None], weight), torch.zeros(2), torch.ones(2))
        return torch.empty(x.shape).copy_(x), smaller, rows

    sizes: Any = {"args": ({0: Dim("batch", max=8)}, {0: Dim("rows", max=8), 1: Dim("columns", min=4, max=8)})}
    args = torch.randn(2, 3, 6), torch.randn(2, 5)
    lowered = to_edge_transform_and_lower(
        torch.export.export(Call(calls), args, dynamic_shapes=sizes),
        partitioner=[ExecutorchBackend.partitioner(PORTABLE)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).to_executorch()
    left = {why for why in lowered.reasons["forward"].values() if why.startswith("ExecuTorch's kernel")}
    assert {why.split("`")[1] for why in left} == {"aten._upsample_bilinear2d_aa.default", "aten.empty.memory_format"}
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for batch, rows in ((1, 1), (8, 7)):
        args = torch.randn(batch, 3, 6), torch.randn(rows, 8)
        torch.testing.assert_close(tuple(model(*args)), calls(*args))


def test_a_pool_that_xnnpack_lacks_cuts_no_partition(tmp_path: Path) -> None:
    """Nor does an operator that is not core ATen, a batch that may be empty, or any call that its kernel can do."""

    def calls(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        pooled = functional.max_pool2d(x.relu(), 3, 2, ceil_mode=True)
        return (
            *(pooled.erf(), functional.max_pool2d(x[0], 2).erf(), *torch.var_mean(x, -1)),
            *(x.log_softmax(-1), x.log_softmax(1), functional.pad(x, (1, 1)), x.mean((2, 3)), n.fmod(3), n.sum()),
            *(functional.interpolate(x, scale_factor=2.0, mode="bilinear"), torch.cat([n, n + 1]), n.sum(0)),
            *(functional.interpolate(x, scale_factor=1.7, mode="bilinear"), x[:, n.clamp(0, 2)]),
        )

    args = torch.randn(2, 3, 6, 6), torch.arange(-4, 4)
    sizes: Any = {"args": ({0: Dim("batch", max=4)}, {})}
    lowered = lower(calls, *args, dynamic_shapes=sizes)
    assert len(get_lowered_backend_modules(lowered.exported_program().graph_module)) == 1
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for batch in (2, 1):
        given = torch.randn(batch, 3, 6, 6), args[1]
        torch.testing.assert_close(tuple(model(*given)), calls(*given))


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str, str]] = {
    "three dimensions": (
        lambda x: functional.conv3d(x, torch.ones(2, 1, 2, 2, 2)),
        (torch.ones(1, 1, 4, 4, 4),),
        "aten.convolution.default",
        "takes tensors with three and four dimensions only",
    ),
    "a number's running sum": (
        lambda x: x.cumsum(0),
        (torch.tensor(2.0),),
        "aten.cumsum.default",
        "takes no tensor without dimensions",
    ),
    "a number's sum": (
        lambda x: x.sum(0),
        (torch.tensor(2.0),),
        "aten.sum.dim_IntList",
        "takes no tensor without dimensions",
    ),
    "windows of a number": (
        lambda x: x.unfold(0, 1, 1) + 1,
        (torch.tensor(2.0),),
        "aten.unfold.default",
        "takes no tensor without dimensions",
    ),
    "a part from the end": (
        lambda x: torch.ops.aten.narrow_copy.default(x, -1, 0, 2),
        (torch.ones(2, 3),),
        "aten.narrow_copy.default",
        "counts no dimension from the end",
    ),
    "numbers": (
        lambda x: torch.ops.aten.unbind_copy.int(x),
        (torch.ones(3),),
        "aten.unbind_copy.int",
        "gives no tensors without dimensions",
    ),
    "padding that cuts off": (
        lambda x: functional.pad(x, (-1, 2)),
        (torch.ones(4),),
        "aten.constant_pad_nd.default",
        "can only add elements, not remove any",
    ),
    "an empty tensor": (
        lambda x: x.amax(1),
        (torch.ones(0, 3),),
        "aten.amax.default",
        "takes no tensor without elements",
    ),
    "no channels": (
        lambda x: functional.adaptive_avg_pool2d(x, 4),
        (torch.ones(0, 6, 6),),
        "aten._adaptive_avg_pool2d.default",
        "takes no tensor without elements",
    ),
    "a softmax of nothing": (
        lambda x: x.log_softmax(1),
        (torch.ones(3, 0),),
        "aten._log_softmax.default",
        "takes no tensor without elements",
    ),
    "a gradient": (
        lambda x, i: torch.ops.aten.max_pool2d_with_indices_backward(
            x[..., :1, :1], x, [2, 2], [2, 2], [0, 0], [1, 1], False, i
        ),
        (torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 1, 1, dtype=torch.long)),
        "aten.max_pool2d_with_indices_backward.default",
        "adds to uninitialized memory",
    ),
    "a mean of one": (
        lambda x: torch.var_mean(x, 1),
        (torch.ones(3, 1),),
        "aten.var_mean.correction",
        "gives no mean of so few elements that they have no variance",
    ),
    "types": (
        lambda x: torch.cat([x, x.to(torch.int64)]),
        (torch.ones(3),),
        "aten.cat.default",
        "takes tensors of a single type only",
    ),
    "indices": (
        lambda x, index: x.gather(0, index),
        (torch.ones(3), torch.zeros(2, dtype=torch.int32)),
        "aten.gather.default",
        "takes indices of the type int64 only",
    ),
    "a remainder": (
        lambda x: x % 3,
        (torch.arange(3),),
        "aten.remainder.Scalar",
        "gives integers the sign of the dividend, and eager that of the divisor",
    ),
    "places of nothing": (
        lambda x: x.nonzero(),
        (torch.ones(0, 3),),
        "aten.nonzero.default",
        "`aten.nonzero.default` has a size that depends on its input's contents",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_kernel_cannot_do_stays_outside(name: str) -> None:
    function, args, operator, reason = REFUSED[name]
    given = reasons(torch.export.export(Call(function), args))
    assert given[operator].endswith(reason), given


def test_a_size_that_may_be_zero_counts_as_one_that_is() -> None:
    def calls(x: Tensor) -> tuple[Tensor, ...]:
        return x.amax(1), x.log_softmax(0)

    for least, left in ((0, {"aten.amax.default", "aten._log_softmax.default"}), (1, set())):
        sizes = {"args": ({0: Dim("rows", min=least, max=9)},)}
        given = reasons(torch.export.export(Call(calls), (torch.ones(3, 4),), dynamic_shapes=sizes))
        assert {name for name, why in given.items() if why.endswith("and a dynamic size may be 0")} == left


def nan_losing(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return results by the operator whose kernel may lose a NaN, or make one."""
    image, rows = x.reshape(1, 1, 4, 4), x.reshape(4, 4)
    grid = y.reshape(1, 2, 4, 2)
    return {
        "aten._cdist_forward.default": torch.cdist(rows, rows, p=0.0),
        "aten.gelu.default": functional.gelu(x),
        "aten.grid_sampler_2d.default": functional.grid_sample(image, grid, align_corners=False),
        "aten.max_pool2d_with_indices.default": functional.max_pool2d(image, 2, return_indices=True)[0],
        "aten.pow.Tensor_Scalar": x.pow(0.5),
        "aten.sign.default": x.sign(),
    }


def nan_keeping(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Return what other calls of these operators give, and what others that compare give."""
    rows = x.reshape(4, 4)
    return (
        *(torch.addmm(rows, rows, rows, alpha=2), torch.div(x, y, rounding_mode="trunc"), x.pow(2), x.pow(-1.0)),
        *(functional.gelu(x, approximate="tanh"), torch.cdist(rows, rows, p=1.0), rows.amax(0), rows.amin(1)),
        *(*rows.max(1), rows.argmax(0), torch.maximum(x, y), x.clamp(-1, 1), rows.topk(2)[0], rows.softmax(0), x > y),
    )


def test_kernels_that_lose_nan_are_taken_for_finite_numbers_only(tmp_path: Path) -> None:
    x = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -2.5, 3.0, INF, 0.5, NAN, -1.0, 2.0, -INF, 7.0, NAN])
    args = x, x.flip(0).roll(3).contiguous()
    program = torch.export.export(Call(lambda *args: (nan_losing(*args), nan_keeping(*args))), args)
    left = {name for name, why in reasons(program, STRICT).items() if f"kernel for `{name}` gives other results" in why}
    assert left == NAN_LOSING.keys() - {"aten.max_pool2d.default"}
    partitioner = ExecutorchBackend.partitioner(PORTABLE)
    result = partitioner.partition(to_edge(program, keep=partitioner.ops_to_not_decompose(program)[0]))
    assert not result.reasons
    assert result.finite_only >= left
    lowered = to_edge_transform_and_lower(program, partitioner=[ExecutorchBackend.partitioner(STRICT)])
    model = hatch_lower.load(save_program(lowered.to_executorch(), tmp_path / "out"))
    torch.testing.assert_close(model(*args), (nan_losing(*args), nan_keeping(*args)), equal_nan=True)


def test_a_pool_that_xnnpack_lacks_is_taken_for_finite_numbers_only() -> None:
    program = torch.export.export(Call(lambda x: functional.max_pool2d(x, 2)), (torch.ones(1, 4, 4),))
    assert not reasons(program)
    assert "`finite-only` is false" in reasons(program, STRICT)["aten.max_pool2d.default"]


def test_an_input_without_elements_may_have_any_strides(tmp_path: Path) -> None:
    """torch calls it contiguous, and ExecuTorch ended the process."""
    rows = {0: Dim("rows", min=0, max=4)}
    lowered = lower(lambda x: x + 1, torch.arange(12).reshape(2, 3, 2), dynamic_shapes={"args": (rows,)})
    assert len(get_lowered_backend_modules(lowered.exported_program().graph_module)) == 1
    model = hatch_lower.load(save_program(lowered, tmp_path / "program"))
    given = torch.empty(0, 2, 3, dtype=torch.int64).transpose(1, 2)
    assert given.stride() == (6, 1, 3)
    assert torch.equal(model(given), given)


class Sums(nn.Module):
    def forward(self, *a: Tensor) -> Tensor:  # torch numbers symbols by such names, and chooses by the numbers
        x, y = a
        rows, columns = x.shape
        return (x.unsqueeze(1) + y).view(rows, rows * columns).sin()


def test_a_size_that_is_also_the_stride_of_an_input_before_is_a_size(tmp_path: Path) -> None:
    """torch counts with the stride then, as in transformers whose ids and mask have dynamic sizes."""
    shape = {0: Dim("rows", min=1, max=8), 1: Dim("columns", min=2, max=8)}
    program = torch.export.export(Sums(), (torch.randn(3, 5), torch.randn(3, 5)), dynamic_shapes={"a": (shape, shape)})
    sizes = [node.args for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)]
    assert [(str(node), dim) for node, dim in sizes] == [("a_0", 0), ("a_1", 1)]
    lowered = to_edge_transform_and_lower(program, partitioner=[ExecutorchBackend.partitioner(PORTABLE)])
    made = lowered.to_executorch()
    assert len(get_lowered_backend_modules(made.exported_program().graph_module)) == 1
    model = hatch_lower.load(save_program(made, tmp_path / "program"))
    for rows, columns in ((3, 5), (1, 2), (8, 7)):
        x, y = torch.randn(rows, columns), torch.randn(rows, columns)
        torch.testing.assert_close(model(x, y), Sums()(x, y))
