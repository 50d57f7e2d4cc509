"""The openvino backend: what it takes and computes, what it leaves, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers operators
import torch.nn.functional as F  # noqa: N812
from support.modules import Call
from support.quantized import conv_net, mlp, quantized, x86_quantizer, xnnpack_quantizer
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import Dim, ExportedProgram, default_decompositions

from hatch_lower import load
from hatch_lower.backends.aoti.support import KEPT_OPERATORS
from hatch_lower.backends.openvino.claims import CLAIMS, MULTIPLY_INTEGERS, NAN_LOSING
from hatch_lower.backends.openvino.direct import WRITTEN
from hatch_lower.backends.openvino.prepare import COMPOSITES
from hatch_lower.backends.openvino.recurrent import CELLS
from hatch_lower.backends.testing.bench import of_tensors
from hatch_lower.errors import BackendError, CallError, OperationError, ProgramError, UnavailableError
from hatch_lower.exir.dialects.edge.verify import EdgeViolationError
from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.sandbox import backend_guard
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.delegates import DelegateBlob

if find_spec("openvino") is None:
    pytest.skip("OpenVINO is not installed", allow_module_level=True)

from hatch_lower.backends.openvino import library, run
from hatch_lower.backends.openvino.compile import OpenvinoBackend
from hatch_lower.backends.openvino.library import engine, import_openvino, sums_integers
from hatch_lower.backends.openvino.run import OpenvinoDelegate, check_running, read_info
from hatch_lower.backends.reference.compile import ReferencePartitioner
from hatch_lower.exir.lowered_backend_module import get_lowered_submodules

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

Case = Callable[[Tensor, Tensor], Any]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")


def lower(module: nn.Module, *inputs: Any, shapes: Any = None, **options: Any) -> LoweredProgram:
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)
    manager = to_edge_transform_and_lower(program, partitioner=[OpenvinoBackend.partitioner({"threads": 1, **options})])
    return manager.to_executorch()


def delegates(lowered: LoweredProgram) -> list[LoweredBackendModule]:
    (program,) = lowered.programs.values()
    return [module for _, module, _ in get_lowered_submodules(program.graph_module)]


def taken(lowered: LoweredProgram) -> set[str]:
    return {name for each in delegates(lowered) for name in operators_of(each)}


def operators_of(delegate: LoweredBackendModule) -> list[str]:
    nodes = delegate.original_module.graph_module.graph.nodes
    return [operator_name(node.target) for node in nodes if node.op == "call_function"]


def debug_map_of(delegate: LoweredBackendModule) -> Mapping[str, tuple[int, ...]]:
    assert delegate.meta is not None
    found: Mapping[str, tuple[int, ...]] = delegate.meta["debug_handle_map"]
    return found


def every_handle_is_known(delegate: LoweredBackendModule) -> bool:
    nodes = [node for node in delegate.original_module.graph.nodes if node.op == "call_function"]
    known = {handle for handles in debug_map_of(delegate).values() for handle in handles}
    return known == {node.meta["debug_handle"] for node in nodes}


def reasons(lowered: LoweredProgram) -> dict[str, str]:
    (found,) = lowered.reasons.values()
    return dict(found)


def put(table: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Write values to places in the second dimension of a table."""
    written: Tensor = torch.ops.aten.index_put(table, [None, index], values)
    return written


def words(text: str) -> list[str]:
    return text.split()


def both(function: Case) -> Case:
    """Return a case that compares with a tensor, and with a number."""
    return lambda x, y: (function(x, y), function(x, 2))


def test_digits_of_small_numbers_stay(tmp_path: Path) -> None:
    """OpenVINO's own softplus is 4e-6 for -56, and its mish -2e-4."""

    def function(x: Tensor, small: Tensor) -> Any:
        return F.softplus(x), F.mish(x), F.logsigmoid(-x), torch.log1p(torch.exp(x)), torch.log1p(small)

    small = torch.logspace(-30, -1, 50)
    args = torch.linspace(-80, 20, 201), torch.cat([-small, torch.zeros(1), small])
    lowered = lower(Call(function), *args)
    assert not reasons(lowered)
    given = load(save_program(lowered, tmp_path / "out"))(*args)
    for result, expected in zip(given, function(*(each.double() for each in args)), strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=2e-6, atol=1e-30)


# Every operator against eager, for each of its dtypes: a case is `f(x, y)` on tensors of 3 by 4 by 5.

