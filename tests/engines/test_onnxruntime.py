"""The onnxruntime backend: what it takes, what it makes of it, and what it says when it cannot."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exports import Workshop, settings_of
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

import hatch_lower
from hatch_lower.backends.testing.bench import of_tensors
from hatch_lower.backends.testing.memory import SMAPS, own_bytes
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, ProgramError, UnavailableError
from hatch_lower.events import NullReporter
from hatch_lower.exir.backend.backend_details import PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.capture._config import EdgeCompileConfig
from hatch_lower.exir.graph.nodes import MAY_BE_ZERO
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.lower import line_on_finite, line_on_ranges
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.delegates import DelegateBlob, Place
from hatch_lower.runtime.torch_private.recurrent import recurrent_shapes
from hatch_lower.runtime.torch_private.unimported import numbers

pytest.importorskip("onnxscript")
if find_spec("onnxruntime") is None:
    pytest.skip("ONNX Runtime is not installed", allow_module_level=True)

import onnx
from onnxruntime_operators import choice, examine, examine_samples, write_table
from onnxruntime_samples import Call, reductions, spread

from hatch_lower.backends.onnxruntime.compile import OnnxruntimeBackend, require_libraries
from hatch_lower.backends.onnxruntime.library import CPU, SWITCH, import_onnxruntime
from hatch_lower.backends.onnxruntime.model_file import FILE_MARK, NAME_BYTES, offset_mark, refuse_files, relocate
from hatch_lower.backends.onnxruntime.run import SMALLEST, OnnxruntimeDelegate
from hatch_lower.backends.onnxruntime.support import DTYPES, not_empty, operator_table, read_operator_table

CUDA = "CUDAExecutionProvider"

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Net(nn.Module):
    """A network with large and small weights, a buffer, attention, and a size in a view."""

    def __init__(self, seed: int = 0, prefix: str = "") -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.prefix = prefix
        self.add_module(prefix + "inner", nn.Linear(32, 32))
        self.add_module(prefix + "norm", nn.LayerNorm(32))
        self.register_buffer(prefix + "scale", torch.tensor(2.0 + seed))

    def forward(self, x: Tensor) -> Tensor:
        inner, norm, scale = (getattr(self, self.prefix + name) for name in ("inner", "norm", "scale"))
        heads = norm(inner(x)).view(x.shape[0], x.shape[1], 4, 8).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return nn.functional.gelu(mixed.transpose(1, 2).reshape(x.shape)) * scale


class Apply(nn.Module):
    """Calls a function, whose tensors are buffers."""

    def __init__(self, function: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args: Any) -> Any:
        return self.function(*args, **dict(self.named_buffers()))


LENGTH = Dim("length", max=64)


def lower(module: nn.Module, *args: Any, dynamic: Any = None, **options: Any) -> LoweredProgram:
    with torch.no_grad():
        program = torch.export.export(copy.deepcopy(module).eval(), args, dynamic_shapes=dynamic, strict=False)
        partitioner = OnnxruntimeBackend.partitioner(options)
        return to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()


def delegates(lowered: LoweredProgram) -> list[Any]:
    return get_lowered_backend_modules(lowered.programs["forward"].graph_module)


def check(
    module: nn.Module, folder: Path, *calls: tuple[Any, ...], dynamic: Any = None, **options: Any
) -> LoweredProgram:
    """Lower, load, and compare all calls with eager."""
    lowered = lower(module, *calls[0], dynamic=dynamic, **options)
    model = hatch_lower.load(save_program(lowered, folder / "saved"))
    eager = copy.deepcopy(module).eval()
    for call in calls:
        with torch.no_grad():
            expected, given = eager(*copy.deepcopy(call)), model(*copy.deepcopy(call))
        pytree.tree_map(assert_same, given, expected)
    return lowered


def assert_same(given: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    else:
        assert given == expected
        assert type(given) is type(expected)


@dataclass(frozen=True)
class Made:
    """What is made of a partition, and the constants that it is loaded with."""

    result: PreprocessResult
    constants: list[Tensor]

    def blob(self, folder: Path, file: str = "constants.safetensors", **changed: Any) -> DelegateBlob:
        """Write the model and a file of its constants, which lie behind each other."""
        path = folder / "partition.onnx"
        path.write_bytes(self.result.processed_bytes)
        places, data = [], b"header"
        for constant in self.constants:
            contents = constant.contiguous().numpy().tobytes()
            places.append(Place(folder / file, len(data), len(contents)) if constant.is_contiguous() else None)
            data += contents
        (folder / file).write_bytes(data)
        return DelegateBlob(path, {**self.result.info, **changed}, places=places)

    def load(self, folder: Path, **changed: Any) -> Any:
        return of_tensors(OnnxruntimeDelegate).load(self.blob(folder, **changed), self.constants)


def made_of(delegate: Any) -> Made:
    program = delegate.original_module
    constants = [constant_of(program, spec).detach() for spec in constant_specs(program)]
    return Made(OnnxruntimeBackend.preprocess(program, delegate.compile_specs), constants)


def make_net(seed: int = 0, prefix: str = "") -> Made:
    """Return what is made of the network as one partition."""
    (delegate,) = delegates(lower(Net(seed, prefix), torch.randn(2, 5, 32), dynamic={"x": {1: LENGTH}}))
    return made_of(delegate)


@pytest.fixture(scope="module")
def net() -> Made:
    return make_net()


# What comes out of a call.


def test_a_network_is_one_model_that_gives_eagers_numbers_for_every_size(tmp_path: Path) -> None:
    calls = [(torch.randn(2, length, 32),) for length in (5, 1, 64, 0)]
    lowered = check(Net(), tmp_path, *calls, dynamic={"x": {1: LENGTH}})
    assert len(delegates(lowered)) == 1
    assert set(lowered.reasons["forward"].values()) == {"it computes a size of a value outside the partition"}


def test_convolutions_and_batch_norms_are_taken_with_their_buffers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    lowered = check(layers, tmp_path, (torch.randn(2, 3, 16, 16),), (torch.randn(2, 3, 16, 16),))
    assert not lowered.reasons["forward"]
    (delegate,) = delegates(lowered)
    assert len(delegate.original_module.graph_signature.buffers) == 2


def several(x: Tensor, y: Tensor, kept: Tensor) -> Any:
    total = x + kept
    return {
        "twice": (total, [total]),
        "input": x,
        "constant": kept * 2,
        "flat": total.sum(),
        "laid out": total.transpose(0, 1) * y.t(),
        "column": total.t(),
        "view": total.view(-1),
        "parts": total.split(2),
        "top": total.topk(2),
        "nothing": None,
        "number": 3,
    }


def test_outputs_of_every_kind_come_back_as_eager_gives_them(tmp_path: Path) -> None:
    module = Apply(several, kept=torch.arange(20.0).reshape(5, 4))
    check(module, tmp_path, (torch.randn(5, 4), torch.randn(5, 4)), (torch.ones(5, 4), torch.ones(5, 4)))


def test_a_result_laid_out_in_another_order_has_eagers_strides(tmp_path: Path) -> None:
    module = Apply(lambda x: torch.relu(x).permute(2, 0, 1))
    lowered = lower(module, torch.randn(2, 3, 4))
    model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    x = torch.randn(2, 3, 4)
    assert model(x).stride() == module(x).stride() == (1, 12, 4)
    torch.testing.assert_close(model(x), module(x))


class Logits(nn.Module):
    """Logits of an image that comes from rows of tokens, as SegFormer's; eager's convolution gives these contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(8, 5, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        image = tokens.permute(0, 2, 1).reshape(1, 8, 4, 6)
        result: Tensor = self.last(image).contiguous()
        return result


def test_a_contiguous_output_has_eagers_strides(tmp_path: Path) -> None:
    lowered = lower(Logits(), torch.randn(1, 24, 8))
    (delegate,) = delegates(lowered)
    given = hatch_lower.load(save_program(lowered, tmp_path / "saved"))(torch.randn(1, 24, 8))
    assert given.view(-1).shape == (120,)
    assert given.stride() == (120, 24, 6, 1)
    assert made_of(delegate).result.info["outputs"] == [0]  # nothing is turned in a call


def test_inputs_in_any_layout_and_with_gradients_are_taken(tmp_path: Path) -> None:
    module = Apply(lambda x, y: torch.tanh(x) + y)
    lowered = lower(module, torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2])
    model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    x, y = torch.randn(4, 3, requires_grad=True).t(), torch.randn(3, 8)[:, ::2]
    torch.testing.assert_close(model(x, y), module(x, y).detach())


def test_results_have_memory_of_their_own(tmp_path: Path) -> None:
    (module,) = delegates(lower(Net(), torch.randn(2, 5, 32)))
    delegate = made_of(module).load(tmp_path)
    x = torch.randn(2, 5, 32)
    (first,) = delegate.run([x])
    kept = first.clone()
    (second,) = delegate.run([torch.randn(2, 5, 32)])
    assert torch.equal(first, kept)
    first.zero_()
    assert second.abs().sum() > 0
    del delegate
    assert torch.equal(second, second.clone())


def arithmetic(x: Tensor, y: Tensor) -> Any:
    return torch.where(x > y, x * y - y, x + 2), x.view(3, 2), x == y, x.to(torch.float32).sum(), torch.cat([x, y])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.int8, torch.float16, torch.float64])
def test_numbers_of_every_type_are_eagers(dtype: torch.dtype, tmp_path: Path) -> None:
    x, y = torch.tensor([[1, 2, 3], [4, 120, 6]]), torch.tensor([[3, 2, 1], [0, 5, 100]])
    lowered = check(Apply(arithmetic), tmp_path, (x.to(dtype), y.to(dtype)))
    assert delegates(lowered)


def test_sums_and_products_of_integers_wrap_around(tmp_path: Path) -> None:
    def totals(narrow: Tensor, wide: Tensor) -> Any:
        return wide.sum(dtype=torch.int32), wide.sum(1, dtype=torch.int32), wide.sum(1), wide.prod(1), narrow.prod()

    wide = torch.tensor([[2**31 - 1, 2**31 - 1, 7], [2**31 - 1, 5, 2**30]], dtype=torch.int32)
    given = torch.full((39,), 3, dtype=torch.int8), wide
    model = hatch_lower.load(save_program(lower(Apply(totals), *given), tmp_path / "saved"))
    torch.testing.assert_close(model(*given), totals(*given))


def test_types_are_promoted_as_eager_does(tmp_path: Path) -> None:
    module = Apply(lambda x, i, b: (x + i, i * 2.5, x * b, i + True, i / 3))
    check(module, tmp_path, (torch.randn(2, 3), torch.arange(3), torch.tensor([True, False, True])))


NUMBERS = {
    "subtracted from": lambda x: (1.0 - x) * -2.5,
    "subtracted": lambda x: x - 1.5,
    "a power": lambda x: x**2.5,
    "the base of a power": lambda x: 2.5**x,
    "bounds": lambda x: x.clamp(0.5, 2.5),
    "a divisor": lambda x: torch.div(x, 0.7, rounding_mode="floor"),
    "added to truths": lambda x: (x > 1) + 1.5,
    "times truths": lambda x: (x > 1) * 2,
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", NUMBERS)
def test_integers_become_what_they_are_beside_a_number(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    lowered = check(Apply(NUMBERS[name]), tmp_path, (torch.tensor([0, 1, 2, 3], dtype=dtype),))
    assert not lowered.reasons["forward"]


def test_a_number_beside_float64_keeps_its_digits(tmp_path: Path) -> None:
    x = torch.linspace(0, 1, 5, dtype=torch.float64)
    module = Apply(lambda x: (x * 0.5 + 2.0, x * 0.1, x.clamp(-0.25, 0.3)))
    lowered = lower(module, x)
    assert set(lowered.reasons["forward"].values()) == {
        "the model would hold 0.1 with the digits of float32",
        "the model would hold 0.3 with the digits of float32",
    }
    loaded = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    torch.testing.assert_close(loaded(x), module(x), rtol=1e-15, atol=0)


def test_results_of_float64_keep_their_digits(tmp_path: Path) -> None:
    x = torch.linspace(0.1, 2, 7, dtype=torch.float64)
    cases: list[Callable[[Tensor], Tensor]] = [
        *(torch.log2, torch.log10, lambda x: torch.nn.functional.gelu(x, approximate="tanh"), torch.deg2rad),
        *(torch.rad2deg, torch.nn.functional.celu, torch.sinc, lambda x: torch.linalg.vector_norm(x, 0.5)),
        *(lambda x: torch.linalg.vector_norm(x, 3), lambda x: x * torch.linspace(0, 1, 7, dtype=x.dtype)),
    ]
    module = Apply(lambda x: [case(x) for case in cases])
    partitioner = OnnxruntimeBackend.partitioner({})
    # a norm that is left is no core operator
    config = EdgeCompileConfig(_check_ir_validity=False)
    program = torch.export.export(module, (x,))
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=config)
    lowered = edge.to_executorch()
    reasons = lowered.reasons["forward"]
    assert "a norm of float64 by the order 3 is not taken" in reasons.values()
    assert not [name for name in reasons if "gelu" in name or "log" in name]
    loaded = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    torch.testing.assert_close(loaded(x), module(x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("function", [torch.log1p, torch.expm1])
def test_digits_of_small_numbers_stay(function: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    small = torch.logspace(-7 if dtype is torch.float16 else -30, 0, 50, dtype=torch.float64)
    x = torch.cat([-small * 0.99, torch.zeros(1), small, 10 * small]).to(dtype)
    lowered = lower(Apply(function), x)
    assert not lowered.reasons["forward"]
    given = hatch_lower.load(save_program(lowered, tmp_path / "saved"))(x)
    expected = function(x.double())
    near = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(given.double(), expected, rtol=near, atol=float(torch.finfo(dtype).tiny))


def test_what_log1p_and_expm1_give_of_special_numbers_is_eagers(tmp_path: Path) -> None:
    inf = float("inf")
    x = torch.tensor([-inf, -200.0, -2.0, -1.0, -0.0, 1e30, inf, float("nan")])
    check(Apply(lambda x: (torch.log1p(x), torch.expm1(x))), tmp_path, (x,), **{"finite-only": False})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_root_written_as_a_power_is_eagers(dtype: torch.dtype, tmp_path: Path) -> None:
    inf = float("inf")
    x = torch.tensor([-inf, -2.0, -0.0, 0.0, 2.0, 3.0, inf, float("nan")], dtype=dtype)
    lowered = check(Apply(lambda x: (x**0.5, x**-0.5)), tmp_path, (x,), **{"finite-only": False})
    assert len(delegates(lowered)) == 1
    assert not lowered.reasons["forward"]


@pytest.mark.parametrize(
    ("dtype", "least"), [(torch.float16, -15), (torch.float32, -80), (torch.float64, -700)], ids=str
)
def test_the_logarithm_of_a_sigmoid_is_eagers(dtype: torch.dtype, least: int, tmp_path: Path) -> None:
    def logarithms(x: Tensor) -> Any:
        return torch.log(x.sigmoid()), torch.log(x.sigmoid()[1:] * 0.5 + 2**-24), torch.log2(x.sigmoid() ** 0.75)

    lowered = lower(Apply(logarithms), x := torch.linspace(least, 20, 101).to(dtype))
    assert not lowered.reasons["forward"]
    given = hatch_lower.load(save_program(lowered, tmp_path / "saved"))(x)
    near = 0.02 if dtype is torch.float16 else 1e-4
    torch.testing.assert_close(given, logarithms(x), rtol=near, atol=near)


def test_an_elu_with_scales_is_eagers(tmp_path: Path) -> None:
    elu = torch.ops.aten.elu.default
    scaled = Apply(
        lambda x: (elu(x, 1.5, 0.7, 2.0), elu(x, 1.0, 1.0, 2.0), elu(x, 2.0), torch.celu(x, 2.0), torch.selu(x))
    )
    for dtype in (torch.float32, torch.float64):
        lowered = check(scaled, tmp_path / str(dtype), (torch.linspace(-4, 4, 9, dtype=dtype),))
        assert len(delegates(lowered)) == 1


def test_a_sigmoid_of_which_no_logarithm_is_taken_is_one_node() -> None:
    module = Apply(lambda x, w: torch.log(((x * torch.sigmoid(x)) @ w).abs() + 1), w=torch.ones(4, 3))
    (partition,) = delegates(lower(module, torch.ones(2, 4)))
    model = onnx.load_from_string(partition.result.processed_bytes)
    assert [node.op_type for node in model.graph.node].count("Exp") == 0


def special(x: Tensor) -> Any:
    return (
        torch.relu(x),
        torch.softmax(x, -1),
        x.clamp(-1, 1),
        x.clamp(min=0.5),
        x.clamp(max=0.5),
        x.amax(-1),
        torch.maximum(x, -x),
        torch.isnan(x),
        x.sum(),
    )


def test_nan_and_infinities_are_eagers(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, 2.0], [inf, 1.0, -3.0], [-inf, -inf, -inf], [0.0, -0.0, inf]])
    check(Apply(special), tmp_path, (x,), **{"finite-only": False})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-7, 1e-8, 1e-12])
def test_numbers_that_are_nearly_0_or_1_are_neither(epsilon: float, dtype: torch.dtype, tmp_path: Path) -> None:
    def near(x: Tensor) -> Any:
        return (
            torch.log(x + epsilon),
            1 / (x + epsilon),
            x - (0 - epsilon),
            x * (1 + epsilon) - x,
            x / (1 - epsilon) - x,
        )

    x = torch.tensor([[0.0, 1.0], [3.0, 5.0]], dtype=dtype)
    check(Apply(near), tmp_path, (x,), **{"finite-only": False})


def test_equal_numbers_that_are_nearly_0_are_there_once() -> None:
    lowered = lower(Apply(lambda x: (torch.log(x + 1e-8), torch.sqrt(x + 1e-8), x.exp() + 0.0)), torch.ones(2))
    (partition,) = delegates(lowered)
    model = onnx.load_from_string(partition.result.processed_bytes)
    assert [value.name for value in model.graph.input] == ["x0"]
    (number,) = map(onnx.numpy_helper.to_array, model.graph.initializer)
    assert number.item() == pytest.approx(1e-8)