UNARY: Mapping[str, Case] = {
    name: lambda x, y, function=function: function(x)
    for name, function in {
        **{
            name: getattr(torch, name)
            for name in words(
                """abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor log log10 log1p log2 reciprocal relu
                round rsqrt sigmoid sign sin sinh sqrt tan tanh isnan isinf neg"""
            )
        },
        **{name: getattr(F, name) for name in ("elu", "gelu", "hardtanh", "leaky_relu", "silu", "hardswish", "mish")},
    }.items()
}
FLOATING: Mapping[str, Case] = {
    **UNARY,
    "gelu of tanh": lambda x, y: F.gelu(x, approximate="tanh"),
    "div": lambda x, y: x / y,
    "div by a number": lambda x, y: x / 3,
    "div scalar": lambda x, y: torch.ops.aten.div.Scalar(x, 3.0),
    "mul scalar": lambda x, y: torch.ops.aten.mul.Scalar(x, 3.0),
    "add scalar": lambda x, y: torch.ops.aten.add.Scalar(x, 3.0),
    "pow": lambda x, y: torch.pow(x, y),
    "pow of a number": lambda x, y: torch.pow(2.0, y),
    "square": lambda x, y: x**2,
    "root": lambda x, y: x**0.5,
    "clamp": lambda x, y: x.clamp(-1, 1.5),
    "clamp min": lambda x, y: x.clamp(min=0),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "amax": lambda x, y: (x.amax(1), x.amax((0, -1), keepdim=True)),
    "amin": lambda x, y: (x.amin(1), x.amin((0, -1), keepdim=True)),
    "unfold": lambda x, y: (x.unfold(2, 3, 2), x.unfold(-2, 2, 1), x[None].unfold(0, 1, 1)),
    "instance_norm": lambda x, y: F.instance_norm(x, weight=y[0, :, 0], bias=y[0, :, 1]),
    "mean": lambda x, y: x.mean(),
    "means": lambda x, y: x.mean((0, -1), keepdim=True),
    "sum": lambda x, y: x.sum(),
    "sums": lambda x, y: x.sum(1),
    "prod": lambda x, y: x.prod(),
    "prods": lambda x, y: x.prod(1),
    "cumsum": lambda x, y: x.cumsum(1),
    "var": lambda x, y: x.var(1),
    "var by default": lambda x, y: (x.var(), torch.ops.aten.var.correction(x, [1])),
    "var of all": lambda x, y: x.var((0, 1), correction=0),
    "norm": lambda x, y: torch.linalg.vector_norm(x, dim=1),
    "norm of all": lambda x, y: (torch.linalg.vector_norm(x), torch.linalg.vector_norm(x, 1, (), keepdim=True)),
    "norm of order 0": lambda x, y: (torch.linalg.vector_norm(x, 0, (0, 2)), torch.linalg.vector_norm(x[1, 2], 0)),
    "norm of infinite order": lambda x, y: [torch.linalg.vector_norm(x, float(text), 1) for text in ("inf", "-inf")],
    "norm of infinities": lambda x, y: torch.linalg.vector_norm(x.abs() + float("inf"), float("-inf"), 1),
    "norms of other orders": lambda x, y: [torch.linalg.vector_norm(x, order, 2) for order in (3, 0.5, -1)],
    "softmax": lambda x, y: x.softmax(-1),
    "softmax of 1": lambda x, y: x.softmax(1),
    "log_softmax": lambda x, y: x.log_softmax(-1),
    "truth": lambda x, y: ((x * (y > 1).float()).to(torch.bool), (x * 1e-40).bool(), (x * 0.0).bool()),
    "argmax": lambda x, y: x.argmax(1),
    "argmax of all": lambda x, y: x.argmax(),
    "topk": lambda x, y: x.topk(2, -1),
    "sort": lambda x, y: x.sort(1)[0],
    "mm": lambda x, y: x[0] @ y[0].t(),
    "bmm": lambda x, y: torch.bmm(x, y.transpose(1, 2)),
    "addmm": lambda x, y: torch.addmm(x[0, :, :4], x[0], y[0].t(), beta=0.5, alpha=2),
    "baddbmm": lambda x, y: torch.baddbmm(x[:, :, :4], x, y.transpose(1, 2)),
    "einsum": lambda x, y: torch.einsum("bij,bkj->bik", x, y),
    "linear": lambda x, y: F.linear(x, y[0], y[0, :, 0]),
    "conv1d": lambda x, y: F.conv1d(x, y[:2, :4, :3], y[0, 0, :2], padding=1),
    "conv2d": lambda x, y: F.conv2d(x[None], y[:, :3, None, :3], None, stride=2, padding=1),
    "conv2d in groups": lambda x, y: F.conv2d(x[None], y[:, :1, None, :3], None, groups=3, padding="same"),
    "conv_transpose2d": lambda x, y: F.conv_transpose2d(x[None], y[:3, :2, None, :2], None, stride=2),
    "conv3d": lambda x, y: F.conv3d(x[None, None], y[None, None, :2, :2, :2]),
    "max_pool2d": lambda x, y: F.max_pool2d(x[None], 2, 1, 1),
    "max_pool2d up": lambda x, y: F.max_pool2d(x[None], 2, ceil_mode=True),
    "max_pool3d": lambda x, y: F.max_pool3d(x[None, None], 2),
    "avg_pool2d": lambda x, y: F.avg_pool2d(x[None], 2, 1, 1, count_include_pad=False),
    "avg_pool2d up": lambda x, y: F.avg_pool2d(x[None], 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool3d": lambda x, y: F.avg_pool3d(x[None, None], 2),
    "avg_pool3d up": lambda x, y: F.avg_pool3d(x[None, None], 2, ceil_mode=True),
    "adaptive_avg_pool2d": lambda x, y: F.adaptive_avg_pool2d(x[None], (3, 2)),
    "adaptive_avg_pool3d": lambda x, y: F.adaptive_avg_pool3d(x[None, None], (2, 3, 2)),
    "batch_norm": lambda x, y: F.batch_norm(x, y[0, :, 0], y[0, :, 1].abs(), y[0, :, 2], y[0, :, 3]),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    **{name: both(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "group_norm": lambda x, y: F.group_norm(x, 2, y[0, :, 0], y[0, :, 1]),
    "layer_norm": lambda x, y: F.layer_norm(x, (5,), y[0, 0], y[0, 1]),
    "upsample": lambda x, y: F.interpolate(x[None], scale_factor=2),
    "upsample line": lambda x, y: F.interpolate(x, size=7),
    "upsample volume": lambda x, y: F.interpolate(x[None, None], size=(3, 2, 7)),
    "upsample bilinear": lambda x, y: F.interpolate(x[None], size=(7, 9), mode="bilinear"),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None] + 1),
    "causal attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None], is_causal=True),
}
NUMBERS: Mapping[str, Case] = {
    "add": lambda x, y: x + y,
    "add 2": lambda x, y: x + 2,
    "alpha": lambda x, y: torch.add(x, y, alpha=2),
    "sub": lambda x, y: x - y,
    "from 2": lambda x, y: 2 - x,
    "mul": lambda x, y: x * y,
    "broadcast": lambda x, y: x * y[0:1] + y[:, :1, :1],
    "a number's tensor": lambda x, y: x[0, 0, 0] + y[1, 1, 1],
    "neg": lambda x, y: -x,
    "full_like": lambda x, y: torch.full_like(x, 2) + x,
    "ones": lambda x, y: x + torch.ones(5, dtype=x.dtype),
    "arange": lambda x, y: x * torch.arange(5, dtype=x.dtype),
}
SELECTED: Mapping[str, Case] = {
    "where": lambda x, y: torch.where(x.to(torch.float32) > 1, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y.to(torch.float32) > 1, 1),
}
BOOLEAN: Mapping[str, Case] = {
    "not": lambda x, y: torch.logical_not(x),
    "bitwise not": lambda x, y: ~x,
    "and": lambda x, y: (torch.logical_and(x, y), x & y),
    "or": lambda x, y: (torch.logical_or(x, y), x | y),
    "xor": lambda x, y: (torch.logical_xor(x, y), x ^ y),
    "any": lambda x, y: (x.any(), x.any(1), torch.any(x, (0, 1))),
    "all": lambda x, y: (x.all(), x.all(1)),
    "float": lambda x, y: x.to(torch.float32),
    "where": lambda x, y: torch.where(x, 1.5, 2.5),
}
MOVES: Mapping[str, Case] = {
    "view": lambda x, y: x.view(12, 5),
    "permute": lambda x, y: x.permute(2, 0, 1),
    "transpose and view": lambda x, y: x.transpose(0, 1).reshape(-1),
    "squeeze": lambda x, y: x[:1].squeeze(0).unsqueeze(1),
    "expand": lambda x, y: x[:1].expand(3, 4, 5),
    "slices": lambda x, y: (x[:, 1:3], x[:, ::2], x[:, -2:], x[:, -1]),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "stack": lambda x, y: torch.stack([x, y], 1),
    "split": lambda x, y: x.split([1, 3], 1),
    "repeat": lambda x, y: x.repeat(2, 1, 3),
    "flip": lambda x, y: x.flip(1, 2),
    "pad": lambda x, y: F.pad(x, (1, 2, 0, 1), value=1),
    "clone": lambda x, y: x.clone(),
    "detach": lambda x, y: x.detach(),
    "index_select": lambda x, y: x.index_select(1, torch.tensor([0, 2, 1])),
    "index": lambda x, y: x[:, torch.tensor([[0, -1], [2, 2]])],
    "index of points": lambda x, y: x[:, torch.tensor([0, -1, 3]), torch.tensor([4, 1, -5])],
    "index of rows and columns": lambda x, y: x[None, :, torch.tensor([[0], [-1]]), torch.tensor([1, 2, 0])],
    "gather": lambda x, y: x.gather(-2, torch.tensor([3, 0, 0]).view(1, 3, 1).expand(3, 3, 5)),
    "index_put": lambda x, y: put(x, torch.tensor([2, -4]), y[:, :2]),
    "copy": lambda x, y: torch.ops.aten.copy(x, y[0]),
    "slice_scatter": lambda x, y: x.slice_scatter(y[:, :2], 1, -4, 4, 2),
    "embedding": lambda x, y: F.embedding(torch.tensor([[1, 0], [3, 3]]), x[0]),
}
# a partition that only moves values is not taken: something beside the moves computes
COMPUTING: Mapping[torch.dtype, Case] = {
    torch.bool: lambda x, y: x & y,
    torch.int8: lambda x, y: x.to(torch.float32).sigmoid(),
    torch.uint8: lambda x, y: x.to(torch.float32).sigmoid(),
}
GROUPS: Mapping[torch.dtype, tuple[Mapping[str, Case], ...]] = {
    torch.float32: (FLOATING, NUMBERS, SELECTED, MOVES),
    torch.int32: (NUMBERS, MOVES),
    torch.bool: (BOOLEAN, MOVES),
    torch.uint8: (MOVES, {"float": COMPUTING[torch.uint8]}),
    torch.int8: (MOVES, {"float": COMPUTING[torch.int8]}),
}
SPECIAL = (float("inf"), float("-inf"), 0.0, -0.0, 1e4, -1e4, 0.5, -0.5, 1.5, 2.5, -2.5)
INFINITE = {"softmax", "softmax of 1", "log_softmax", "attention", "causal attention"}
NOT_A_NUMBER = INFINITE | {"amax", "amin", "argmax", "argmax of all", "clamp", "clamp min", "exp", "hardtanh"}
NOT_A_NUMBER |= {"max_pool2d", "max_pool2d up", "max_pool3d", "maximum", "minimum", "relu", "sort", "topk"}
"""Cases in which eager gives NaN and `NAN_LOSING` does not: where inf is subtracted from inf, and for NaN."""


def samples(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return ordinary inputs and, of floats, some with infinities and NaN; of integers, some that overflow."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 5, generator=generator) * 2
    y = torch.rand(3, 4, 5, generator=generator) * 2 + 0.2
    if dtype is torch.bool:
        return [(x > 0, y > 1), (y > 1, x > 0)]
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        wide = torch.randint(limits.min, limits.max, (3, 4, 5), generator=generator)
        return [((x * 10).abs().to(dtype), (y * 3).to(dtype)), (wide.to(dtype), (y * 3).to(dtype))]
    return [(x.to(dtype), y.to(dtype))]


def special(*nans: int) -> tuple[Tensor, Tensor]:
    """Return inputs with infinities, each in a row of its own, and with NaN in these places."""
    ((x, y),) = samples(torch.float32)
    x = x.clone()
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL)
    x.view(-1)[list(nans)] = float("nan")
    return x, y


def difference(found: Any, expected: Any) -> str:
    """Return how a result is not what eager gives, or an empty string."""
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if expected.is_floating_point() else {"rtol": 0.0, "atol": 0.0}
    try:
        torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)
    except AssertionError as error:
        return str(error)
    return ""


def differences(model: Any, cases: Mapping[str, Case], x: Tensor, y: Tensor) -> dict[str, str]:
    """Return the cases that give something else than eager, and how."""
    found = iter(model(x, y))
    told = {name: [difference(next(found), each) for each in flat(case(x, y))] for name, case in cases.items()}
    return {name: "; ".join(filter(None, texts)) for name, texts in told.items() if any(texts)}


def flat(value: Any) -> list[Any]:
    return [value] if isinstance(value, Tensor) else [each for item in value for each in flat(item)]


@pytest.mark.parametrize("dtype", list(GROUPS), ids=str)
def test_every_operator_gives_what_eager_gives(dtype: torch.dtype, tmp_path: Path) -> None:
    cases = {name: case for group in GROUPS[dtype] for name, case in group.items()}
    net = Call(lambda x, y: tuple(flat([case(x, y) for case in cases.values()])))
    lowered = lower(net, *samples(dtype)[0])
    outside = {name: reason for name, reason in reasons(lowered).items() if "only moves" not in reason}
    assert outside == {}
    model = load(save_program(lowered, tmp_path / "program"))
    for x, y in samples(dtype):
        before = x.clone(), y.clone()
        assert differences(model, cases, x, y) == {}
        assert torch.equal(x, before[0])
        assert torch.equal(y, before[1])
    if dtype is torch.float32:
        assert set(differences(model, cases, *special())) <= INFINITE
        for place in (0, 29, 59):  # what a kernel does with NaN may depend on what it has read before
            assert set(differences(model, cases, *special(place))) <= NOT_A_NUMBER
        unseen = SEEN_IN_BOOLEAN | WHOLE | {MULTIPLY_INTEGERS}
        unseen |= {name for name in CLAIMS if name.startswith("quantized_decomposed.")}
        unseen |= set(CELLS)  # in test_openvino_recurrent
        norm = torch.ops.aten.linalg_vector_norm.default  # later versions of torch take it apart
        assert set(CLAIMS) - taken(lowered) == (unseen | {str(norm)} if norm in default_decompositions() else unseen)
    if dtype is torch.bool:
        assert taken(lowered) >= SEEN_IN_BOOLEAN