def reduced(x: Tensor) -> list[Tensor]:
    means = [x.mean(dim, keepdim=keep) for dim in (0, -1, (0, 1)) for keep in (False, True)]
    return [x.sum(0), x.sum(-1), x.sum(-1, keepdim=True), x.logsumexp(-1), *means]


def test_tensors_without_elements_are_eagers(tmp_path: Path) -> None:
    module = Apply(
        lambda x, w: (x @ w, torch.cat([x, x]), x.reshape(-1, 2, 2), torch.relu(x) + 1, *reduced(x)), w=torch.ones(4, 3)
    )
    rows = Dim("rows", min=0, max=9)
    lowered = check(
        module,
        tmp_path,
        (torch.randn(3, 4),),
        (torch.randn(0, 4),),
        (torch.randn(1, 4),),
        dynamic={"args": ({0: rows},)},
    )
    assert len(delegates(lowered)) == 1


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 4)])
def test_truths_and_norms_of_rows_without_elements_are_eagers(shape: tuple[int, ...], tmp_path: Path) -> None:
    def truths(x: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        attended = nn.functional.scaled_dot_product_attention(torch.ones(1, 2, 3, 4), keys, keys)
        norms = nn.functional.layer_norm(x, x.shape[1:]), attended, x.sum()
        return (
            (x > 0).all(),
            x.all(),
            x.any(dim=(0, 1)),
            (x > 0).all(1),
            nn.functional.one_hot((x > 0).long(), 2),
            *norms,
        )

    check(Apply(truths), tmp_path, (torch.randn(shape), torch.randn(1, 2, shape[1], 4)))


def test_a_size_that_is_never_zero_costs_no_partition(tmp_path: Path) -> None:
    module, x = Apply(lambda x: (x * 2 - (x + 1).mean()) * 3), torch.randn(3, 4)
    for dim, count in ((Dim("batch", max=9), 2), (Dim("batch", min=1, max=9), 1)):
        lowered = check(module, tmp_path / str(count), (x,), (x[:1],), dynamic={"args": ({0: dim},)})
        assert len(delegates(lowered)) == count


def runs(module: nn.Module, *args: torch.Tensor) -> bool:
    try:
        module(*args)
    except RuntimeError:
        return False
    return True


def test_a_group_norm_of_no_elements_is_eagers(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4), nn.Conv1d(4, 4, 1))
    nn.init.uniform_(module[1].weight)
    rows, columns = Dim("rows", max=9), Dim("columns", min=0, max=9)
    calls = [(torch.randn(each, 4, 5),) for each in (2, 0, 1, 9)]
    assert len(delegates(check(module, tmp_path / "rows", *calls, dynamic={"input": {0: rows}}))) == 1
    bare = Apply(lambda x: nn.functional.group_norm(x, 2) + 1)
    calls = [(torch.randn(2, 4, each),) for each in (3, 0, 1, 9)]
    calls = [call for call in calls if runs(bare, *call)]  # later versions of torch refuse groups of no elements
    dynamic = {"args": ({2: columns},)}
    assert len(delegates(check(bare, tmp_path / "columns", *calls, dynamic=dynamic))) == 1


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        (nn.AvgPool2d(2), ""),
        (nn.AvgPool2d((3, 2), stride=(2, 1)), ""),
        (nn.AvgPool2d(3, 2, ceil_mode=True), ""),
        (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), ""),
        (nn.AvgPool2d(3, 2, 1), "an average pool that counts its padding is not taken"),
        (nn.AvgPool2d(2, divisor_override=3), "an average pool with a divisor of its own is not taken"),
    ],
)
def test_pools_of_averages_are_taken_where_they_are_eagers(pool: nn.Module, reason: str, tmp_path: Path) -> None:
    image = torch.randn(3, 2, 8, 7)
    image[0, 0, 3, 3], image[1, 1, 0, 2] = float("nan"), float("inf")
    dynamic = {"args": ({0: Dim("rows", max=9)},)}
    lowered = check(Apply(lambda x: pool(x + 1) * 2), tmp_path, (image,), (image[:0],), dynamic=dynamic)
    assert set(lowered.reasons["forward"].values()) == ({reason} if reason else set())
    assert len(delegates(lowered)) == (2 if reason else 1)


def test_dimensions_of_scalars_and_ranges_of_fractions_are_left(tmp_path: Path) -> None:
    """torch takes 0 for a dimension of a scalar; 1.1 - 0.1 is 1 in 64 bits and more in 32."""
    module = Apply(lambda x: ((x.sum() * 2).sum(0), x.sum()[None] * 2, torch.arange(0.1, 1.1) + x))
    reasons = set(check(module, tmp_path, (torch.randn(3),)).reasons["forward"].values())
    assert reasons == {
        "`aten.sum.dim_IntList` names a dimension of `aten_mul_tensor`, which has no dimensions",
        "a range of fractions is not taken",
    }


def test_a_build_says_what_to_write_where_a_size_may_be_zero() -> None:
    batch = {"input": {0: Dim("batch", max=9)}}
    model = Model(nn.GroupNorm(2, 4), {"forward": Method((torch.ones(3, 4),), dynamic_shapes=batch)})
    (method,) = capture_model("net", model, NullReporter()).methods
    assert line_on_ranges(method, ["onnxruntime: it has no kernel"]) == ""
    assert line_on_ranges(method, [f"onnxruntime: of tensors without elements, and {MAY_BE_ZERO}"]) == (
        "1 operation stays outside of delegates because a dynamic size may be 0; if the size is never 0, write"
        ' `Dim("batch", min=1, max=9)`'
    )


def test_sizes_that_the_exporter_does_not_know_are_not_taken_for_equal(tmp_path: Path) -> None:
    def grown(x: Tensor) -> Tensor:
        low = nn.functional.silu(nn.functional.group_norm(x, 2))
        return nn.functional.silu(nn.functional.group_norm(nn.functional.interpolate(low, scale_factor=2.0), 2))

    calls = [(torch.randn(rows, 4, 8, 8),) for rows in (2, 1, 5)]
    lowered = check(Apply(grown), tmp_path, *calls, dynamic={"args": ({0: Dim("rows", min=1, max=9)},)})
    assert len(delegates(lowered)) == 1


def masked(x: Tensor, mask: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class Projected(nn.Module):
    """Attention between projections, as in a transformer."""

    def __init__(self, *, causal: bool = False, scale: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.given, self.result = nn.Linear(32, 96), nn.Linear(32, 32)
        self.options: dict[str, Any] = {"is_causal": causal, "scale": scale}

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, _ = x.shape
        parts = self.given(x).chunk(3, -1)
        heads = [part.view(batch, length, 4, 8).transpose(1, 2) for part in parts]
        seen = nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, **self.options)
        return self.result(seen.transpose(1, 2).reshape(batch, length, 32))


def model_operators(lowered: LoweredProgram) -> list[str]:
    (delegate,) = delegates(lowered)
    return operators_in(delegate)


def operators_in(delegate: Any) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(delegate.processed_bytes).graph.node]


SEEN = torch.rand(2, 4, 5, 5, generator=torch.Generator().manual_seed(0)) > 0.4
SEEN[:, :, 0] = False
PADDED = (torch.arange(5) < 3).expand(2, 1, 1, 5)


@pytest.mark.parametrize(
    "mask", [None, SEEN, SEEN[:, :1], SEEN[0], SEEN[0, :1], SEEN[0, 0], PADDED, PADDED[0, 0]], ids=lambda mask: ""
)
def test_attention_is_one_operator_without_copies_of_heads(tmp_path: Path, mask: Tensor | None) -> None:
    call = (torch.randn(2, 5, 32), *(() if mask is None else (mask,)))
    operators = model_operators(check(Projected(), tmp_path, call))
    assert operators.count("Attention") == 1
    single_heads = mask is not None and mask.ndim > 2 and mask.shape[-3] != 1  # whose rows are cleared head by head
    assert ("Transpose" in operators) == single_heads


def test_causal_and_scaled_attention_of_dynamic_sizes_is_eagers(tmp_path: Path) -> None:
    sizes = {"x": {0: Dim("batch", min=1, max=9), 1: Dim("length", min=1, max=64)}}
    calls = [(torch.randn(*shape, 32),) for shape in ((2, 5), (1, 1), (3, 1), (1, 33))]
    lowered = check(Projected(causal=True, scale=0.3), tmp_path, *calls, dynamic=sizes)
    assert "Attention" in model_operators(lowered)


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y


def test_a_product_of_a_dynamic_batch_copies_no_argument(tmp_path: Path) -> None:
    batch = Dim("batch", min=1, max=9)
    calls = [(torch.randn(size, 4, 5, 8), torch.randn(size, 4, 8, 6)) for size in (3, 1)]
    lowered = check(Product(), tmp_path, *calls, dynamic={"x": {0: batch}, "y": {0: batch}})
    assert "Expand" not in model_operators(lowered)
    single = [(torch.randn(size, 4, 5, 8), torch.randn(1, 4, 8, 6)) for size in (3, 1)]
    assert "Expand" in model_operators(
        check(Product(), tmp_path / "single", *single, dynamic={"x": {0: batch}, "y": None})
    )


class Attended(nn.Module):
    """Attention of given heads."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=self.scale)


@pytest.mark.parametrize("mask", [None, torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(0)) > 0.4])
@pytest.mark.parametrize("dimension", [0, 1], ids=["batch", "heads"])
@pytest.mark.parametrize("single", [(0,), (1,), (2,), (1, 2), (0, 2)], ids=str)
def test_batches_and_heads_that_attention_repeats_are_eagers(
    tmp_path: Path, single: tuple[int, ...], dimension: int, mask: Tensor | None
) -> None:
    call = [torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)]
    for place in single:
        call[place] = call[place].narrow(dimension, 0, 1).clone()
    operators = model_operators(check(Attended(), tmp_path, (*call, *(() if mask is None else (mask,)))))
    assert "Attention" not in operators


def test_keys_of_one_batch_and_queries_of_a_dynamic_batch_are_eagers(tmp_path: Path) -> None:
    key = torch.randn(1, 4, 7, 8)
    calls = [(torch.randn(batch, 4, 5, 8), key, key + 1) for batch in (3, 1)]
    dynamic = {"query": {0: Dim("batch", min=1, max=9)}, "key": None, "value": None}
    assert "Attention" not in model_operators(check(Attended(), tmp_path, *calls, dynamic=dynamic))


@pytest.mark.parametrize("mask", [None, SEEN])
@pytest.mark.parametrize("scale", [-0.3, 0.0, 0, 1e-9, 2])
def test_a_scale_that_is_not_positive_is_eagers(tmp_path: Path, scale: float, mask: Tensor | None) -> None:
    x = torch.randn(3, 2, 4, 5, 8)
    operators = model_operators(check(Attended(scale), tmp_path, (*x, *(() if mask is None else (mask,)))))
    assert ("Attention" in operators) == (scale > 0)


@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min])
def test_a_mask_of_floats_is_decomposed(tmp_path: Path, lowest: float) -> None:
    call = torch.randn(2, 5, 32), torch.where(SEEN, 0.0, lowest)
    assert "Attention" not in model_operators(check(Projected(), tmp_path, call))


def test_attention_of_tensors_that_may_be_empty_is_decomposed(tmp_path: Path) -> None:
    calls = [(torch.randn(2, length, 32),) for length in (5, 3, 0)]
    lowered = check(Projected(), tmp_path, *calls, dynamic={"x": {1: Dim("length", max=64)}})
    assert "Attention" not in model_operators(lowered)


def test_a_selection_after_attention_is_eagers(tmp_path: Path) -> None:
    class Selected(Projected):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            heads = self.given(x)[..., :32].view(2, 5, 4, 8).transpose(1, 2)
            seen = nn.functional.scaled_dot_product_attention(heads, heads, heads)
            by_column = torch.where(seen.new_ones(8).cumsum(0) > 3, seen, 0.0).transpose(1, 2)
            other = nn.functional.scaled_dot_product_attention(heads, heads, heads, scale=0.1)
            by_row = torch.where(mask, other, seen).transpose(1, 2)
            return by_column.reshape(2, 5, 32) + by_row.reshape(2, 5, 32)

    check(Selected(), tmp_path, (torch.randn(2, 5, 32), SEEN[:, :1, :, 1:2]))


def test_attention_for_another_provider_is_decomposed() -> None:
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    operators = model_operators(lower(Projected(), torch.randn(2, 5, 32), SEEN, providers=providers))
    assert "Attention" not in operators


# torch's module keeps its weights in a list, too
recurrent = pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning", "ignore:LSTM with proj:UserWarning")
RECURRENT_OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bias": False, "dropout": 0.5},
]


@recurrent
@pytest.mark.parametrize("options", RECURRENT_OPTIONS, ids=["plain", "both", "deep"])
@pytest.mark.parametrize(
    "kind", [nn.LSTM, nn.GRU, nn.RNN, lambda *sizes, **given: nn.RNN(*sizes, nonlinearity="relu", **given)]
)
def test_a_recurrent_network_is_an_operator_for_each_layer(
    tmp_path: Path, kind: Callable[..., nn.Module], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    batch_dim = 0 if options.get("batch_first") else 1
    calls = []
    for batch in (2, 1, 5):
        shape = [40, 40, 3]
        shape[batch_dim] = batch
        calls.append((torch.randn(shape),))
    dynamic = {"input": {batch_dim: Dim("batch", min=1, max=9)}}
    lowered = check(kind(3, 8, **options), tmp_path, *calls, dynamic=dynamic)
    operators = model_operators(lowered)
    assert sum(operators.count(name) for name in ("LSTM", "GRU", "RNN")) == options.get("num_layers", 1)
    assert len(operators) < 80  # for 40 steps


@recurrent
@pytest.mark.skipif(numbers(torch.__version__) < (2, 13), reason="torch.export fixes the number of steps until 2.12")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_network_takes_sequences_of_any_length(tmp_path: Path, kind: Callable[..., nn.Module]) -> None:
    dynamic = {"input": {0: Dim("length", min=1, max=64), 1: Dim("batch", min=1, max=9)}}
    module = kind(3, 8).eval()
    with torch.no_grad():
        with recurrent_shapes():
            program = torch.export.export(module, (torch.randn(6, 2, 3),), dynamic_shapes=dynamic)
        edge = to_edge_transform_and_lower(program, partitioner=[OnnxruntimeBackend.partitioner({})])
        lowered = edge.to_executorch()
        model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
        for length, batch in ((6, 2), (1, 1), (64, 5)):
            call = torch.randn(length, batch, 3)
            pytree.tree_map(assert_same, model(call), module(call))
    assert kind.__name__ in model_operators(lowered)


@recurrent
def test_a_recurrent_network_takes_states(tmp_path: Path) -> None:
    state = torch.randn(1, 2, 8)
    call = torch.randn(5, 2, 3), (state, state + 1)
    assert "LSTM" in model_operators(check(nn.LSTM(3, 8), tmp_path, call))


@recurrent
@pytest.mark.parametrize(
    ("module", "size"),
    [(nn.LSTM(3, 8, proj_size=4), 3), (nn.GRU(3, 8).double(), 3)],
    ids=["projections", "doubles"],
)
def test_another_recurrent_network_is_decomposed(tmp_path: Path, module: nn.Module, size: int) -> None:
    dtype = next(module.parameters()).dtype
    lowered = check(module, tmp_path, (torch.randn(4, 2, size, dtype=dtype),))
    assert not {"LSTM", "GRU", "RNN"} & set(model_operators(lowered))


@recurrent
def test_a_recurrent_network_of_a_batch_that_may_be_empty_is_decomposed(tmp_path: Path) -> None:
    # ONNX Runtime would end the process
    dynamic = {"input": {1: Dim("batch", max=9)}}
    calls = [(torch.randn(4, batch, 3),) for batch in (2, 5)]
    lowered = check(nn.GRU(3, 8), tmp_path, *calls, dynamic=dynamic)
    assert "GRU" not in {node for delegate in delegates(lowered) for node in operators_in(delegate)}


def test_hard_activations_are_fused_into_convolutions(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardswish(), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())
    operators = model_operators(check(module, tmp_path, (torch.randn(1, 3, 8, 8),)))
    assert operators == ["Conv", "HardSwish", "Conv", "HardSigmoid"]


def test_rows_that_are_masked_whole_are_eagers(tmp_path: Path) -> None:
    calls = [
        (torch.randn(rows, 2, 2, 4), torch.tensor([[True, False], [False, False]]).expand(rows, 1, 2, 2))
        for rows in (2, 3, 0)
    ]
    rows = Dim("rows", max=9)
    lowered = check(Apply(masked), tmp_path, *calls, dynamic={"args": ({0: rows}, {0: rows})})
    assert len(delegates(lowered)) == 1


# What stays outside.


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(torch.relu(x))
        return self.count * 2 + x


def test_buffers_that_change_stay_in_the_program(tmp_path: Path) -> None:
    x = torch.randn(3)
    lowered = check(Counter(), tmp_path, (x,))
    assert [list(each.original_module.state_dict) for each in delegates(lowered)] == [[]]
    model, eager = hatch_lower.load(tmp_path / "saved"), Counter()
    for _ in range(3):
        torch.testing.assert_close(model(x), eager(x))


def outside(x: Tensor, bits: Tensor) -> Any:
    branch = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
    return torch.nonzero(x), torch.rand(3) * 0, branch, bits + bits, torch.relu(x)


def test_what_cannot_be_taken_is_left_with_a_reason(tmp_path: Path) -> None:
    lowered = lower(Apply(outside), torch.ones(3), torch.ones(2, dtype=torch.bfloat16), exclude=["aten.relu.default"])
    found = set(lowered.reasons["forward"].values())
    for wanted in (
        "the result of `aten.nonzero.default` has a size that depends on its input's contents",
        "ONNX Runtime is not known to give eager's results for `aten.rand.default` with any dtypes",
        "`cond` holds graphs of its own",
        "has the type bfloat16",
        "`aten.relu.default` is excluded by the recipe",
    ):
        assert any(wanted in reason for reason in found), (wanted, found)


def test_operations_without_a_kernel_are_known_before_a_model_is_made() -> None:
    lowered = lower(Apply(torch.relu), torch.tensor([1, -1]))
    assert delegates(lowered) == []
    (reason,) = lowered.reasons["forward"].values()
    assert reason == "ONNX Runtime is not known to give eager's results for `aten.relu.default` on int64, giving int64"


def own_translations(x: Tensor, n: Tensor, condition: Tensor) -> Any:
    return (
        torch.where(condition, condition.flip(0), ~condition),
        torch.where(condition, n, -n),
        x.var(1),
        x.var([0, 2], correction=0, keepdim=True),
        x.std(),
        x[:1].relu().squeeze((0, 1)),
        nn.functional.group_norm(x, 2),
        with_some_set(x),
        10.0**x,
    )


def with_some_set(x: Tensor) -> Tensor:
    changed = x * 2
    changed[1:, :2] = 3
    return changed


def test_what_the_exporter_lacks_is_translated_here(tmp_path: Path) -> None:
    call = torch.randn(3, 4, 2), torch.tensor([3, 4], dtype=torch.int16), torch.tensor([True, False])
    lowered = check(Apply(own_translations), tmp_path, call, (call[0] * 3, call[1] + 1, ~call[2]))
    (delegate,) = delegates(lowered)
    taken = {str(node.target) for node in delegate.original_module.graph.nodes}
    for name in (
        "copy.default",
        "pow.Scalar",
        "where.self",
        "var.correction",
        "squeeze.dims",
        "native_group_norm.default",
    ):
        assert any(name in target for target in taken), (name, taken, lowered.reasons)


def test_views_alone_are_no_partition() -> None:
    lowered = lower(Apply(lambda x: x.view(3, 2).transpose(0, 1).unsqueeze(0)), torch.randn(2, 3))
    assert delegates(lowered) == []
    assert set(lowered.reasons["forward"].values()) == {"it computes nothing, and its neighbours are not taken"}


def test_a_size_of_something_inside_is_computed_inside(tmp_path: Path) -> None:
    module = Apply(lambda x: torch.cat([x, x * 2]).relu().reshape(-1, x.shape[0] * 2, 2))
    rows = Dim("rows", max=9)
    lowered = check(module, tmp_path, (torch.randn(3, 4),), (torch.randn(1, 4),), dynamic={"args": ({0: rows},)})
    assert len(delegates(lowered)) == 1


# The table of operators.

REPEATED = frozenset(
    f"aten.{name}" for name in ("add.Tensor", "where.self", "amax.default", "relu.default", "var.correction")
)


@pytest.mark.parametrize("dtype", [torch.int16, None])
def test_what_the_table_says_is_found_again(dtype: torch.dtype | None) -> None:
    # in another thread, whose stack is shallow: torch formats the stack whenever it is given a seed
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(examine_samples, dtype, REPEATED).result()
    claimed = {(name, each) for name, rows in operator_table(finite=True).items() for each in rows}
    exact = {(name, each) for name, rows in operator_table(finite=False).items() for each in rows}
    assert found.fitting == found.fitting & claimed
    assert found.fitting - found.odd.keys() == found.fitting & exact
    assert not claimed & found.failures.keys()
    assert not {name for name, _ in found.empty.keys() & claimed} - not_empty()
    assert len(found.fitting) >= 5
    assert found.failures or found.refused


def test_reductions_that_do_not_wrap_around_are_found_out() -> None:
    found = examine(reductions(torch.int32))
    rows = {"prod.default": "int32 > int64", "prod.dim_int": "int32 > int64", "sum.default": "int32 > int32"}
    assert {(f"aten.{name}", row) for name, row in rows.items()} <= found.failures.keys()
    assert ("aten.sum.default", "int32 > int64") in found.fitting


def test_operators_that_pass_over_nan_at_some_places_are_found_out() -> None:
    aten = torch.ops.aten
    calls = [(aten.amax.default, (torch.arange(6.0).reshape(2, 3), [1]), {}), (aten.relu.default, (torch.ones(2),), {})]
    found = examine(calls)
    assert found.table()["operators"] == {"aten.relu.default": ["float32 > float32"]}
    assert found.table()["finite only"] == {"aten.amax.default": ["float32 > float32"]}
    assert not found.failures
    assert "with NaN or infinity" in found.odd["aten.amax.default", "float32 > float32"]
    assert "float32 > float32" in operator_table(finite=True)["aten.amax.default"]
    assert "float32 > float32" not in operator_table(finite=False)["aten.amax.default"]


def test_operators_that_lose_the_sign_of_zero_are_found_out() -> None:
    aten = torch.ops.aten
    found = examine([(op, (torch.randn(200),), {}) for op in (aten.signbit.default, aten.argmax.default)])
    assert {name for name, _ in found.failures} == {"aten.signbit.default"}
    assert {name for name, _ in found.fitting} == {"aten.argmax.default"}
    assert all("whole numbers" in why for why in found.failures.values())


def test_a_choice_among_equal_elements_is_as_good_as_another_and_no_place_is_chosen_twice() -> None:
    op, args = torch.ops.aten.topk.default, (torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0]), 2)

    def chosen(*places: int) -> list[Tensor]:
        return choice(op, args, {}, [torch.tensor([3.0, 3.0]), torch.tensor(places)])

    assert all(map(torch.equal, chosen(0, 2), chosen(4, 0)))
    for wrong in ((0, 0), (0, 3)):
        assert not all(map(torch.equal, chosen(0, 2), chosen(*wrong)))


def test_sorting_is_taken_and_where_it_is_stable_equal_elements_keep_their_order(tmp_path: Path) -> None:
    module = Apply(
        lambda x, y: (
            x.topk(3).indices,
            x.topk(2, 0, largest=False).values,
            x.sort(descending=True),
            *(y.sort(stable=True, dim=dim, descending=dim == 1) for dim in (0, 1)),
            y.argsort(stable=True),
        )
    )
    x = torch.stack([torch.randperm(40) for _ in range(6)]).float()
    y = (x % 5).index_put((torch.tensor([1]), torch.tensor([7])), torch.tensor(float("nan")))
    lowered = check(module, tmp_path, (x, y), (-x, -y), (x.flip(1), y.flip(1)), **{"finite-only": False})
    assert (len(delegates(lowered)), lowered.reasons["forward"]) == (1, {})


def test_a_model_of_finite_numbers_may_use_kernels_that_pass_over_nan(tmp_path: Path) -> None:
    x = torch.randn(1, 2, 4, 4)
    pooled = Apply(lambda x: nn.functional.max_pool2d(x.relu(), 2) + 1)
    left = check(pooled, tmp_path, (x,), (x.log(),), **{"finite-only": False})
    found = "ONNX Runtime's `aten.max_pool2d_with_indices.default` gives other results than eager for NaN or infinity"
    assert f"{found}, and `finite-only` is false" in left.reasons["forward"].values()
    assert len(delegates(left)) == 2
    taken = check(pooled, tmp_path / "finite", (x,))
    assert not taken.reasons["forward"]
    assert len(delegates(taken)) == 1


@pytest.mark.parametrize("finite", [True, False])
def test_a_partitioner_names_what_it_takes_for_finite_numbers_only(finite: bool) -> None:
    rows = Dim("rows", min=2, max=9)
    module = Apply(lambda x, i: (x.amax(1) + x.shape[0], i.amax(1), x.sort().values))
    program = torch.export.export(
        module,
        (torch.randn(3, 4), torch.ones(3, 4, dtype=torch.int64)),
        dynamic_shapes={"args": ({0: rows}, {0: rows})},
    )
    result = OnnxruntimeBackend.partitioner({"finite-only": finite}).partition(to_edge(program))
    assert result.finite_only == ({"aten.amax.default"} if finite else set())


def test_a_build_says_once_what_is_taken_for_finite_numbers_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    pool, image = Apply(lambda x: nn.functional.max_pool2d(x, 2).amax(1)), (torch.randn(1, 2, 4, 4),)
    methods = {name: Method(image, attribute="forward") for name in ("one", "two")}
    source = capture_model("net", Model(pool, methods), NullReporter())
    given: dict[str, Any] = {"plain": {}, "yes": {"finite-only": True}, "no": {"finite-only": False}}
    recipes = [Recipe(name, (BackendChoice("onnxruntime", each),), verify=False) for name, each in given.items()]
    _, events = Workshop(tmp_path).build(source, settings_of(*recipes, check=False))
    assert [(event.recipe, event.method, event.detail) for event in events.seen if event.state == "note"] == [
        ("plain", "", line_on_finite("onnxruntime", ["aten.amax.default", "aten.max_pool2d_with_indices.default"]))
    ]


def test_a_line_on_finite_numbers_names_three_operators() -> None:
    assert line_on_finite("onnxruntime", []) == ""
    assert line_on_finite("onnxruntime", ["aten.d", "aten.c", "aten.a", "aten.b", "aten.e"]) == (
        "`onnxruntime` computes `aten.a`, `aten.b`, `aten.c` and 2 more as eager does for finite numbers only;"
        " write `finite-only = true` if the model meets neither NaN nor infinity, else `finite-only = false`"
    )


def test_every_set_of_arguments_is_among_the_calls_that_are_compared() -> None:
    argmax = torch.ops.aten.argmax.default
    calls: list[Call] = [(argmax, (torch.ones(size),), {}) for size in range(1, 20)]
    calls[7] = argmax, (torch.ones(2, 2), 1), {}
    calls[8] = argmax, (torch.ones(2, 2),), {"keepdim": True}
    taken = spread(calls, 4)
    assert [call for call in calls if any(call is each for each in taken)] == taken
    assert {(len(args), *kwargs) for _, args, kwargs in taken} == {(1,), (2,), (1, "keepdim")}


def test_operators_that_differ_without_elements_are_found_out() -> None:
    found = examine([(torch.ops.aten.mean.default, (torch.ones(2),), {})])
    assert found.empty.keys() == {("aten.mean.default", "float32 > float32")}
    assert found.table()["not empty"] == ["aten.mean.default"]
    assert "aten.mean.default" in not_empty()


def test_an_operator_that_differs_without_elements_is_taken_where_there_are_some() -> None:
    rows = Dim("rows", min=0, max=9)
    taken = lower(Apply(lambda x: x.mean() * 2), torch.randn(3, 4))
    assert len(delegates(taken)) == 1
    left = lower(Apply(lambda x: x.mean() * 2), torch.randn(3, 4), dynamic={"args": ({0: rows},)})
    assert any("of tensors without elements" in reason for reason in left.reasons["forward"].values())


@pytest.mark.long
def test_the_table_is_what_the_generator_writes(tmp_path: Path) -> None:
    write_table(tmp_path / "operators.json", os.cpu_count() or 1)
    assert json.loads((tmp_path / "operators.json").read_text()) == read_operator_table()


def test_the_table_knows_the_types_of_the_backend_only() -> None:
    known = {str(dtype).removeprefix("torch.") for dtype in DTYPES} | {"none"}
    assert {
        word
        for rows in operator_table(finite=True).values()
        for row in rows
        for word in row.replace(" > ", " ").split()
    } <= known


# What is in the result.


def test_a_result_says_what_the_wheel_must_know(net: Made) -> None:
    result = net.result
    assert result.suffix == "onnx"
    assert result.requirements == ("onnxruntime>=1.23,<2",)
    assert result.target is None
    assert result.info["providers"] == ["CPUExecutionProvider"]
    assert result.info["threads"] == 0
    assert result.info["bound"] == list(range(5))
    assert result.data_store_output is None


def test_a_model_is_valid_and_holds_nothing_of_its_making(net: Made) -> None:
    model = onnx.load_from_string(net.result.processed_bytes)
    assert {each.domain: each.version for each in model.opset_import} in ({"": 20}, {"": 20, "com.microsoft": 1})
    assert (model.ir_version, model.producer_name, model.producer_version) == (10, "hatch-lower", "")
    assert not model.metadata_props
    assert not model.graph.metadata_props
    for node in model.graph.node:
        assert (node.doc_string, list(node.metadata_props)) == ("", [])
    for text in ("torch", "inner", "norm", os.sep.join(Path(__file__).parts[-2:])):
        assert text.encode() not in net.result.processed_bytes
    constants = [each for each in model.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    assert {each.name for each in constants} == {f"w{number}" for number in range(5)}
    assert len(net.result.processed_bytes) < 4000


def test_a_model_does_not_depend_on_what_its_constants_hold(net: Made) -> None:
    other = make_net(seed=3)
    assert other.result.processed_bytes == net.result.processed_bytes
    assert not torch.equal(other.constants[0], net.constants[0])


def test_a_product_for_an_engine_without_fused_ones_turns_its_weight() -> None:
    providers = ["CoreMLExecutionProvider", "CPUExecutionProvider"]
    (delegate,) = delegates(
        lower(Apply(lambda x, w: x @ w.mT, w=torch.randn(3, 5)), torch.randn(2, 4, 5), providers=providers)
    )
    model = onnx.load_from_string(made_of(delegate).result.processed_bytes)
    # the reshapes stay: the rule that takes them away gives other numbers for some shapes
    assert [node.op_type for node in model.graph.node] == ["Transpose", "Reshape", "MatMul", "Reshape"]
    assert [each.domain for each in model.opset_import] == [""]


def test_a_product_takes_a_weight_as_it_lies(net: Made) -> None:
    nodes = onnx.load_from_string(net.result.processed_bytes).graph.node
    turned = {output for node in nodes if node.op_type == "Transpose" for output in node.output}
    (product,) = (node for node in nodes if "w0" in node.input)
    assert product.op_type in ("Gemm", "FusedMatMul")
    assert {each.name: each.i for each in product.attribute}["transB"] == 1
    assert not turned & set(product.input)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_products_of_turned_constants_give_eagers_numbers(tmp_path: Path, rank: int) -> None:
    weight = torch.randn(2, 3, 5) if rank == 4 else torch.randn(3, 5)
    x = torch.randn(*(2,) * (rank - 2), 4, 5)
    for number, function in enumerate([lambda x, w: x @ w.mT, lambda x, w: w @ x.mT, lambda x, w: (w.mT @ w) @ x.mT]):
        check(Apply(function, w=weight), tmp_path / str(number), (x,))


class LowRank(nn.Module):
    """A product of two weights that are flattened to the same shape, as DoRA has for a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv1d(4, 4, 3), nn.Conv1d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        low = torch.mm(self.b.weight.flatten(1), self.a.weight.flatten(1)).reshape(4, 4, 3)
        return nn.functional.conv1d(x, self.a.weight + low)