def test_integers_that_the_kernels_would_compute_as_float32_are_left(tmp_path: Path) -> None:
    class Compare(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            compared = x > y, torch.maximum(x, y), torch.minimum(x, 2**31 - 2 + x * 0), x == 2**31 - 1
            return *compared, F.pad(x, (1, 2), value=2**24 + 1), F.pad(x, (1, 2), value=2**24), x * y + x

    x = torch.tensor([2**31 - 1, 2**31 - 2, -(2**31), 2**24 + 1, 0], dtype=torch.int32)
    lowered = lower(Compare(), x, x.roll(1))
    found = list(reasons(lowered).values())
    assert len(found) == 5
    assert "it pads with 16777217.0, which OpenVINO writes down as float32" in found
    model = load(save_program(lowered, tmp_path / "program"))
    for result, wanted in zip(model(x, x.roll(1)), Compare()(x, x.roll(1)), strict=True):
        assert torch.equal(result, wanted)


def test_choices_of_integers_are_exact_with_dynamic_sizes(tmp_path: Path) -> None:
    class Choose(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return torch.where(y > 2, -x, x), x.masked_fill((y > 1) & (y < 3), 7) + 1

    x = torch.tensor([[2**31 - 1, 1 - 2**31, 2**24 + 1, 5]] * 3, dtype=torch.int32)
    y = torch.tensor([[1.0, 2.0, 3.0, -4.0]] * 3)
    rows = {0: Dim.DYNAMIC}
    program = torch.export.export(Choose(), (x, y), dynamic_shapes=(rows, rows))
    lowered = to_edge_transform_and_lower(program, partitioner=[OpenvinoBackend.partitioner({})]).to_executorch()
    model = load(save_program(lowered, tmp_path / "program"))
    for result, wanted in zip(model(x, y), Choose()(x, y), strict=True):
        assert torch.equal(result, wanted)


SEEN_IN_BOOLEAN = {
    f"aten.{name}"
    for name in words(
        """any.default any.dim any.dims bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor
        bitwise_xor.Tensor logical_and.default logical_not.default logical_or.default logical_xor.default"""
    )
}
"""All others that are listed are in the samples of float32."""


WHOLE = {str(op) for op in COMPOSITES} | {"aten.hardswish.default", "aten.silu.default"}
"""Operators that are only there where another backend wants them."""


def test_a_model_for_all_numbers_leaves_out_what_loses_a_nan() -> None:
    def net(x: Tensor) -> Tensor:
        return torch.relu(x.sin() * 2) + 1

    lowered = lower(Call(net), torch.ones(3), **{"finite-only": False})
    assert reasons(lowered) == {
        "aten_relu_default": "`aten.relu.default` may give a number for NaN or NaN for a number, "
        "and `finite-only` is false"
    }
    assert "aten.relu.default" in NAN_LOSING & taken(lower(Call(net), torch.ones(3)))


def test_a_model_for_all_numbers_has_nan_where_an_infinity_weighs_nothing(tmp_path: Path) -> None:
    def net(x: Tensor) -> Tensor:
        return F.interpolate(x * 2, size=(3, 3), mode="bilinear", align_corners=True)

    x = torch.ones(1, 2, 4, 4)
    x[0, 0, 2, 2:] = torch.tensor([float("inf"), float("-inf")])
    model = load(save_program(lower(Call(net), x, **{"finite-only": False}), tmp_path / "program"))
    torch.testing.assert_close(model(x), net(x), equal_nan=True)


@pytest.mark.parametrize("finite", [True, False])
def test_a_partitioner_names_what_it_takes_for_finite_numbers_only(finite: bool) -> None:
    def net(x: Tensor) -> Tensor:
        return torch.relu(x.sin().erfinv() * 2) + x.max(0).values

    program = to_edge(torch.export.export(Call(net), (torch.ones(3),)))
    result = OpenvinoBackend.partitioner({"finite-only": finite}).partition(program)
    assert result.finite_only == ({"aten.relu.default"} if finite else set())


# Calls that OpenVINO cannot convert, or computes in another way.

ATEN = torch.ops.aten
LARGER = "OpenVINO refuses a window that is larger than its tensor (`ceil_mode`)"
BEHIND_PADDING = "OpenVINO's average that counts padding differs where a window ends behind the padding (`ceil_mode`)"
NONE_OF_THEM = "its list of dimensions is empty, which OpenVINO takes to mean no dimension"
CALLS: Mapping[str, tuple[Callable[[Tensor], Any], str]] = {
    "avg_pool2d_default": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), BEHIND_PADDING),
    "avg_pool3d_default": (lambda x: F.avg_pool3d(x[None], 2, 2, (0, 0, 1), ceil_mode=True), BEHIND_PADDING),
    "avg_pool2d_default_1": (lambda x: F.avg_pool2d(x, (3,), (2,), (1,)), "one number stands for several dimensions"),
    "avg_pool2d_default_2": (lambda x: F.avg_pool2d(x, 5, ceil_mode=True), LARGER),
    "var_correction": (lambda x: x.var(1, correction=2), "its correction is 2, and OpenVINO knows 0 and 1"),
    "var_correction_1": (lambda x: x.var(1, correction=0.5), "its correction is 0.5, and OpenVINO knows 0 and 1"),
    "var_correction_2": (lambda x: ATEN.var.correction(x, [], correction=1), NONE_OF_THEM),
    "mean_dim": (lambda x: ATEN.mean.dim(x, [], True), NONE_OF_THEM),
    "index_select_default": (
        lambda x: x.index_select(1, torch.tensor(1)),
        "its index is a scalar, and OpenVINO's result lacks a dimension",
    ),
}
NUMBER_CALLS: Mapping[str, Callable[[Tensor], Any]] = {
    "amin_default": lambda x: x.amin(-1, keepdim=True),
    "argmax_default": lambda x: x.argmax(0),
    "flip_default": lambda x: x.flip(0),
    "index_select_default": lambda x: x.index_select(0, torch.tensor([0])),
    "mean_dim": lambda x: x.mean(0),
    "sort_default": lambda x: x.sort(0)[0],
    "sum_dim_int_list": lambda x: x.sum(0, keepdim=True),
    "topk_default": lambda x: x.topk(1)[0],
    "var_correction": lambda x: x.var(0, correction=0),
}


def test_calls_that_openvino_would_compute_in_another_way_are_left(tmp_path: Path) -> None:
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    lowered = lower(Call(lambda x: [call(x.exp()) for call, _ in CALLS.values()]), x)
    assert reasons(lowered) == {f"aten_{name}": reason for name, (_, reason) in CALLS.items()}
    found = load(save_program(lowered, tmp_path / "program"))(x)
    for name, (call, _), each in zip(CALLS, CALLS.values(), found, strict=True):
        assert difference(each, call(x.exp())) == "", name


def test_a_tensor_without_dimensions_is_left_where_a_call_names_some(tmp_path: Path) -> None:
    taken_calls = (torch.sum, torch.amax, torch.linalg.vector_norm, lambda x: x.unsqueeze(0).amax(0))
    calls = [*NUMBER_CALLS.values(), *taken_calls]
    x = torch.tensor(1.5)
    lowered = lower(Call(lambda x: [call(x.exp()) for call in calls]), x)
    left = {
        name
        for name, reason in reasons(lowered).items()
        if reason.endswith("which has no dimensions") and "getitem" not in name
    }
    assert left == {f"aten_{name}" for name in NUMBER_CALLS}
    found = load(save_program(lowered, tmp_path / "program"))(x)
    for call, each in zip(calls, found, strict=True):
        assert difference(each, call(x.exp())) == ""


# Sizes, outputs, state.


def test_an_input_that_no_result_depends_on_is_not_given_to_openvino(tmp_path: Path) -> None:
    def net(x: Tensor, mask: Tensor, other: Tensor) -> Tensor:
        (mask & other).to(torch.bool)  # whose dtype torch checks, and nothing else uses it
        return x.exp()

    given = torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool)
    lowered = lower(Call(net), *given)
    assert taken(lowered) == {"aten.exp.default"}
    torch.testing.assert_close(load(save_program(lowered, tmp_path / "program"))(*given), net(*given))