@pytest.mark.parametrize(
    ("left", "inner_left", "right", "inner_right", "result"),
    [
        # the operands as they are cannot be multiplied, or give other numbers in the same shape
        ((4, 4, 1), (4, 4), (4, 4, 3), (4, 12), (4, 4, 3)),
        ((1, 2, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1), (1, 2, 2)),
        ((1, 2, 1), (1, 1, 2), (1, 4, 1), (1, 2, 2), (1, 2, 1)),
        ((1, 2, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2), (2, 2, 1)),
    ],
)
def test_a_product_between_reshapes_keeps_the_reshapes(
    tmp_path: Path,
    left: tuple[int, ...],
    inner_left: tuple[int, ...],
    right: tuple[int, ...],
    inner_right: tuple[int, ...],
    result: tuple[int, ...],
) -> None:
    product = Apply(lambda x, y: (x.reshape(inner_left) @ y.reshape(inner_right)).reshape(result))
    assert len(delegates(check(product, tmp_path, (torch.randn(left), torch.randn(right))))) == 1


def test_a_product_of_flattened_weights_gives_eagers_numbers(tmp_path: Path) -> None:
    assert len(delegates(check(LowRank(), tmp_path, (torch.randn(1, 4, 9),)))) == 1


def test_a_constant_that_equals_a_literal_stays_apart(tmp_path: Path) -> None:
    def last(x: Tensor) -> Tensor:
        # the sizes are put together with a literal -1
        return x[..., [-1], :] + torch.zeros(x.shape[0], x.shape[1], 1, 3)

    sizes = {0: Dim("rows", min=1, max=8), 1: Dim("columns", min=1, max=8)}
    lowered = check(Apply(last), tmp_path, (torch.randn(2, 5, 4, 3),), dynamic=((sizes,),))
    assert len(delegates(lowered)) == 1