def test_a_weight_of_a_dynamic_size_is_left(tmp_path: Path) -> None:
    def net(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv1d(x, weight, groups=2).exp()

    shapes = ({}, {2: Dim("width", min=1, max=4)})
    lowered = lower(Call(net), torch.randn(3, 4, 8), torch.randn(2, 2, 3), shapes=(shapes,))
    assert set(reasons(lowered).values()) == {"a convolution by a weight of a dynamic size is left"}
    model = load(save_program(lowered, tmp_path / "program"))
    for width in (1, 3):
        x, weight = torch.randn(3, 4, 8), torch.randn(2, 2, width)
        torch.testing.assert_close(model(x, weight), net(x, weight))


def test_sizes_are_symbolic_and_may_be_0(tmp_path: Path) -> None:
    def net(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = x.shape[0]
        return (
            x.view(rows, 2, 4).sin(),
            torch.cat([x, x * 2]).view(2 * rows, 8),
            y.cos(),
            x.sum(0) + y.mean(0).sum(),
            x.prod(0),
        )

    shapes = ({0: Dim("rows", max=64)}, {1: Dim("columns", min=1, max=9)})
    lowered = lower(Call(net), torch.ones(3, 8), torch.ones(2, 5), shapes=(shapes,))
    assert len(delegates(lowered)) == 1
    model = load(save_program(lowered, tmp_path / "program"))
    for rows, columns in ((3, 5), (1, 1), (64, 9), (0, 2)):
        x, y = torch.randn(rows, 8), torch.randn(2, columns)
        for found, expected in zip(model(x, y), net(x, y), strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True)


def test_an_average_that_may_be_of_nothing_is_left() -> None:
    shapes = ({0: Dim("rows", max=64)},)
    lowered = lower(Call(lambda x: (x.sin().mean(0), x.mean(1))), torch.ones(3, 8), shapes=(shapes,))
    assert reasons(lowered) == {
        "aten_mean_dim": "OpenVINO's average over no elements differs, and a dynamic size may be 0"
    }


def test_an_average_of_at_least_one_is_taken(tmp_path: Path) -> None:
    shapes = ({0: Dim("rows", min=1, max=64)},)
    lowered = lower(Call(lambda x: x.sin().mean(0)), torch.ones(3, 8), shapes=(shapes,))
    assert "aten.mean.dim" in taken(lowered)
    model = load(save_program(lowered, tmp_path / "program"))
    for rows in (1, 3, 64):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(model(x), x.sin().mean(0))


def test_attention_over_a_symbolic_number_of_keys_is_decomposed(tmp_path: Path) -> None:
    def net(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    lowered = lower(Call(net), torch.randn(1, 2, 5, 8), shapes=(({2: Dim("length", max=64)},),))
    assert "aten.scaled_dot_product_attention.default" not in taken(lowered)
    assert "aten.bmm.default" in taken(lowered)
    model = load(save_program(lowered, tmp_path / "program"))
    for length in (1, 4, 64, 1, 33):  # OpenVINO's own attention is wrong from 16 keys on, if the first call had one
        x = torch.randn(1, 2, length, 8)
        torch.testing.assert_close(model(x), net(x))


def test_attention_over_at_least_two_keys_stays_whole(tmp_path: Path) -> None:
    def net(x: Tensor, past: Tensor) -> Tensor:
        keys = torch.cat([past, x], 2)
        return F.scaled_dot_product_attention(x, keys, keys * 2)

    shapes = (({2: Dim("tokens", min=1, max=64)}, {2: Dim("past", min=1, max=64)}),)
    lowered = lower(Call(net), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8), shapes=shapes)
    assert "aten.scaled_dot_product_attention.default" in taken(lowered)
    model = load(save_program(lowered, tmp_path / "program"))
    for tokens, past in ((1, 1), (1, 40), (5, 1), (1, 1), (1, 17), (33, 60), (1, 2)):
        x, earlier = torch.randn(1, 2, tokens, 8), torch.randn(1, 2, past, 8)
        torch.testing.assert_close(model(x, earlier), net(x, earlier))


@pytest.mark.parametrize("kind", ["product", "layer", "convolution"])
def test_a_weight_that_is_used_both_ways_round_is_packed_for_one(kind: str, tmp_path: Path) -> None:
    shape = (4, 4, 3, 3) if kind == "convolution" else (4, 4)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(shape))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            if kind == "convolution":
                return F.conv2d(x, self.weight), F.conv_transpose2d(x, self.weight), F.conv2d(x + 1, self.weight)
            if kind == "layer":
                return (
                    x @ self.weight,
                    F.linear(x, self.weight),
                    F.linear(x, self.weight.t()),
                    F.linear(-x, self.weight),
                )
            return x @ self.weight, x @ self.weight.t(), (x + 1) @ self.weight

    net, x = Net(), torch.randn(1, 4, 9, 9) if kind == "convolution" else torch.randn(2, 4)
    lowered = lower(net, x)
    told = [reason for reason in reasons(lowered).values() if "packs a weight once" in reason]
    assert len(told) == {"product": 1, "layer": 2, "convolution": 1}[kind]
    model = load(save_program(lowered, tmp_path / "program"))
    for found, expected in zip(model(x), net(x), strict=True):
        torch.testing.assert_close(found, expected.detach())


def test_outputs_are_those_of_eager_with_its_strides(tmp_path: Path) -> None:
    def net(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return y, x, y, y.permute(0, 2, 1), y.transpose(0, 2).contiguous(), y.sum(), x[0], x.view(-1)

    model = load(save_program(lower(Call(net), torch.ones(2, 3, 4)), tmp_path / "program"))
    x = torch.randn(2, 3, 4)
    first, second = model(x), model(x + 1)
    for results, given in ((first, x), (second, x + 1)):
        for found, expected in zip(results, net(given), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


def test_inputs_may_lie_as_they_like(tmp_path: Path) -> None:
    program = lower(Call(lambda x: x * 2 + 1), torch.ones(4, 3).t())
    model = load(save_program(program, tmp_path / "program"))
    x = torch.randn(4, 3).t()
    torch.testing.assert_close(model(x), x * 2 + 1)


def test_int64_stays_outside_unless_it_is_an_index(tmp_path: Path) -> None:
    table = torch.randn(7, 3)

    def net(ids: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
        return F.embedding(ids[:, 1:].reshape(-1), table).tanh(), wide * 3 + (wide > 2**40)

    ids, wide = torch.randint(0, 7, (2, 4)), torch.tensor([2**41, 5, -(2**61)])
    lowered = lower(Call(net), ids, wide)
    assert {"aten.embedding.default", "aten.view.default", "aten.tanh.default"} <= taken(lowered)
    assert "it chooses among indices, and OpenVINO does not notice indices out of range" in reasons(lowered).values()
    assert reasons(lowered)["aten_mul_tensor"] == "its result is int64, which OpenVINO computes as int32"
    model = load(save_program(lowered, tmp_path / "program"))
    for found, expected in zip(model(ids, wide), net(ids, wide), strict=True):
        assert torch.equal(found, expected) or found.is_floating_point()
        torch.testing.assert_close(found, expected)


def test_integers_between_integers_that_stay_outside_are_no_partition(tmp_path: Path) -> None:
    table = torch.randn(9, 3)

    def net(ids: Tensor) -> Tensor:
        seen = (ids != 0).int()
        places = (torch.cumsum(seen, 1).int() + 1) * seen
        return F.embedding(places.long(), table).tanh() + F.embedding(ids, table)

    ids = torch.tensor([[3, 4, 0], [5, 0, 0]])
    lowered = lower(Call(net), ids)
    (delegate,) = delegates(lowered)
    assert "aten.tanh.default" in operators_of(delegate)
    assert "its partition would compute positions alone, which takes torch less time than a call of OpenVINO" in (
        reasons(lowered).values()
    )
    torch.testing.assert_close(load(save_program(lowered, tmp_path / "program"))(ids), net(ids))


def test_integers_are_a_partition_where_there_is_no_other() -> None:
    ids = torch.ones(2, 3, dtype=torch.int32)
    assert len(delegates(lower(Call(lambda x: (x + 1) * x), ids))) == 1


NOTHING = torch.full((2, 2, 3), float("nan"))


@pytest.mark.parametrize(
    ("places", "values"),
    [
        ([0, 1], (2, 2, 3)),
        ([7, 6], (2, 2, 3)),
        ([-1, -8], (2, 2, 3)),
        ([[0, 3], [1, 2]], (2, 2, 2, 3)),
        ([[0, 3], [1, 2]], (2, 1, 3)),
        (5, (2, 3)),
        (-1, (3,)),
        ([2, 4], ()),
        ([2, 4], (1, 3)),
    ],
)
def test_values_are_written_where_an_index_says(places: Any, values: tuple[int, ...], tmp_path: Path) -> None:
    def net(table: Tensor, index: Tensor, new: Tensor) -> tuple[Tensor, ...]:
        written = put(table, index, new)
        return written, written * 2, table.sum(0), table.view(16, 3)

    table, new = torch.randn(2, 8, 3), torch.randn(values)
    for dtype in (torch.int64, torch.int32):
        index = torch.tensor(places, dtype=dtype)
        lowered = lower(Call(net), table, index, new)
        assert (len(delegates(lowered)), "aten.index_put.default" in taken(lowered)) == (1, True)
        model = load(save_program(lowered, tmp_path / f"{dtype}"))
        for given in ((table, index, new), (table + NOTHING[0, 0], index, new), (table, index, new + NOTHING[0, 0, 0])):
            before = given[0].clone()
            for found, expected in zip(model(*given), net(*given), strict=True):
                assert torch.equal(found.nan_to_num(), expected.nan_to_num())
            assert torch.equal(given[0].nan_to_num(), before.nan_to_num()), "an input is not changed"


def test_as_many_values_are_written_as_there_are(tmp_path: Path) -> None:
    def net(table: Tensor, index: Tensor, new: Tensor) -> Tensor:
        return put(table, index, new) * 2

    rows, count = Dim("rows", max=9), Dim("count", max=8)
    table, index, new = torch.randn(2, 8, 3), torch.arange(5), torch.randn(2, 5, 3)
    lowered = lower(Call(net), table, index, new, shapes=(({0: rows}, {0: count}, {0: rows, 1: count}),))
    assert reasons(lowered).keys() <= {"aten_sym_size_int", "aten_sym_size_int_1"}
    model = load(save_program(lowered, tmp_path / "program"))
    for height, width in ((2, 5), (1, 1), (9, 8), (0, 3), (4, 0)):
        given = torch.randn(height, 8, 3), torch.randperm(8)[:width], torch.randn(height, width, 3)
        assert torch.equal(model(*given), net(*given))


def test_indices_that_cannot_be_compared_before_a_call_are_left() -> None:
    def net(x: Tensor, whole: Tensor, new: Tensor) -> tuple[Tensor, ...]:
        mask = x[:3] > 0
        return (
            x[torch.tensor([0, 4])].sin(),
            x[:, whole.to(torch.int32) + 1],
            x[:3].index_put((mask,), new[0, 0]) * 2,
            x[:3].index_put((whole, whole), new[0, :2], accumulate=True) * 2,
            x[whole, whole] * 2,
            x[:3][whole.to(torch.int32) + 1, whole] * 2,
            x[:3][:, None][whole, :, whole] * 2,
            x[torch.tensor([0, 4]), torch.tensor([1, 2])] * 2,
        )

    shapes = ({0: Dim("rows", min=5, max=9)}, {}, {})
    lowered = lower(Call(net), torch.randn(6, 3), torch.tensor([0, 1]), torch.randn(3, 3), shapes=(shapes,))
    assert set(reasons(lowered).values()) >= {
        "it chooses among indices, and OpenVINO does not notice indices out of range",
        "OpenVINO would compute its indices, and does not notice indices out of range",
        "`aten.index.Tensor` has several indices, which cannot be passed to OpenVINO as a single index",
        "this form of `aten.index_put.default` has no counterpart",
    }
    assert not {"aten.index.Tensor", "aten.index_put.default"} & taken(lowered)


def test_indices_that_are_written_among_others_are_taken_only_where_all_are_known(tmp_path: Path) -> None:
    table, first, second = torch.randn(5, 3), torch.arange(4), torch.tensor([4, 4])

    def net(ids: Tensor, new: Tensor) -> Tensor:
        return F.embedding(ids.slice_scatter(new, 0, 1, 3), table).tanh()

    lowered = lower(Call(lambda x: x + net(first, second)), torch.randn(4, 3))
    assert reasons(lowered) == {}
    x = torch.randn(4, 3)
    torch.testing.assert_close(load(save_program(lowered, tmp_path / "known"))(x), x + net(first, second))

    lowered = lower(Call(net), first, second)
    assert "aten.slice_scatter.default" not in taken(lowered)
    found = "it chooses among indices, and OpenVINO does not notice indices out of range"
    assert found in reasons(lowered).values()
    model = load(save_program(lowered, tmp_path / "given"))
    torch.testing.assert_close(model(first, second), net(first, second))
    with pytest.raises(CallError, match="an index is out of range"):
        model(first, torch.tensor([4, 5]))


class Cached(nn.Module):
    """Two layers of attention over all tokens so far, whose keys and values are state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.register_buffer("visible", torch.ones(8, 8, dtype=torch.bool).tril())
        for name in ("key0", "value0", "key1", "value1"):
            self.register_buffer(name, torch.zeros(3, 2, 8, 4))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            query, key, value = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in layer(x).chunk(3, -1))
            keys, values = getattr(self, f"key{number}"), getattr(self, f"value{number}")
            keys[:, :, places] = key
            values[:, :, places] = value
            seen = F.scaled_dot_product_attention(query, keys, values, attn_mask=self.visible[places])
            x = x + seen.transpose(1, 2).flatten(2)
        return x


def test_a_decoder_with_a_cache_is_one_partition(tmp_path: Path) -> None:
    length = Dim("length", min=2, max=8)
    shapes = {"x": {1: length}, "places": {0: length}}
    net = Cached().eval()
    programs = {
        "prefill": torch.export.export(net, (torch.randn(3, 4, 8), torch.arange(4)), dynamic_shapes=shapes),
        "decode": torch.export.export(net, (torch.randn(3, 1, 8), torch.tensor([0]))),
    }
    lowered = to_edge_transform_and_lower(programs, partitioner=[OpenvinoBackend.partitioner({"threads": 1})])
    program = lowered.to_executorch()
    for method in programs:
        assert len(list(get_lowered_submodules(program.exported_program(method).graph_module))) == 1
    assert set(program.reasons["decode"].values()) == set()
    model = load(save_program(program, tmp_path / "program"))
    with torch.no_grad():
        for first in (0, 5, 2):  # until the last place, and again from an earlier one
            x, places = torch.randn(3, 3, 8), torch.arange(first, first + 3)
            torch.testing.assert_close(model.prefill(x, places), net(x, places))
            for place in range(first + 3, 8):
                x = torch.randn(3, 1, 8)
                torch.testing.assert_close(model.decode(x, torch.tensor([place])), net(x, torch.tensor([place])))
    with pytest.raises(CallError, match="an index is out of range") as caught:
        model.decode(torch.randn(3, 1, 8), torch.tensor([8]))
    assert caught.value.found.startswith("8")
    assert caught.value.found.endswith(", where a table has 8 rows")


def test_state_control_flow_and_sizes_of_contents_stay_outside(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.count.add_(x.sin())
            chosen = torch.cond(x.sum() > 0, lambda y: y.cos() * 2, lambda y: y.exp(), (x,))
            return self.count * 2 + chosen, x[x > 0] * 2

    lowered = lower(Net(), torch.ones(3))
    told = reasons(lowered)
    assert any("holds graphs of its own" in reason for reason in told.values())
    model, net = load(save_program(lowered, tmp_path / "program")), Net()
    for x in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-1.0, -2.0, 3.0]), torch.ones(3)):
        for found, expected in zip(model(x), net(x), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_dtypes_that_openvino_computes_in_another_are_left(dtype: torch.dtype) -> None:
    lowered = lower(Call(lambda x: x.sin() * 2), torch.ones(3, dtype=dtype))
    assert delegates(lowered) == []
    name = str(dtype).removeprefix("torch.")
    why = ", which OpenVINO computes as float32" if dtype is torch.float64 else ""
    assert set(reasons(lowered).values()) == {f"its result is {name}{why}"}


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_that_sees_nothing_is_0(kind: str, tmp_path: Path) -> None:
    def net(x: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    x, mask = torch.randn(1, 2, 5, 8), torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    mask[..., 2, :] = False
    if kind == "float":
        mask = torch.zeros(1, 1, 5, 5).masked_fill(~mask, float("-inf"))
    lowered = lower(Call(net), x, mask)
    assert "aten.scaled_dot_product_attention.default" in taken(lowered)
    model = load(save_program(lowered, tmp_path / "program"))
    torch.testing.assert_close(model(x, mask), net(x, mask))


def test_what_only_moves_values_is_not_worth_a_call() -> None:
    lowered = lower(Call(lambda x: x.permute(1, 0)[:, 1:]), torch.ones(3, 4))
    assert delegates(lowered) == []
    assert set(reasons(lowered).values()) == {"it only moves values, and its neighbours are not taken"}


def test_an_excluded_operator_is_left() -> None:
    lowered = lower(Call(lambda x: x.sin().cos()), torch.ones(3), exclude=["aten.cos.default"])
    assert taken(lowered) == {"aten.sin.default"}
    assert reasons(lowered) == {"aten_cos_default": "`aten.cos.default` is excluded by the recipe"}


class Wanting(ReferencePartitioner):
    """Takes what is left, and wants some operators whole."""

    def __init__(self, *operators: OpOverload) -> None:
        super().__init__()
        self.operators = list(operators)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], None]:
        return self.operators, None


def test_what_a_backend_wants_whole_is_whole_whoever_comes_first() -> None:
    def net(x: Tensor, weight: Tensor) -> Tensor:
        query = F.linear(x, weight)
        return F.elu(F.group_norm(F.scaled_dot_product_attention(query, x, x), 2))

    program = torch.export.export(Call(net), (torch.randn(1, 2, 5, 8), torch.randn(8, 8)))
    ours, other = OpenvinoBackend.partitioner({}), Wanting(torch.ops.aten.group_norm.default)
    mine = ["aten.linear.default", "aten.scaled_dot_product_attention.default"]
    theirs, last = ["aten.group_norm.default"], ["aten.elu.default"]
    for partitioners, expected in (
        ([ours, other], [("openvino", mine), ("reference", theirs), ("openvino", last)]),
        ([other, ours], [("reference", mine + theirs + last)]),
    ):
        lowered = to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch()
        assert [(each.backend_id, operators_of(each)) for each in delegates(lowered)] == expected


def test_composites_that_another_backend_wants_whole_are_taken(tmp_path: Path) -> None:
    names = words("conv1d conv2d conv3d hardswish layer_norm log_softmax max_pool2d silu softmax")
    cases = {name: FLOATING[name] for name in names}
    net = Call(lambda x, y: tuple(flat([case(x, y) for case in cases.values()])))
    program = torch.export.export(net, samples(torch.float32)[0])
    partitioners = [OpenvinoBackend.partitioner({"threads": 1}), Wanting(*COMPOSITES, *KEPT_OPERATORS)]
    lowered = to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch()
    assert taken(lowered) >= WHOLE
    assert {each.backend_id for each in delegates(lowered)} == {"openvino"}
    assert all(map(every_handle_is_known, delegates(lowered)))
    model = load(save_program(lowered, tmp_path / "program"))
    assert differences(model, cases, *samples(torch.float32)[0]) == {}
    assert set(differences(model, cases, *special())) <= INFINITE
    assert set(differences(model, cases, *special(59))) <= NOT_A_NUMBER


# Models in 8-bit integers.

QUANTIZERS = {"xnnpack": xnnpack_quantizer, "x86": x86_quantizer}


@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("model", [partial(mlp, 256), conv_net], ids=["mlp", "conv_net"])
def test_a_quantized_model_is_one_partition(model: Any, quantizer: str, tmp_path: Path) -> None:
    module, inputs = model()
    net = quantized(module, inputs, QUANTIZERS[quantizer]())
    lowered = lower_graph(net, *inputs)
    assert (len(delegates(lowered)), reasons(lowered)) == (1, {})
    found = load(save_program(lowered, tmp_path / "program"))
    kernels = kernels_of(tmp_path / "program")
    with torch.no_grad():
        torch.testing.assert_close(found(*inputs), net(*inputs), rtol=1e-4, atol=1e-5)
    if sums_integers():
        assert sum("i8" in kernel.lower() for kernel in kernels) >= 3, kernels
    else:
        assert kernels
        assert not any("i8" in kernel.lower() for kernel in kernels), kernels


def lower_graph(net: nn.Module, *inputs: Any, **options: Any) -> LoweredProgram:
    # what PT2E gives has no training mode
    program = torch.export.export(net, inputs)
    return to_edge_transform_and_lower(
        program, partitioner=[OpenvinoBackend.partitioner({"threads": 1, **options})]
    ).to_executorch()


def kernels_of(folder: Path) -> list[str]:
    """Return the kernels that a program's only partition runs products with."""
    compiled: list[Any] = []

    class Noting:
        """The engine, which keeps what it compiles."""

        read_model = staticmethod(engine().read_model)

        def compile_model(self, model: Any, *rest: Any) -> Any:
            compiled.append(engine().compile_model(model, *rest))
            return compiled[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "engine_of_integers", Noting)
        load(folder)
    nodes = [node.get_rt_info() for node in compiled[0].get_runtime_model().get_ops()]
    products = ("FullyConnected", "Convolution", "MatMul")
    return [str(info["primitiveType"].value) for info in nodes if str(info["layerType"].value).startswith(products)]


@pytest.mark.parametrize(
    ("scale", "zero_point", "least", "greatest", "dtype"),
    [
        (0.25, -7, -128, 127, torch.int8),  # multiples of 1/8 lie between two steps
        (0.25, 0, -127, 127, torch.int8),
        (0.018996672704815865, -6, -128, 127, torch.int8),
        (0.03, 117, 0, 255, torch.uint8),
        (0.5, 3, 0, 15, torch.uint8),
    ],
)
def test_numbers_are_quantized_as_in_eager(
    scale: float, zero_point: int, least: int, greatest: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    facts = (scale, zero_point, least, greatest, dtype)

    def net(x: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.ops.quantized_decomposed.quantize_per_tensor(x, *facts)
        return steps, torch.ops.quantized_decomposed.dequantize_per_tensor(steps, *facts)

    between = (torch.arange(-300, 300) + 0.5) * scale
    up, down = (torch.nextafter(between, torch.tensor(limit)) for limit in (float("inf"), float("-inf")))
    x = torch.cat([between, up, down, torch.tensor([float("inf"), float("-inf"), 1e30, -1e30, 0.0, -0.0, 1e-40])])
    lowered = lower(Call(net), x)
    assert (len(delegates(lowered)), reasons(lowered)) == (1, {})
    model = load(save_program(lowered, tmp_path / "program"))
    (steps, numbers), expected = model(x), net(x)
    assert torch.equal(steps, expected[0])
    torch.testing.assert_close(numbers, expected[1], rtol=1e-6, atol=1e-5 * scale)


class Convolved(nn.Module):
    """A convolution, and a linear layer, of integers of a range; weights are int8."""

    def __init__(self, *facts: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.facts = (0.05, *facts)
        self.weight = nn.Buffer(torch.randint(-127, 128, (8, 8, 3, 3), dtype=torch.int8))
        self.scales, self.zeros = nn.Buffer(torch.rand(8) * 0.01), nn.Buffer(torch.zeros(8, dtype=torch.int64))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first, second = self.rounded(x), self.rounded(y)
        weight = torch.ops.quantized_decomposed.dequantize_per_channel(
            self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8
        )
        joined = torch.cat([first, second], 2)
        return (
            F.conv2d(first, weight, None, 1, 1),
            F.conv2d(F.max_pool2d(first, 2), weight, None, 1, 1),
            F.conv2d(joined, weight, None, 1, 1),
            F.linear(self.rounded(x[0, 0, :, :3]), weight[:, 0, 0]),
        )

    def rounded(self, x: Tensor) -> Tensor:
        steps = torch.ops.quantized_decomposed.quantize_per_tensor(x, *self.facts)
        return torch.ops.quantized_decomposed.dequantize_per_tensor(steps, *self.facts)


@pytest.mark.parametrize(
    ("zero_point", "least", "greatest"),
    [(0, -128, 127), (0, -127, 127), (0, -128, 126), (-3, -128, 127), (1, -127, 127), (-128, -128, 127), (0, -7, 7)],
)
def test_signed_integers_of_each_range_are_multiplied_as_in_eager(
    zero_point: int, least: int, greatest: int, tmp_path: Path
) -> None:
    # OpenVINO's own conversion to integers without a sign moved numbers by a step where a range has no 256 integers
    net = Convolved(zero_point, least, greatest, torch.int8)
    inputs = (torch.randn(2, 8, 6, 6) * 3, torch.randn(2, 8, 6, 6))
    lowered = lower_graph(net, *inputs)
    found = load(save_program(lowered, tmp_path / "program"))(*inputs)
    torch.testing.assert_close(found, net(*inputs), rtol=1e-5, atol=1e-4)


def test_integers_of_a_convolution_have_no_sign_in_the_model() -> None:
    # with a sign and a zero point, OpenVINO computes a convolution in float32 where a processor has AMX
    module, inputs = conv_net()
    lowered = lower_graph(quantized(module, inputs, xnnpack_quantizer()), *inputs)
    (delegate,) = delegates(lowered)
    assert b'destination_type="u8"' in delegate.processed_bytes
    assert b'destination_type="i8"' not in delegate.processed_bytes


class Pooled(nn.Module):
    """What OpenVINO would average and bound in integers, between two products."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.pool = nn.Linear(16, 16), nn.Linear(16, 16), pool

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.pool(self.first(x)))
        return result


@pytest.mark.parametrize(
    "pool",
    [lambda x: x.mean(1), lambda x: F.hardtanh(x, -0.3, 0.4), lambda x: F.avg_pool2d(x, (3, 1))],
    ids=["mean", "bounds", "pool"],
)
def test_averages_and_bounds_between_integers_are_those_of_eager(pool: Any, tmp_path: Path) -> None:
    # no average of 3 or 7 steps lies in the middle of two, where both sides may round either way
    x = torch.randn(2, 7, 16)
    for name, quantizer in QUANTIZERS.items():
        net = quantized(Pooled(pool).eval(), (x,), quantizer())
        model = load(save_program(lower_graph(net, x), tmp_path / name))
        with torch.no_grad():
            assert torch.isclose(model(x), net(x), rtol=1e-4, atol=1e-5).float().mean() > 0.98, name


def test_a_quotient_is_that_of_eager(tmp_path: Path) -> None:
    def net(x: Tensor, y: Tensor) -> Any:
        return torch.floor(x / y), x / y, x / 255

    given = torch.tensor([0.0, -0.0, 1e-45, 1e-40, 1.5e-38, 3.0, 1e30, float("inf"), float("nan")])
    whole = torch.arange(1.0, 200.0)
    for name, x, y in (("special", given.view(-1, 1), given), ("whole", whole.view(-1, 1) * whole, whole)):
        lowered = lower(Call(net), x, y, **{"finite-only": False})
        assert (len(delegates(lowered)), reasons(lowered)) == (1, {})
        for found, expected in zip(load(save_program(lowered, tmp_path / name))(x, y), net(x, y), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_weights_alone_in_integers_are_multiplied_by_float32(tmp_path: Path) -> None:
    module, inputs = mlp(64)
    net = quantized(module, inputs, xnnpack_quantizer(dynamic=True))
    lowered = lower_graph(net, *inputs, exclude=["quantized_decomposed.choose_qparams.tensor"])
    assert "quantized_decomposed.dequantize_per_channel.default" in taken(lowered)
    assert "quantized_decomposed.choose_qparams.tensor" not in taken(lowered)
    model = load(save_program(lowered, tmp_path / "program"))
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), net(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "sizes", "size"),
    [((3, 8), {0: Dim("rows", min=1, max=9), 1: Dim("columns", min=4, max=9)}, 2), ((3, 900), {}, 400), ((), {}, 1)],
    ids=["a symbolic size", "200,400 places", "a number"],
)
def test_windows_that_are_not_few_and_known_are_left(shape: tuple[int, ...], sizes: Any, size: int) -> None:
    net = Call(lambda x: x.unfold(-1, size, 1).exp())
    with pytest.raises(EdgeViolationError, match=r"aten.unfold.default is not core ATen"):  # nobody took it
        lower(net, torch.randn(shape), shapes={"args": (sizes,)})


def test_what_is_quantized_by_tensors_of_a_call_is_left() -> None:
    def net(x: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        facts = (0, -127, 127, torch.int8)
        return torch.ops.quantized_decomposed.dequantize_per_channel(x, scales, zeros, *facts) + 1

    x, scales = torch.ones(4, 3, dtype=torch.int8), torch.rand(4)
    lowered = lower(Call(net), x, scales, torch.zeros(4, dtype=torch.int64))
    assert "`args_1` is not a constant" in reasons(lowered).values()


def test_a_weight_in_integers_that_is_used_both_ways_round_is_packed_for_one(tmp_path: Path) -> None:
    scales = torch.rand(16) * 0.01
    weight = torch.randint(-127, 128, (16, 16), dtype=torch.int8)

    def net(x: Tensor) -> tuple[Tensor, Tensor]:
        facts = (0, -127, 127, torch.int8)
        numbers = torch.ops.quantized_decomposed.dequantize_per_channel(weight, scales, None, *facts)
        return F.linear(x, numbers), x @ numbers

    x = torch.randn(4, 16)
    lowered = lower(Call(net), x)
    assert len([reason for reason in reasons(lowered).values() if "packs a weight once" in reason]) == 1
    for found, expected in zip(load(save_program(lowered, tmp_path / "out"))(x), net(x), strict=True):
        torch.testing.assert_close(found, expected)


NORMS = """
import numpy as np
from hatch_lower.backends.openvino.library import engine, import_openvino

openvino = import_openvino()
given = openvino.op.Parameter(openvino.Type.f32, openvino.Shape([2, 8]))
axes = openvino.opset13.constant(np.array([1]))
norm = openvino.opset13.mvn(given, axes, True, 1e-5, "INSIDE_SQRT")
model = engine().compile_model(openvino.Model([norm], [given], "norm"), "CPU")
print(abs(model([np.arange(16, dtype=np.float32).reshape(2, 8)])[0].sum()) < 1e-4)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the variable is for processors of x86-64")
def test_norms_are_computed_under_the_instructions_of_builds(tmp_path: Path) -> None:
    path = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": path, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", NORMS]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True"])


SATURATING = """
import runpy, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from hatch_lower.backends.openvino import library
library.ONEDNN = "LIBRARY_READS_ITS_OWN"  # stands for an old processor: the variable stays for OpenVINO
test = runpy.run_path(sys.argv[1])
print(test["sums_integers"]())
test["test_a_quantized_model_is_one_partition"](test["conv_net"], "x86", Path(sys.argv[2]))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the variable is for processors of x86-64")
def test_a_processor_whose_sums_of_integers_overflow_computes_in_floating_point(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", SATURATING, __file__, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


# What is made of a partition.


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.last = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.last(F.gelu(self.norm(self.first(x)))), -1)


def lower_net(seed: int = 0) -> LoweredProgram:
    return lower(Net(seed), torch.ones(3, 64), shapes={"x": {0: Dim("rows", max=100)}}, threads=2)


def digests(lowered: LoweredProgram) -> list[str]:
    (delegate,) = delegates(lowered)
    contents = [delegate.processed_bytes, *delegate.named_data_store_output.buffers]
    return [hashlib.sha256(each).hexdigest() for each in contents]


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(64, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).reshape(-1, 2, 64).transpose(0, 1).sum(-1)


def test_literals_are_compared_when_a_program_is_loaded(tmp_path: Path) -> None:
    folder = save_program(lower(Wide(), torch.ones(3, 64)), tmp_path / "out")
    (data,) = folder.rglob("*.blob")
    contents = data.read_bytes()
    assert len(contents) < 1024, "no weights"
    for position in range(0, len(contents), 8):
        damaged = bytearray(contents)
        damaged[position] ^= 1
        data.write_bytes(damaged)
        with pytest.raises(ProgramError) as caught:
            load(folder)
        assert str(data) in caught.value.where


def test_a_result_says_what_the_wheel_must_know() -> None:
    (delegate,) = delegates(lower_net())
    result = delegate.result
    (name,) = delegate.named_data_store_output.pte_data
    assert (result.suffix, result.requirements, result.target) == ("xml", ("openvino>=2026.0,<2027",), None)
    assert dict(result.info) == {
        "device": "CPU",
        "threads": 2,
        "bound": list(range(6)),
        "literals": name,
        "inputs": 1,
        "passed": [0],
        "indices": [],
        "outputs": [0],
    }
    assert delegate.named_data_store_output.pte_data[name].alignment == 64
    for each in (sys.prefix, os.getcwd(), "2026", "/tmp"):
        assert each.encode() not in result.processed_bytes


def test_every_operation_is_in_the_debug_map() -> None:
    (delegate,) = delegates(lower_net())
    assert every_handle_is_known(delegate)
    nodes = delegate.original_module.graph.nodes
    gelu = next(node for node in nodes if operator_name(node.target) == "aten.gelu.default")
    found = debug_map_of(delegate)
    (name,) = (name for name, handles in found.items() if name.endswith("/Gelu"))
    assert found[name] == (gelu.meta["debug_handle"],)


ELSEWHERE = """
import runpy, sys, warnings
warnings.simplefilter("ignore")
test = runpy.run_path(sys.argv[1])
print(*test["digests"](test["lower_net"]()))
"""


def test_bytes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    here = digests(lower_net())
    assert digests(lower_net()) == here
    assert digests(lower_net(seed=1)) == here, "nothing depends on what constants hold"
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "77", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", ELSEWHERE, __file__]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here


# The run half.


@pytest.fixture(scope="module")
def blob(tmp_path_factory: pytest.TempPathFactory) -> DelegateBlob:
    (delegate,) = delegates(lower_net())
    path = tmp_path_factory.mktemp("blob") / "net.xml"
    path.write_bytes(delegate.processed_bytes)
    (buffer,) = delegate.named_data_store_output.buffers
    return DelegateBlob(path, delegate.result.info, {delegate.result.info["literals"]: memoryview(buffer)})


@pytest.fixture(scope="module")
def constants() -> list[Tensor]:
    (delegate,) = delegates(lower_net())
    program = delegate.original_module
    return [constant_of(program, spec).detach() for spec in constant_specs(program)]


def test_constants_of_every_dtype_and_layout_give_eagers_numbers(tmp_path: Path) -> None:
    class Every(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turned", torch.randn(3, 4).t())
            self.register_buffer("narrow", torch.randn(4, 3, dtype=torch.float16))
            self.register_buffer("broad", torch.randn(4, 3).bfloat16())
            self.register_buffer("number", torch.tensor(2.5))
            self.register_buffer("flags", torch.tensor([[True, False, True]]))
            self.register_buffer("whole", torch.tensor([2, 0, 1]))
            self.register_buffer("nothing", torch.zeros(0, 3))

        def forward(self, x: Tensor) -> Tensor:
            mixed = x * self.turned + self.narrow.float() + self.broad.float() * self.number
            return torch.cat([torch.where(self.flags, mixed, -mixed) * self.whole, self.nothing])

    module, x = Every(), torch.randn(4, 3)
    model = load(save_program(lower(module, x), tmp_path / "out"))
    torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["CPU", "AUTO"])
def test_device_and_threads_are_those_of_the_recipe(blob: DelegateBlob, constants: list[Tensor], device: str) -> None:
    delegate = of_tensors(OpenvinoDelegate).load(changed(blob, device=device), constants)
    assert delegate.inner._compiled.get_property("EXECUTION_DEVICES") == ["CPU"]
    if device == "CPU":
        assert delegate.inner._compiled.get_property("INFERENCE_NUM_THREADS") == 2
    x = torch.randn(3, 64)
    torch.testing.assert_close(delegate.run([x])[0], Net().eval()(x).detach())


def test_a_model_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    class Counting:
        """The engine, which notes what it compiles for."""

        read_model = staticmethod(engine().read_model)

        def compile_model(self, model: Any, *rest: Any) -> Any:
            compiled.append(rest[0])
            return engine().compile_model(model, *rest)

    monkeypatch.setattr(run, "engine", Counting)
    model = load(save_program(lower_net(), tmp_path / "program"))
    for rows in (1, 5, 100):
        x = torch.randn(rows, 64)
        for each in (model, model.clone()):
            torch.testing.assert_close(each(x), Net().eval()(x).detach())
    assert compiled == ["CPU"]


def refuse(node: Any, opset: Any, *values: Any) -> Any:
    raise TypeError("no such thing")


def test_an_operation_that_openvino_cannot_convert_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITTEN, "aten.log1p.default", refuse)  # type: ignore[misc]

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.log1p(x.sin() * 2)) + 1

    with pytest.raises(OperationError) as caught, backend_guard("openvino", "model `net`, recipe `fast`"):
        lower(Net(), torch.ones(3))
    error = caught.value
    assert error.what == "OpenVINO could not convert an operation"
    place = "model `net`, recipe `fast`, method `forward`, operation `aten.log1p.default`, "
    assert error.where.startswith(place)
    assert error.where.endswith(f"test_openvino.py:{Net.forward.__code__.co_firstlineno + 1}")
    assert "TypeError: no such thing" in error.found
    assert ".py(" not in error.found
    assert error.hint == 'leave the operator out: `exclude = ["aten.log1p.default"]` in the backend\'s table'


def test_a_partition_whose_operations_convert_alone_is_named_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise ValueError("no room")

    monkeypatch.setattr(import_openvino(), "serialize", fail)
    with pytest.raises(OperationError) as caught, backend_guard("openvino", "model `net`, recipe `fast`"):
        lower(Call(lambda x: x.sin() * 2), torch.ones(3))
    assert caught.value.where.startswith("model `net`, recipe `fast`, method `forward`, a partition of 2 operations")
    assert caught.value.found == "ValueError: no room"
    assert "option `exclude`" in caught.value.hint


def test_several_models_and_threads_at_once(blob: DelegateBlob, constants: list[Tensor]) -> None:
    models, net = [of_tensors(OpenvinoDelegate).load(blob, constants) for _ in range(2)], Net().eval()
    wrong: list[int] = []

    def work(number: int) -> None:
        for rows in range(1, 30):
            x = torch.randn(rows, 64)
            (found,) = models[number % 2].run([x])
            if not torch.allclose(found, net(x).detach(), atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_a_result_is_not_changed_by_the_next_call(blob: DelegateBlob, constants: list[Tensor]) -> None:
    delegate = of_tensors(OpenvinoDelegate).load(blob, constants)
    (first,) = delegate.run([torch.ones(2, 64)])
    kept = first.clone()
    delegate.run([torch.zeros(2, 64)])
    assert torch.equal(first, kept)


def changed(blob: DelegateBlob, **values: Any) -> DelegateBlob:
    return DelegateBlob(blob.path, {**blob.info, **values}, blob.data)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"passed": [1]}, "inputs [1] of 1"),
        ({"indices": [[1, 0, 5]]}, "indices ((1, 0, 5),) of 1 inputs"),
        ({"outputs": [1]}, "outputs [1]"),
        ({"outputs": [{"result": 0, "permute": [0, 2]}]}, "outputs [{'result': 0, 'permute': [0, 2]}]"),
        ({"literals": "others"}, "no named data `others`"),
        ({"bound": [9]}, "constants (9,) of 6"),
        ({"threads": None}, "TypeError"),
    ],
)
def test_damaged_facts_are_refused(blob: DelegateBlob, values: dict[str, Any], found: str) -> None:
    with pytest.raises(
        ProgramError, match="the plan does not describe a partition of the backend `openvino`"
    ) as caught:
        read_info(changed(blob, **values), 6)
    assert found in caught.value.found


@pytest.mark.parametrize("data", [b"\x08\x08:\x00", b"/etc/passwd", b"", b" <?xml version='1.0'?>", b"\x18\0\0\0TFL3"])
def test_a_model_in_another_format_is_not_handed_to_openvino(
    blob: DelegateBlob, constants: list[Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    # OpenVINO reads ONNX as well, whose models name files
    other = tmp_path / "other.xml"
    other.write_bytes(data)
    for name in ("engine", "engine_of_integers"):
        monkeypatch.setattr(f"hatch_lower.backends.openvino.run.{name}", lambda: pytest.fail("OpenVINO is asked"))
    with pytest.raises(ProgramError, match="a file is not a model in OpenVINO's own format"):
        OpenvinoDelegate.load(DelegateBlob(other, blob.info, blob.data), constants)


def test_what_openvino_cannot_load_is_refused(blob: DelegateBlob, constants: list[Tensor], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.xml"
    damaged.write_bytes(blob.path.read_bytes()[:200])
    with pytest.raises(ProgramError, match="OpenVINO cannot load a partition"):
        of_tensors(OpenvinoDelegate).load(DelegateBlob(damaged, blob.info, blob.data), constants)


@pytest.mark.parametrize(
    ("device", "missing"),
    [
        ("TPU", "TPU"),
        ("GPU.7", "GPU.7"),
        ("HETERO:CPU,TPU", "TPU"),
        ("MULTI:TPU,CPU", "TPU"),
        ("BATCH:TPU(4)", "TPU"),
        ("AUTO:TPU", "AUTO:TPU"),
    ],
)
def test_a_device_that_the_machine_lacks_is_named(
    blob: DelegateBlob, constants: list[Tensor], device: str, missing: str
) -> None:
    with pytest.raises(UnavailableError) as caught:
        of_tensors(OpenvinoDelegate).load(changed(blob, device=device), constants)
    assert caught.value.what == f"OpenVINO does not run on the device `{missing}` here"
    assert caught.value.found
    assert caught.value.hint == "install the driver of the device, or take another recipe"


@pytest.mark.parametrize(
    ("device", "present", "missing"),
    [
        ("CPU", [], []),
        ("AUTO", ["CPU"], []),
        ("AUTO:GPU,CPU", ["CPU"], []),
        ("GPU", ["CPU", "GPU"], []),
        ("GPU.0", ["CPU", "GPU"], []),
        ("GPU", ["CPU", "GPU.0", "GPU.1"], []),
        ("GPU.1", ["CPU", "GPU"], ["GPU.1"]),
        ("MULTI:GPU.1,CPU", ["CPU", "GPU.0", "GPU.1"], []),
        ("BATCH:CPU(4)", ["CPU"], []),
        ("HETERO:NPU,GPU,CPU", ["CPU"], ["NPU", "GPU"]),
    ],
)
def test_devices_that_a_recipe_names_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, device: str, present: list[str], missing: list[str]
) -> None:
    monkeypatch.setattr(library, "engine", lambda: SimpleNamespace(available_devices=present))
    assert library.missing_devices(device) == missing


@pytest.mark.parametrize(
    ("device", "running", "elsewhere", "passed"),
    [
        ("GPU", ["GPU.0"], False, ""),
        ("GPU.0", ["GPU"], False, ""),
        ("GPU", ["CPU"], True, ""),
        ("GPU", ["GPU.0", "CPU"], True, ""),
        ("GPU.1", ["GPU.0"], True, ""),
        ("NPU", [], True, ""),
        ("BATCH:GPU(4)", ["GPU.0"], False, ""),
        ("BATCH:GPU(4)", ["CPU"], True, ""),
        ("MULTI:GPU,CPU", ["CPU", "GPU.0"], False, ""),
        ("MULTI:GPU,CPU", ["CPU"], True, ""),
        ("HETERO:GPU,CPU", ["GPU.0"], False, ""),
        ("HETERO:GPU,CPU", ["GPU.0", "CPU"], False, ""),
        ("HETERO:GPU,CPU", ["CPU"], True, ""),
        ("HETERO:GPU,NPU", ["GPU", "CPU"], True, ""),
        ("AUTO", ["CPU"], False, ""),
        ("AUTO:-GPU", ["CPU"], False, ""),
        ("AUTO:GPU,CPU", ["GPU.0"], False, ""),
        ("AUTO:GPU,CPU", ["(CPU)"], False, "GPU"),
        ("AUTO:GPU,NPU", ["CPU"], True, "GPU"),
    ],
)
def test_the_device_of_a_recipe_is_compared_with_the_compiled_models(
    device: str, running: list[str], elsewhere: bool, passed: str
) -> None:
    present = ", ".join(sorted({library.bare_name(name) for name in running})) or "no device"
    reason = f"OpenVINO computes on {present} instead of `{device}`" if elsewhere else ""
    assert library.elsewhere_reason(device, running) == reason
    assert library.passed_over(device, running) == passed


class Elsewhere:
    """A compiled model that says where it runs."""

    def __init__(self, running: list[str] | None) -> None:
        self._running = running

    def get_property(self, name: str) -> list[str]:
        assert name == "EXECUTION_DEVICES"
        if self._running is None:
            msg = "property EXECUTION_DEVICES is not supported"
            raise RuntimeError(msg)
        return self._running


def test_a_model_that_openvino_runs_on_another_device_is_refused_or_reported(blob: DelegateBlob) -> None:
    for running, found in [
        (["CPU"], "OpenVINO computes on CPU instead of `GPU`"),
        (None, "OpenVINO does not say where the model runs: property EXECUTION_DEVICES is not supported"),
    ]:
        with pytest.raises(UnavailableError) as caught:
            check_running(blob, "GPU", Elsewhere(running))
        assert (caught.value.what, caught.value.found) == ("OpenVINO does not run on the device `GPU` here", found)
    with pytest.warns(RuntimeWarning, match="names the device `AUTO:GPU,CPU`, and OpenVINO computes on CPU instead of"):
        check_running(blob, "AUTO:GPU,CPU", Elsewhere(["CPU"]))
    check_running(blob, "AUTO:GPU,CPU", Elsewhere(["GPU.0"]))


@pytest.mark.parametrize("device", ["AUTO", "AUTO:CPU", "HETERO:CPU", "MULTI:CPU", "BATCH:CPU"])
def test_forms_with_the_cpu_run_on_the_cpu(blob: DelegateBlob, constants: list[Tensor], device: str) -> None:
    x = torch.randn(3, 64)
    delegate = of_tensors(OpenvinoDelegate).load(changed(blob, device=device), constants)
    torch.testing.assert_close(delegate.run([x])[0], Net().eval()(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_model_brings_no_extension(blob: DelegateBlob, constants: list[Tensor], tmp_path: Path) -> None:
    # no operation is loaded from elsewhere, and no entity is read
    text = blob.path.read_bytes()
    marker = tmp_path / "marker"
    marker.write_text("secret")
    for changed_text in (
        *(
            re.sub(rb'type="(MatMul|Add|Relu)" version="opset\d+"', b'type="Evil" version="%b"' % version, text)
            for version in (b"extension", b"/tmp/evil.so", b"opset1")
        ),
        b'<!DOCTYPE net [<!ENTITY e SYSTEM "' + bytes(marker) + b'">]>' + text,
    ):
        assert changed_text != text
        other = tmp_path / "other.xml"
        other.write_bytes(changed_text)
        with pytest.raises(ProgramError, match=r"OpenVINO cannot load a partition|own format") as caught:
            of_tensors(OpenvinoDelegate).load(DelegateBlob(other, blob.info, blob.data), constants)
        assert "secret" not in str(caught.value)


# What it says.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": 1}, "`thread` is no option: did you mean `threads`?"),
        ({"threads": -1}, "`threads` must be a number from 0"),
        ({"device": 1}, "`device` must be a name"),
        ({"exclude": "aten.sin.default"}, "`exclude` must be a list of strings"),
        ({"finite-only": 1}, "`finite-only` must be true or false"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match="the options of the backend `openvino` are wrong") as caught:
        OpenvinoBackend.partitioner(options)
    assert message in caught.value.found


def test_an_absent_library_is_named(
    blob: DelegateBlob, constants: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    for call, error in (
        (lambda: OpenvinoBackend.partitioner({}), BackendError),
        (lambda: OpenvinoBackend.fingerprint([]), BackendError),
        (lambda: of_tensors(OpenvinoDelegate).load(blob, constants), ProgramError),
    ):
        with pytest.raises(error, match="needs the OpenVINO library") as caught:
            call()
        assert 'pip install "hatch-lower[openvino]"' in caught.value.hint
        assert ("`[build-system] requires`" in caught.value.hint) == (error is BackendError)


def test_the_version_is_in_the_key() -> None:
    found = OpenvinoBackend.fingerprint([])
    assert set(found) == {"openvino", "backend"}
    assert found["openvino"].startswith("2026.")


def test_the_run_half_is_light_and_sends_nothing(modules_after: Callable[[str], set[str]]) -> None:
    code = "from hatch_lower.backends.openvino import run, library; library.engine()"
    loaded = modules_after(code)
    assert "openvino" in loaded
    assert not [name for name in loaded if name.startswith("openvino_telemetry")]
    assert not {"hatch_lower.exir.backend.backend_details", "hatch_lower.exir.dialects._ops", "torch._dynamo"} & loaded