@pytest.mark.skipif(not SMAPS.exists(), reason="this system does not tell what a process has mapped")
@pytest.mark.parametrize("file", ["constants.safetensors", "a" * 64], ids=["in a wheel", "in the cache"])
def test_constants_are_used_where_they_are_mapped(tmp_path: Path, file: str) -> None:
    table = torch.randn(4096, 512)
    (delegate,) = delegates(lower(Apply(lambda x, table: table[x] * 2, table=table), torch.tensor([3, 1])))
    made = made_of(delegate)
    first = made.load(tmp_path, file=file)
    before = own_bytes()
    second = made.load(tmp_path, file=file)
    for loaded in (first, second):
        assert torch.equal(loaded.run([torch.tensor([4095, 0])])[0], table[[4095, 0]] * 2)
    assert own_bytes() - before < table.nbytes / 2


@pytest.mark.parametrize("file", ["constants.safetensors", "a" * 64, "another name", "b" * 93, "too long" * 12])
def test_constants_behind_links_are_found(net: Made, tmp_path: Path, file: str) -> None:
    real = tmp_path / "real"
    real.mkdir()
    blob = net.blob(real, file)
    link = tmp_path / "link"
    link.symlink_to(real / file)
    places = [place and place._replace(path=link) for place in blob.places]
    x = torch.randn(2, 5, 32)
    given = of_tensors(OnnxruntimeDelegate).load(replace(blob, places=places), net.constants).run([x, 5])
    torch.testing.assert_close(given[0], Net()(x), rtol=1e-4, atol=1e-5)


def test_constants_in_several_files_and_folders_are_bound_each(net: Made, tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    blob = net.blob(tmp_path)
    places = []
    for number, place in enumerate(blob.places):
        if place is not None:
            path = tmp_path / ("other" if number % 3 == 2 else "") / f"shard-{number % 3}"
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                path.write_bytes(b"-" * number)
            data, begin = path.read_bytes(), path.stat().st_size
            path.write_bytes(data + place.path.read_bytes()[place.offset : place.offset + place.length])
            place = Place(path, begin, place.length)
        places.append(place)
    assert len({place.path for place in places if place is not None}) == 3
    given = of_tensors(OnnxruntimeDelegate).load(replace(blob, places=places), net.constants).run([x, 5])
    torch.testing.assert_close(given[0], Net()(x), rtol=1e-4, atol=1e-5)


def test_constants_in_no_file_are_bound_too(net: Made, tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    blob = replace(net.blob(tmp_path), places=[None] * len(net.constants))
    given = of_tensors(OnnxruntimeDelegate).load(blob, [constant.clone() for constant in net.constants]).run([x, 5])
    torch.testing.assert_close(given[0], Net()(x), rtol=1e-4, atol=1e-5)


def test_constants_of_every_dtype_and_layout_give_eagers_numbers(tmp_path: Path) -> None:
    buffers = {
        "turned": torch.randn(3, 4).t(),
        "narrow": torch.randn(4, 3, dtype=torch.float16),
        "broad": torch.randn(4, 3).bfloat16(),
        "number": torch.tensor(2.5),
        "flags": torch.tensor([[True, False, True]]),
        "index": torch.tensor([2, 0, 1]),
        "nothing": torch.zeros(0, 3),
    }

    def compute(x: Any, turned: Any, narrow: Any, broad: Any, number: Any, flags: Any, index: Any, nothing: Any) -> Any:
        mixed = x * turned + narrow.float() + broad.float() * number
        return torch.cat([torch.where(flags, mixed, -mixed)[:, index], nothing])

    check(Apply(compute, **buffers), tmp_path, (torch.randn(4, 3),))


@pytest.mark.parametrize("offsets", [{}, {0: 64, 1: 0}, {1: 64}])
def test_marks_of_other_constants_are_refused(offsets: dict[int, int]) -> None:
    model = f"{offset_mark(0)} {FILE_MARK}".encode()
    for name in ("odd", "even"):
        offset, path = relocate(model, {0: (name, 64)}).split()
        assert (offset, len(path)) == (b"00000000000000000064", NAME_BYTES)
        assert os.path.normpath(path) == name.encode()
    with pytest.raises(ValueError, match="marks of the constants"):
        relocate(model, {position: ("odd", offset) for position, offset in offsets.items()})


def tensor_outside(*entries: bytes) -> bytes:
    """Return an initializer with entries of external data, as bytes."""
    return field(1, b"\x04") + b"\x10\x01" + field(8, b"w") + b"\x70\x01" + b"".join(field(13, e) for e in entries)


def field(number: int, content: bytes, long: int = 0) -> bytes:
    """Return a field of protobuf; `long` bytes more than its key needs."""
    key = number << 3 | 2
    head = bytes(key >> 7 * i & 0x7F | 0x80 for i in range((key.bit_length() - 1) // 7 + long))
    last = bytes([key >> 7 * len(head) & 0x7F])
    length, size = len(content), b""
    while length > 0x7F:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return head + last + size + bytes([length]) + content


def entry(value: bytes, *more: bytes) -> bytes:
    return field(1, b"location") + field(2, value) + b"".join(more)


SECRET = b"../secret.bin"
HIDDEN_PLACES = {
    "initializer": field(7, field(5, tensor_outside(entry(SECRET)))),
    "absolute": field(7, field(5, tensor_outside(entry(b"/etc/passwd")))),
    "sparse": field(7, field(15, field(1, tensor_outside(entry(SECRET))))),
    "attribute": field(7, field(1, field(5, field(5, tensor_outside(entry(SECRET)))))),
    "tensors": field(7, field(1, field(5, field(10, tensor_outside(entry(SECRET)))))),
    "branch": field(7, field(1, field(5, field(6, field(5, tensor_outside(entry(SECRET))))))),
    "function": field(25, field(7, field(5, field(5, tensor_outside(entry(SECRET)))))),
    "default": field(25, field(11, field(5, tensor_outside(entry(SECRET))))),
    "value first": field(7, field(5, tensor_outside(field(2, SECRET) + field(1, b"location")))),
    "value twice": field(7, field(5, tensor_outside(entry(b"known", field(2, SECRET))))),
    "second entry": field(7, field(5, tensor_outside(entry(b"known"), entry(SECRET)))),
    "second graph": field(7, b"") + field(7, field(5, tensor_outside(entry(SECRET)))),
    "long key": field(7, field(5, tensor_outside(entry(SECRET)), long=3), long=4),
    "key beyond 32 bits": field(7, b"\xaa\x80\x80\x80\x70" + field(5, tensor_outside(entry(SECRET)))[1:]),
    "group": b"\x0b\x0c" + field(7, field(5, tensor_outside(entry(SECRET)))),
    "longer than its message": field(7, b"\x2a\x7flocation"),
    "endless key": b"\xff" * 6 + b"location",
    "cut off": field(7, field(5, tensor_outside(entry(SECRET))))[:-1],
}

# Python's library refuses these; others may read them
UNREADABLE = ("key beyond 32 bits", "group", "longer than its message", "endless key", "cut off")


@pytest.mark.parametrize("name", HIDDEN_PLACES)
def test_a_file_that_is_not_of_the_constants_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"data of a tensor in|a field|a key or a length"):
        refuse_files(HIDDEN_PLACES[name], {b"known"})


def test_the_bytes_of_hidden_files_are_those_that_onnx_reads() -> None:
    models = [onnx.ModelProto.FromString(data) for name, data in HIDDEN_PLACES.items() if name not in UNREADABLE]
    assert all("secret.bin" in str(model) or "passwd" in str(model) for model in models)


def test_a_model_reads_no_file_but_its_constants(net: Made, tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(16))
    folder = tmp_path / "wheel"
    folder.mkdir()
    for location in ("../secret.bin", str(secret), "./../wheel/../secret.bin"):
        blob = net.blob(folder)
        model = onnx.load_from_string(blob.path.read_bytes())
        tensor = onnx.TensorProto(name="more", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
        for key, value in (("location", location), ("offset", "0"), ("length", "16")):
            tensor.external_data.add(key=key, value=value)
        model.graph.initializer.append(tensor)
        blob.path.write_bytes(model.SerializeToString())
        with pytest.raises(ProgramError, match="ONNX Runtime refuses a model") as caught:
            of_tensors(OnnxruntimeDelegate).load(blob, net.constants)
        assert "not a file of its constants" in caught.value.found


@pytest.mark.parametrize(("domain", "name"), [("evil", "Relu"), ("com.microsoft", "EPContext"), ("", "PyOp")])
def test_a_model_brings_no_operator(net: Made, tmp_path: Path, domain: str, name: str) -> None:
    blob = net.blob(tmp_path)
    model = onnx.load_from_string(blob.path.read_bytes())
    attributes = {"embed_mode": 0, "ep_cache_context": "../secret.bin", "main_context": 1}
    model.graph.node.append(onnx.helper.make_node(name, ["x0"], ["more"], domain=domain, **attributes))
    if domain not in {each.domain for each in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    blob.path.write_bytes(model.SerializeToString())
    with pytest.raises(ProgramError, match="ONNX Runtime refuses a model"):
        of_tensors(OnnxruntimeDelegate).load(blob, net.constants)


def test_state_that_methods_share_is_bound_to_no_session(tmp_path: Path) -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def add(self, x: Tensor) -> Tensor:
            self.count.add_(x)
            return x * 2

        def read(self, x: Tensor) -> Tensor:
            return x * self.count + 1

    one = torch.ones(3)
    captured = capture_model(
        "net", Model(Counted(), {name: Method((one,)) for name in ("add", "read")}), NullReporter()
    )
    programs = {method.name: method.program for method in captured.methods}
    partitioner = OnnxruntimeBackend.partitioner({})
    lowered = to_edge_transform_and_lower(programs, partitioner=[partitioner]).to_executorch()
    model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    model.add(one)
    model.add(one)
    assert torch.equal(model.read(one), torch.full((3,), 3.0))


def test_every_operation_is_in_the_debug_map(net: Made) -> None:
    (delegate,) = delegates(lower(Net(), torch.randn(2, 5, 32), dynamic={"x": {1: LENGTH}}))
    graph = delegate.original_module.graph
    wanted = {node.meta["debug_handle"] for node in graph.nodes if node.op == "call_function"}
    assert net.result.debug_handle_map is not None
    assert {handle for handles in net.result.debug_handle_map.values() for handle in handles} == wanted
    names = {node.name for node in onnx.load_from_string(net.result.processed_bytes).graph.node}
    assert set(net.result.debug_handle_map) <= {*names, "no node"}
    (gelu,) = (node.meta["debug_handle"] for node in graph.nodes if "gelu" in str(node.target))
    assert "Gelu" in str(next(name for name, handles in net.result.debug_handle_map.items() if gelu in handles))


ELSEWHERE = """
import json, os, pathlib, runpy, sys, warnings
warnings.simplefilter("ignore")
tests = runpy.run_path(sys.argv[1])
made = tests["make_net"](prefix=sys.argv[2])
made.load(pathlib.Path(sys.argv[3]))
assert "ORT_DISABLE_TELEMETRY" not in os.environ
print(json.dumps(tests["facts_of"](made.result)))
"""


def facts_of(result: PreprocessResult) -> Any:
    """Return what must be the same everywhere, as JSON."""
    facts = [hashlib.sha256(result.processed_bytes).hexdigest(), result.info, result.debug_handle_map]
    return json.loads(json.dumps(facts))


@pytest.fixture(scope="module")
def made_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Path]]:
    """Return what another process makes of the network, and what it leaves in its home folder."""
    folder, models = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("models")
    root = Path(__file__).parents[2]
    paths = [str(root), str(root / "tests"), str(root / "tools")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "77", "HOME": str(folder)}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    command = [sys.executable, "-c", ELSEWHERE, __file__, "another_", str(models)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]), sorted(folder.rglob("*"))


def test_bytes_do_not_depend_on_names_folders_or_hash_seed(net: Made, made_elsewhere: tuple[Any, list[Path]]) -> None:
    facts, _ = made_elsewhere
    assert facts == facts_of(net.result)


def test_neither_build_nor_load_writes_into_the_home_folder(made_elsewhere: tuple[Any, list[Path]]) -> None:
    _, left = made_elsewhere
    assert left == []


# Options, versions, and absent libraries.


def test_options_are_checked_with_a_list_of_those_that_are_known() -> None:
    with pytest.raises(BackendError) as caught:
        OnnxruntimeBackend.partitioner(
            {"thread": 2, "providers": ["CUDA"], "threads": -1, "exclude": "x", "finite-only": 1}
        )
    text = str(caught.value)
    assert "`thread` is no option: did you mean `threads`?" in text or "`thread` is no option" in text
    assert "`providers` holds 'CUDA'" in text
    assert "`threads` must be a number of threads" in text
    assert "`exclude` must be a list of strings" in text
    assert "`finite-only` must be true or false" in text
    assert "it knows `exclude`, `finite-only`, `providers`, `threads`" in text


def test_options_reach_the_run_half_and_the_requirement(tmp_path: Path) -> None:
    lowered = lower(Apply(torch.relu), torch.randn(3), threads=1, providers=[CUDA, CPU])
    (delegate,) = delegates(lowered)
    made = made_of(delegate)
    result = made.result
    assert result.requirements == ("onnxruntime-gpu>=1.23,<2",)
    assert (result.info["threads"], result.info["providers"]) == (1, [CUDA, CPU])
    assert OnnxruntimeBackend.device({"providers": [CUDA, CPU]}) == "cuda"
    assert OnnxruntimeBackend.device({}) == "cpu"
    loaded = made.load(tmp_path, providers=[CPU])
    assert loaded.inner._session.get_session_options().intra_op_num_threads == 1
    assert loaded.inner._session.get_providers() == [CPU]


def test_as_many_threads_as_torch_has_are_the_default(net: Made, tmp_path: Path) -> None:
    loaded = net.load(tmp_path)
    options = loaded.inner._session.get_session_options()
    assert options.intra_op_num_threads == torch.get_num_threads()
    # they leave the processors to what computes next
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "100"


@pytest.mark.parametrize(
    ("providers", "missing", "build"),
    [
        ([CUDA, CPU], CUDA, "`onnxruntime-gpu`"),
        ([CPU, CUDA], CUDA, "`onnxruntime-gpu`"),
        (["MIGraphXExecutionProvider"], "MIGraphXExecutionProvider", "a build of ONNX Runtime that has the provider"),
    ],
)
def test_a_provider_that_is_not_installed_is_named_with_the_build_that_has_it(
    net: Made, tmp_path: Path, providers: list[str], missing: str, build: str
) -> None:
    with pytest.raises(UnavailableError) as caught:
        net.load(tmp_path, providers=providers)
    error = caught.value
    assert error.what == f"ONNX Runtime does not run on `{missing}` here"
    assert error.found == f"ONNX Runtime as installed has {', '.join(import_onnxruntime().get_available_providers())}"
    assert error.hint.startswith(f"install {build}, with the driver")


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_a_provider_that_is_installed_and_does_not_start_is_an_error(
    net: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # as where the driver is missing: ONNX Runtime makes a session on the CPU instead, and says so in its log at most
    onnxruntime = import_onnxruntime()
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    with pytest.raises(UnavailableError) as caught:
        net.load(tmp_path, providers=[CUDA, CPU])
    assert caught.value.what == f"ONNX Runtime does not run on `{CUDA}` here"
    assert caught.value.found == f"ONNX Runtime has started {CPU} only"
    # or it raises an error, and falls back to the CPU unless it is told not to
    made = onnxruntime.InferenceSession

    models = []

    def make(model: bytes, options: object = None, *, providers: list[Any], **more: object) -> Any:
        models.append(model)
        assert more["enable_fallback"] == 0
        if providers != [CPU]:
            raise RuntimeError("CUDA failure 35: CUDA driver version is insufficient")
        return made(model, options, providers=providers, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    with pytest.raises(UnavailableError) as caught:
        net.load(tmp_path, providers=[CUDA, CPU])
    assert caught.value.found == "RuntimeError: CUDA failure 35: CUDA driver version is insufficient"
    assert caught.value.hint.startswith("install the driver and the libraries that the provider needs; ONNX Runtime")
    assert models == [SMALLEST]
    assert "Falling back" not in capfd.readouterr().out
    assert net.load(tmp_path, providers=[CPU]).inner._session.get_providers() == [CPU]


def test_the_fingerprint_names_what_shapes_the_bytes() -> None:
    assert set(OnnxruntimeBackend.fingerprint([])) == {"backend", "onnx", "onnx-ir", "onnxscript", "onnxruntime"}


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the libraries of the extra not be found."""
    for name in ("onnx", "onnx.helper", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("hidden")
def test_a_build_without_the_libraries_names_the_extra() -> None:
    with pytest.raises(BackendError) as caught:
        OnnxruntimeBackend.partitioner({})
    assert '`[build-system] requires` name "hatch-lower[onnxruntime]"' in str(caught.value)


def test_a_folder_with_the_name_of_a_library_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnx"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "onnx").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(BackendError, match="needs libraries that cannot be imported"):
        require_libraries()


def test_loads_side_by_side_leave_the_switch_of_the_telemetry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(lambda: [import_onnxruntime() for _ in range(2000)]) for _ in range(4)]
            for load in loads:
                load.result()
    finally:
        sys.setswitchinterval(interval)
    assert SWITCH not in os.environ


@pytest.mark.usefixtures("hidden")
def test_a_program_without_onnx_runtime_names_the_extra(tmp_path: Path) -> None:
    with pytest.raises(ProgramError) as caught:
        of_tensors(OnnxruntimeDelegate).load(DelegateBlob(tmp_path / "partition.onnx"), [])
    assert 'pip install "hatch-lower[onnxruntime]"' in str(caught.value)


# What is loaded.


@pytest.mark.parametrize(
    "changed",
    [
        {"passed": [9]},
        {"inputs": "x"},
        {"outputs": [0, 1]},
        {"outputs": [{"result": 1}]},
        {"outputs": [{"input": 4}]},
        {"outputs": [{}]},
        {"bound": [9]},
        {"bound": [-1]},
        {"threads": None},
    ],
)
def test_facts_that_do_not_fit_the_model_are_refused(net: Made, tmp_path: Path, changed: Mapping[str, Any]) -> None:
    with pytest.raises(ProgramError, match="the plan does not describe a partition of the backend `onnxruntime`"):
        net.load(tmp_path, **changed)


def test_a_damaged_model_is_refused(net: Made, tmp_path: Path) -> None:
    half = net.result.processed_bytes[: len(net.result.processed_bytes) // 2]
    damaged = replace(net, result=replace(net.result, processed_bytes=half))
    with pytest.raises(ProgramError, match="ONNX Runtime refuses a model"):
        damaged.load(tmp_path)


def test_several_models_run_side_by_side_in_several_threads(tmp_path: Path) -> None:
    modules = [Net(seed).eval() for seed in range(3)]
    models = [
        hatch_lower.load(save_program(lower(module, torch.randn(2, 5, 32)), tmp_path / str(index)))
        for index, module in enumerate(modules)
    ]
    inputs = [torch.randn(2, 5, 32) for _ in range(12)]

    def run(index: int) -> bool:
        with torch.no_grad():
            given, expected = models[index % 3](inputs[index]), modules[index % 3](inputs[index])
        return torch.allclose(given, expected, rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, list(range(12)) * 4))


def test_specs_are_read_back() -> None:
    specs: list[CompileSpec] = delegates(lower(Apply(torch.relu), torch.randn(3), threads=3))[0].compile_specs
    assert {spec.key: json.loads(spec.value) for spec in specs} == {"providers": ["CPUExecutionProvider"], "threads": 3}
    program: ExportedProgram = delegates(lower(Apply(torch.relu), torch.randn(3)))[0].original_module
    with pytest.raises(BackendError, match="options of the backend `onnxruntime` are wrong"):
        OnnxruntimeBackend.preprocess(program, [CompileSpec("color", b"1")])
