"""The executorch backend: what it takes, what it makes of it, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from support.effort import LONG
from support.kit import CHECKS, SHORT
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import SymIntArgument

import hatch_lower
from hatch_lower.backends.executorch.compile import ExecutorchBackend
from hatch_lower.backends.executorch.run import ExecutorchDelegate
from hatch_lower.backends.executorch.support import LIMITED, OTHER_SPECIAL_VALUES
from hatch_lower.backends.testing import Exports, backend_tests, trial_names
from hatch_lower.errors import BackendError, ProgramError
from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.backend.backend_details import PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.surgery import copy_program
from hatch_lower.exir.graph_module import get_control_flow_submodules
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, get_lowered_backend_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.exir.tensor_layout import TensorLayout
from hatch_lower.format.constants import DataLayout
from hatch_lower.format.plan import read_plan
from hatch_lower.pipeline.emit.constants import NamedStorage, write_constants
from hatch_lower.pipeline.emit.delegates import bytes_in_own_layout
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.delegates import DelegateBlob, Place
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

pytest.importorskip("executorch")

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([[NAN, INF, -INF, 0.0, -0.0, 1.0, 1e30, -1e30], [3.5, -3.5, 88.0, -50.0, 3e38, NAN, -2.5, 2.5]])


class Module(nn.Module):
    """A function as a module, with buffers."""

    def __init__(self, function: Callable[..., Any], **buffers: Tensor | nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.add_module(name, value) if isinstance(value, nn.Module) else self.register_buffer(name, value)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


class Net(nn.Module):
    """A network whose names and contents reach the file in no other way than as weights."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.add_module(prefix + "inner", nn.Linear(8, 16))
        self.register_buffer(prefix + "scale", torch.tensor(2.0))
        self.prefix = prefix

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        inner, scale = getattr(self, self.prefix + "inner"), getattr(self, self.prefix + "scale")
        y = torch.relu(inner(x)) * scale * 2
        heads = y.view(x.shape[0], 4, 4).transpose(1, 2)
        return torch.softmax(y, -1), heads, (x - 1) / 3


ROWS = {"x": {0: Dim("rows", max=100)}}


def export(module: nn.Module, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> ExportedProgram:
    program = torch.export.export(module.eval(), args, **kwargs)
    return to_edge(program, keep=ExecutorchBackend.partitioner(options or {}).ops_to_not_decompose(program)[0])


def lower(program: ExportedProgram, options: dict[str, Any] | None = None) -> list[LoweredBackendModule]:
    lowered = lower_methods({"forward": program}, {"forward": ExecutorchBackend.partitioner(options or {})})
    return get_lowered_backend_modules(lowered["forward"].program.graph_module)


def lower_model(module: nn.Module, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> LoweredProgram:
    """Return a whole model as it would be packaged."""
    program = torch.export.export(module.eval(), args, **kwargs)
    return to_edge_transform_and_lower(
        program, partitioner=[ExecutorchBackend.partitioner(options or {})]
    ).to_executorch()


def taken(program: ExportedProgram, options: dict[str, Any] | None = None) -> tuple[set[str], dict[str, str]]:
    """Return the operators that are taken, and why the others are not, by operator."""
    result = ExecutorchBackend.partitioner(options or {}).partition(program)
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    names = {node.name: str(torch_operator(node.target)) for node in nodes}
    tagged = {names[node.name] for node in nodes if "delegation_tag" in node.meta}
    return tagged, {names[name]: reason for name, reason in result.reasons.items()}


def write(result: PreprocessResult, folder: Path, name: str = "net") -> DelegateBlob:
    path = folder / f"{name}.pte"
    path.write_bytes(result.processed_bytes)
    assert result.data_store_output is not None
    buffers, entries = result.data_store_output.buffers, result.data_store_output.external_data.get("constants", {})
    storages, names = {}, {}
    for key, entry in entries.items():
        layout = entry.tensor_layout or TensorLayout.of_bytes(len(buffers[entry.buffer_index]))
        storages[key] = torch.frombuffer(bytearray(buffers[entry.buffer_index]), dtype=torch.uint8)
        names[key] = NamedStorage(key, DataLayout(layout.scalar_type, layout.sizes, layout.dim_order))
    weights = path.with_suffix(".ptd")
    write_constants(weights, storages, names)
    return DelegateBlob(path, result.info, data_places={key: Place(weights, 0, 0) for key in entries})


def whole(module: nn.Module, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> PreprocessResult:
    """Return what becomes of a module that is taken whole."""
    (lowered,) = lower(export(module, *args, options=options, **kwargs), options)
    return lowered.result


@dataclass(frozen=True, slots=True)
class Made:
    """What becomes of `Net`: its one partition, and the folder of a wheel."""

    partition: LoweredBackendModule
    folder: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    lowered = lower_model(Net(), torch.ones(3, 8), dynamic_shapes=ROWS)
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == (handlers, level)
    (partition,) = get_lowered_backend_modules(lowered.exported_program().graph_module)
    return Made(partition, save_program(lowered, tmp_path_factory.mktemp("net") / "out"))


@pytest.fixture(scope="module")
def net(made: Made) -> PreprocessResult:
    return made.partition.result


# What is made of a partition.


def test_a_result_says_what_the_wheel_must_know(net: PreprocessResult) -> None:
    assert net.suffix == "pte"
    assert net.processed_bytes[4:6] == b"ET"
    assert net.requirements == (f"executorch>={'.'.join(version('executorch').split('.')[:2])},<1.6",)
    assert net.target is None
    assert net.info["threads"] is None
    assert len(net.info["passed"]) == 1
    # in the order of the partition's graph: heads, softmax, the quotient
    assert net.info["outputs"] == [{"result": 0, "order": [0, 2, 1]}, 1, 2]


def test_the_debug_map_covers_every_operation(made: Made) -> None:
    nodes = [node for node in made.partition.original_module.graph.nodes if node.op == "call_function"]
    assert len(nodes) == 10
    assert made.partition.meta is not None
    handles = made.partition.meta["debug_handle_map"]
    assert handles.pop("0:XnnpackBackend") == tuple(sorted(node.meta["debug_handle"] for node in nodes))
    # and those of each node of XNNPACK's graph
    assert {"fully connected", "softmax"} <= {name.split(":")[2] for name in handles}


def test_the_debug_map_tells_instructions_apart() -> None:
    """A portable kernel between two delegates of XNNPACK: each has the handles of its own operations."""
    module = Module(lambda self, x: (x.relu() * 2).erf().abs())
    (partition,) = lower(export(module, torch.ones(3)), {"portable-operators": True})
    assert partition.meta is not None
    names = {
        node.meta["debug_handle"]: str(torch_operator(node.target))
        for node in partition.original_module.graph.nodes
        if node.op == "call_function"
    }
    assert {
        instruction: [names[handle] for handle in handles]
        for instruction, handles in partition.meta["debug_handle_map"].items()
    } == {
        "0:XnnpackBackend": ["aten.relu.default", "aten.mul.Tensor"],
        "0:0:clamp": ["aten.relu.default"],
        "0:1:multiply": ["aten.mul.Tensor"],
        "1:aten.erf": ["aten.erf.default"],
        "2:XnnpackBackend": ["aten.abs.default"],
        "2:0:abs": ["aten.abs.default"],
    }


def test_the_file_holds_no_path_of_the_build(net: PreprocessResult) -> None:
    for path in (sys.prefix, sys.base_prefix, os.getcwd(), str(Path(torch.__file__).parent)):
        assert path.encode() not in net.processed_bytes


def test_every_dynamic_size_gives_eagers_numbers_and_strides(made: Made) -> None:
    model, eager = hatch_lower.load(made.folder), Net().eval()
    for rows in (0, 1, 2, 100):
        x = torch.randn(rows, 8)
        for result, expected in zip(model(x), eager(x), strict=True):
            torch.testing.assert_close(result, expected.detach(), check_stride=True)


def call(result: PreprocessResult, folder: Path, *args: Tensor) -> list[Tensor]:
    return list(ExecutorchDelegate.load(write(result, folder), []).run(list(args)))


def test_results_are_the_callers_own(net: PreprocessResult, tmp_path: Path) -> None:
    delegate = ExecutorchDelegate.load(write(net, tmp_path), [])
    given = [torch.ones(3, 8) if place in net.info["passed"] else 3 for place in range(net.info["inputs"])]
    first = list(delegate.run(given))
    kept = [each.clone() for each in first]
    delegate.run([each * -1 for each in given])
    assert all(torch.equal(one, other) for one, other in zip(first, kept, strict=True))


def test_several_programs_and_threads_side_by_side(net: PreprocessResult, tmp_path: Path) -> None:
    delegates = [ExecutorchDelegate.load(write(net, tmp_path, name), []) for name in "ab"]

    def work(rows: int) -> bool:
        given = [torch.full((rows, 8), 0.5) if i in net.info["passed"] else rows for i in range(net.info["inputs"])]
        expected = [each.clone() for each in delegates[0].run(given)]
        runs = (delegates[turn % 2].run(given) for turn in range(100))
        return all(torch.equal(a, b) for results in runs for a, b in zip(results, expected, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, (1, 30, 100, 7)))


# Numbers.

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "aten.abs.default": torch.abs,
    "aten.add.Tensor": lambda x: x + 1.5,
    "aten.cat.default": lambda x: torch.cat([x, -x], 1),
    "aten.ceil.default": torch.ceil,
    "aten.clamp.default": lambda x: x.clamp(-1, 2),
    "aten.cos.default": torch.cos,
    "aten.div.Tensor": lambda x: x / 3,
    "aten.exp.default": torch.exp,
    "aten.floor.default": torch.floor,
    "aten.gelu.default": nn.functional.gelu,
    "aten.hardswish.default": nn.functional.hardswish,
    "aten.hardtanh.default": nn.functional.hardtanh,
    "aten.leaky_relu.default": nn.functional.leaky_relu,
    "aten.log.default": torch.log,
    "aten.maximum.default": lambda x: torch.maximum(x, x.flip(1)),
    "aten.minimum.default": lambda x: torch.minimum(x, x.flip(1)),
    "aten.mul.Tensor": lambda x: x * 2,
    "aten.neg.default": torch.neg,
    "aten.constant_pad_nd.default": lambda x: nn.functional.pad(x, (1, 2), value=-7.0),
    "aten.pow.Tensor_Scalar": lambda x: x**2,
    "aten.relu.default": torch.relu,
    "aten.rsqrt.default": torch.rsqrt,
    "aten.sigmoid.default": torch.sigmoid,
    "aten.sin.default": torch.sin,
    "aten._softmax.default": lambda x: x.softmax(-1),
    "aten.sqrt.default": torch.sqrt,
    "aten.sub.Tensor": lambda x: x - x.abs(),
    "aten.tanh.default": torch.tanh,
}


@pytest.fixture(scope="module")
def elementwise() -> PreprocessResult:
    """All of `UNARY` in one program: an output for each."""
    module = Module(lambda self, x: tuple(each(x) for each in UNARY.values()))
    options = {"portable-operators": True}
    return whole(module, torch.ones(2, 8), options=options)


def test_finite_numbers_are_eagers(elementwise: PreprocessResult, tmp_path: Path) -> None:
    x = torch.randn(2, 8).abs() + 0.1
    for name, result in zip(UNARY, call(elementwise, tmp_path, x), strict=True):
        torch.testing.assert_close(result, UNARY[name](x), msg=name)


def test_operators_with_other_special_values_are_those_that_are_listed(
    elementwise: PreprocessResult, tmp_path: Path
) -> None:
    results = call(elementwise, tmp_path, SPECIAL)
    same = {
        name: torch.allclose(result, UNARY[name](SPECIAL), equal_nan=True)
        for name, result in zip(UNARY, results, strict=True)
    }
    # which kernels run is for the machine to say: another may differ in fewer
    assert {name for name, equal in same.items() if not equal} <= OTHER_SPECIAL_VALUES
    assert not same["aten.exp.default"]


def test_they_are_left_out_where_not_all_numbers_are_finite() -> None:
    program = export(Module(lambda self, x: tuple(each(x) for each in UNARY.values())), torch.ones(2, 8))
    names, reasons = taken(copy_program(program), {"finite-only": False})
    assert names == set(UNARY) - OTHER_SPECIAL_VALUES - LIMITED
    assert reasons["aten.exp.default"] == (
        "XNNPACK's `aten.exp.default` gives other results than eager for NaN or infinity, and `finite-only` is false"
    )
    assert taken(program)[0] == set(UNARY) - LIMITED


def test_a_sine_of_a_large_number_is_eagers(tmp_path: Path) -> None:
    module = Module(lambda self, x: (x.sin(), x.cos(), x + 1))
    x = torch.tensor([0.5, 1e6, 1e7, 1e8, -1e10, 3e38])
    assert LIMITED.isdisjoint(taken(export(module, x))[0])
    result = whole(module, x, options={"portable-operators": True})
    torch.testing.assert_close(tuple(call(result, tmp_path, x)), module(x))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"aten._native_batch_norm_legit_no_training.default", "aten.exp.default"}),
        ({"portable-operators": True}, {"aten._native_batch_norm_legit_no_training.default", "aten.exp.default"}),
        ({"exclude": ["aten.exp.default"]}, {"aten._native_batch_norm_legit_no_training.default"}),
        ({"finite-only": False, "portable-operators": True}, set()),
    ],
)
def test_a_partitioner_names_what_it_takes_for_finite_numbers_only(options: dict[str, Any], names: set[str]) -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    module = Module(lambda self, x: self.layers(x).exp().erf(), layers=layers)
    result = ExecutorchBackend.partitioner(options).partition(export(module, torch.randn(1, 3, 8, 8)))
    assert result.finite_only == names


def test_layers_with_weights_give_eagers_numbers_nan_included(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(
        [
            nn.Conv2d(3, 4, 3, padding=1, stride=2),
            nn.Conv2d(3, 6, 3, groups=3),
            nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last),
            nn.ConvTranspose2d(3, 2, 2),
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Linear(8, 5),
            nn.PReLU(3),
            nn.AdaptiveAvgPool2d(1),
        ]
    )
    module = Module(lambda self, x: tuple(each(x) for each in self.layers), layers=layers).eval()
    x = torch.randn(1, 3, 8, 8)
    result = whole(module, x)
    special = x.clone()
    special[0, 0, 0, :3] = torch.tensor([NAN, INF, -INF])
    channels_last = x.to(memory_format=torch.channels_last)
    for given in (x, special, channels_last):
        for index, (found, expected) in enumerate(zip(call(result, tmp_path, given), module(given), strict=True)):
            torch.testing.assert_close(found, expected.detach(), equal_nan=True, msg=str(index), check_stride=False)


@pytest.mark.parametrize("portable", [False, True])
def test_a_weight_that_is_packed_may_be_used_otherwise_too(portable: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Module(
        lambda self, x: (x @ self.w + 1, x @ self.w.t() - 1, x * self.w, nn.functional.linear(x, self.w)),
        w=torch.randn(64, 64),
    ).eval()
    x = torch.randn(64, 64)
    lowered = lower_model(module, x, options={"portable-operators": portable})
    assert get_lowered_backend_modules(lowered.exported_program().graph_module)
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for _ in range(2):
        for found, expected in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(found, expected)


def sizes_in(folder: Path) -> tuple[int, int]:
    """Return the bytes of the constants file, and of all delegates."""
    (constants,) = folder.rglob("constants.*")
    return constants.stat().st_size, sum(path.stat().st_size for path in folder.rglob("*.pte"))


def test_weights_lie_once_in_the_constants_file(tmp_path: Path) -> None:
    """Those of XNNPACK and of portable kernels, of a partition and of the plan: the file is as large as the weights."""
    module = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 64)).eval()
    x = torch.arange(3)
    with torch.no_grad():
        expected = module(x)
    size = sum(weight.nbytes for weight in module.parameters())
    for options in (
        {},
        {"portable-operators": True},
        {"portable-operators": True, "exclude": ["aten.embedding.default"]},
    ):
        folder = save_program(lower_model(module, x, options=options), tmp_path / str(len(str(options))))
        constants, programs = sizes_in(folder)
        assert size < constants < size + 4096
        assert programs < 16384
        torch.testing.assert_close(hatch_lower.load(folder)(x), expected)


def test_folded_weights_lie_beside_the_models_and_methods_share_them(tmp_path: Path) -> None:
    """A batch norm is folded into its convolution's weights, which XNNPACK has channels last."""
    module = Module(lambda self, x: self.norm(self.conv(x)), conv=nn.Conv2d(16, 32, 3), norm=nn.BatchNorm2d(32)).eval()
    x = torch.randn(1, 16, 5, 5)
    with torch.no_grad():
        module.norm.running_mean.uniform_()  # type: ignore[union-attr, operator]
        expected = module(x)
    program = torch.export.export(module, (x,))
    partitioner = ExecutorchBackend.partitioner({})
    lowered = to_edge_transform_and_lower({"forward": program, "again": program}, partitioner=[partitioner])
    made = lowered.to_executorch()
    folder = save_program(made, tmp_path / "out")
    constants, programs = sizes_in(folder)
    weight = module.conv.weight.nbytes  # type: ignore[union-attr, operator]
    assert weight < constants < 1.3 * weight
    assert programs < 8192
    plan = read_plan(next(folder.rglob("default.json")).read_bytes(), "plan")
    own = bytes_in_own_layout([plan])
    assert own == {"executorch": weight + 32 * 4}
    model = hatch_lower.load(folder)
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model.again(x), expected)


def test_a_constant_that_is_viewed_stays_in_the_program(tmp_path: Path) -> None:
    module = Module(lambda self, x: (x + self.w.view(16).erf(), self.w.abs()), w=torch.randn(4, 4)).eval()
    x = torch.randn(16)
    folder = save_program(lower_model(module, x, options={"portable-operators": True}), tmp_path / "out")
    for found, expected in zip(hatch_lower.load(folder)(x), module(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_damaged_weights_are_compared_on_demand_and_the_program_always(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    folder = save_program(lower_model(module, torch.ones(1, 64)), tmp_path / "out")
    for path, always in ((next(folder.rglob("*.ptd")), False), (next(folder.rglob("*.pte")), True)):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(ProgramError, match="another sha256"):
            hatch_lower.load(folder, verify=not always)
        if not always:
            hatch_lower.load(folder)
        path.write_bytes(data)


def test_subnormal_numbers_count_as_zero_exactly_as_torch_flushes_them(tmp_path: Path) -> None:
    """The kit below is told so: its `flushes_subnormals`."""
    module = Module(lambda self, x: (x * 3e38, x / x, x + x))
    x = torch.tensor([1e-40, -1e-40, 0.5, 2e-38])
    eager = module(x)
    torch.set_flush_denormal(True)
    try:
        flushed = module(x)
    finally:
        torch.set_flush_denormal(False)
    for found, expected, other in zip(call(whole(module, x), tmp_path, x), flushed, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
        assert not torch.allclose(found, other, rtol=1e-6, atol=0)


def test_a_pool_whose_stride_is_left_out_is_taken(tmp_path: Path) -> None:
    module = Module(lambda self, x: nn.functional.max_pool2d(x, 2))
    x = torch.randn(2, 3, 6, 6)
    (found,) = call(whole(module, x), tmp_path, x)
    torch.testing.assert_close(found, module(x))


@pytest.mark.parametrize(("stride", "ceil"), [((1, 3), False), (4, False), (2, True)])
def test_a_pool_that_xnnpack_lacks_is_left_whole_to_none(tmp_path: Path, stride: Any, ceil: bool) -> None:
    module = Module(lambda self, x: nn.functional.max_pool2d(x, (3, 2), stride, ceil_mode=ceil))
    x = torch.randn(2, 3, 9, 8)
    lowered = lower_model(module, x)
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    torch.testing.assert_close(model(x), module(x))


class Factors(nn.Module):
    """Products with factors and rows to add, which XNNPACK's linear layer leaves out, and an average pool."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.shift, self.rows = (nn.Parameter(torch.randn(size)) for size in ((4, 3), (3,), (2, 3)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        factors = [torch.addmm(self.shift, x, self.weight, beta=beta, alpha=alpha) for beta, alpha in FACTORS]
        rows = torch.addmm(self.rows, x, self.weight), torch.addmm(x[:, :3], x, self.weight)
        image = torch.relu(x.view(1, 1, 2, 4))
        return *factors, *rows, nn.functional.avg_pool2d(image, 2, padding=1, count_include_pad=False)


FACTORS = ((0.5, 3), (2, 1), (1, -1), (0, 2), (1, 0), (1, 1))


@pytest.mark.parametrize("portable", [False, True])
def test_factors_of_products_are_not_left_out(tmp_path: Path, portable: bool) -> None:
    module, x = Factors().eval(), torch.randn(2, 4)
    lowered = lower_model(module, x, options={"portable-operators": portable})
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for found, expected in zip(model(x), module(x), strict=True):
        torch.testing.assert_close(found, expected.detach())


def test_portable_kernels_take_the_rest(tmp_path: Path) -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.out = nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 4)

        def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
            x = self.out(nn.functional.gelu(self.norm(self.table(ids)), approximate="tanh"))
            return x, x.argmax(-1), ids + 1, (ids > 3).any()

    torch.manual_seed(0)
    module = Text().eval()
    options = {"portable-operators": True}
    result = whole(module, torch.zeros(2, 5, dtype=torch.long), options=options)
    ids = torch.randint(0, 10, (2, 5))
    for found, expected in zip(call(result, tmp_path, ids), module(ids), strict=True):
        torch.testing.assert_close(found, expected.detach())
    assert result.debug_handle_map is not None
    assert "0:aten.embedding" in result.debug_handle_map
    assert sum("XnnpackBackend" in str(each) for each in result.debug_handle_map) >= 1


# What is not taken.


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        return x.relu() * self.count


@pytest.mark.parametrize(
    ("module", "args", "operator", "reason"),
    [
        (Module(lambda self, x: x * 2), torch.ones(3, dtype=torch.long), "aten.mul.Tensor", "has the type int64"),
        (Module(lambda self, x: x.relu()), torch.ones(3, dtype=torch.half), "aten.relu.default", "the type float16"),
        (Module(lambda self, x: x.relu()), torch.ones(0, 3), "aten.relu.default", "XNNPACK takes no empty tensor"),
        (
            Module(lambda self, x: nn.functional.gelu(x, approximate="tanh")),
            torch.ones(3),
            "aten.gelu.default",
            "XNNPACK has the exact `aten.gelu.default` only, not the approximation by tanh",
        ),
        (
            Module(lambda self, x: x.softmax(0)),
            torch.ones(3, 2),
            "aten._softmax.default",
            "XNNPACK does not take this call of `aten._softmax.default`: dim must be the last dim, "
            "got dim = 0 for tensor of rank 2",
        ),
        (
            Module(lambda self, x: x.softmax(-1)),
            torch.tensor(1.0),
            "aten._softmax.default",
            "XNNPACK takes `aten._softmax.default` of tensors with dimensions only",
        ),
        (
            Module(lambda self, x: nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear")),
            torch.ones(1, 1, 6, 6),
            "aten.upsample_bilinear2d.vec",
            "computes with its sizes only, and the factors are not their ratios",
        ),
        (
            Module(lambda self, x: x + x),
            torch.ones((1,) * 7),
            "aten.add.Tensor",
            "XNNPACK takes tensors with 6 dimensions at most",
        ),
        (
            Module(lambda self, x: x.clamp(max=INF)),
            torch.ones(3),
            "aten.clamp.default",
            "ExecuTorch cannot write down an infinite argument of `aten.clamp.default` for XNNPACK",
        ),
        (Module(lambda self, x: x.erf()), torch.ones(3), "aten.erf.default", "XNNPACK has no kernel for"),
        (Counter(), torch.ones(3), "aten.mul.Tensor", ""),
        (Counter(), torch.ones(3), "aten.add.Tensor", "it uses `b_count`, which the program changes"),
        (Module(lambda self, x: x.t()), torch.ones(3, 2), "aten.permute.default", "it computes nothing, and does not"),
        (Module(lambda self, x: x + torch.rand(3)), torch.ones(3), "aten.rand.default", "XNNPACK has no kernel for"),
    ],
)
def test_what_is_not_taken_and_why(module: nn.Module, args: Tensor, operator: str, reason: str) -> None:
    names, reasons = taken(export(module, args))
    assert (operator in names) is (not reason)
    assert reason in reasons.get(operator, "")


def test_a_size_without_a_bound_is_not_taken() -> None:
    program = export(Net(), torch.ones(3, 8), dynamic_shapes={"x": {0: Dim("rows")}})
    names, reasons = taken(program)
    assert not names
    assert reasons["aten.linear.default"] == (
        "it has a size without an upper bound, and ExecuTorch reserves the memory beforehand"
    )


def test_excluded_operators_are_not_taken() -> None:
    names, reasons = taken(export(Net(), torch.ones(3, 8)), {"exclude": ["aten.relu.default"]})
    assert "aten.linear.default" in names
    assert reasons["aten.relu.default"] == "`aten.relu.default` is excluded by the recipe"


def test_partitions_are_convex_around_what_is_not_taken() -> None:
    program = export(Module(lambda self, x: (x.relu() + 1).erf() + x.relu() * 2), torch.ones(3))
    result = ExecutorchBackend.partitioner({}).partition(program)
    assert len(result.partition_tags) == 2


def test_branches_of_control_flow_are_taken_and_control_flow_is_not(tmp_path: Path) -> None:
    def branches(self: Any, x: Tensor) -> Tensor:
        y = self.inner(x).relu() * self.scale
        z = torch.cond(x.sum() > 0, lambda y: y * self.scale + 1, lambda y: (y - 1).abs(), (y,))
        return z / 3 + y

    torch.manual_seed(0)
    module = Module(branches, inner=nn.Linear(4, 4), scale=torch.tensor(2.0)).eval()
    lowered = lower_model(module, torch.ones(2, 4))
    program = lowered.exported_program()
    assert [len(get_lowered_backend_modules(program.graph_module))] + [
        len(get_lowered_backend_modules(branch)) for _, branch, _ in get_control_flow_submodules(program.graph_module)
    ] == [2, 1, 1]
    assert lowered.reasons["forward"]["cond"] == "`cond` holds graphs of its own"
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for x in (torch.ones(2, 4), -torch.ones(2, 4)):
        torch.testing.assert_close(model(x), module(x).detach())


def calls_of_partitioning(count: int, options: dict[str, Any]) -> int:
    """Return how many calls and returns of functions it takes for a program of so many equal parts."""

    def parts(self: Any, x: Tensor) -> Tensor:
        for _ in range(count):
            x = ((x * self.scale + x).relu() @ self.weight).cumsum(0)
        return x

    program = export(Module(parts, scale=torch.tensor(2.0), weight=torch.ones(4, 4)), torch.ones(4, 4))
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        ExecutorchBackend.partitioner(options).partition(program)
    finally:
        sys.setprofile(before)
    return calls


def test_partitioning_is_linear() -> None:
    options = {"finite-only": True, "portable-operators": True}
    calls_of_partitioning(1, options)  # imports
    small, large = calls_of_partitioning(10, options), calls_of_partitioning(40, options)
    assert large < 4.2 * small


@pytest.mark.parametrize(
    ("module", "x", "finite", "left"),
    [
        (nn.Linear(4, 4).double(), torch.ones(2, 4).double(), True, "permute addmm"),
        (nn.Linear(4, 4), torch.ones(1, 1, 1, 1, 1, 2, 4), True, "view permute addmm view"),
        (Module(lambda self, x: nn.functional.linear(x, x)), torch.ones(4, 4), True, "permute mm"),
        (nn.Hardswish(), torch.ones(2, 4), False, ""),
        (nn.PReLU(), torch.ones(2, 4), True, "gt where"),
        (nn.MaxPool2d(2), torch.ones(3, 8, 8), True, "max_pool2d_with_indices"),
    ],
)
def test_what_xnnpack_will_not_take_is_not_kept_whole_for_it(
    module: nn.Module, x: Tensor, finite: bool, left: str
) -> None:
    lowered = lower_model(module, x, options={"finite-only": finite})  # this refuses what is whole and in no partition
    targets = [torch_operator(node.target) for node in lowered.exported_program().graph.nodes]
    assert [base_name(target) for target in targets if isinstance(target, OpOverload)] == left.split()


def test_asking_restricts_no_size() -> None:
    program = export(Net(), torch.ones(3, 8), dynamic_shapes=ROWS)
    (x,) = [node for node in program.graph.find_nodes(op="placeholder") if node.name == "x"]
    guards = x.meta["val"].fake_mode.shape_env.guards
    before = len(guards)
    ExecutorchBackend.partitioner({}).partition(program)
    assert len(guards) == before


# Sizes that are known at run time only.


class Attention(nn.Module):
    """One layer of a transformer, with all that is made of sizes there: views, a mask, positions, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions, self.norm = nn.Embedding(10, 8), nn.Embedding(16, 8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows, length = ids.shape
        x = self.norm(self.table(ids) + self.positions(torch.arange(length)))
        q, k, v = (each.view(rows, length, 2, 4).transpose(1, 2) for each in self.qkv(x).split(8, -1))
        mask = torch.arange(length)[:, None] >= torch.arange(length)
        scores = torch.where(mask, q @ k.transpose(-1, -2), -1e4).softmax(-1)
        mixed = self.out((scores @ v).transpose(1, 2).reshape(rows, length, 8))
        return mixed, mixed.sum(1) / length


TWO = {0: Dim("rows", min=1, max=4), 1: Dim("length", min=1, max=16)}


class LongIntegers(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        quotients = torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), x // 7
        return *quotients, x.sum(0), x @ y[0], x**3, x.to(torch.int32) ** 3, x @ y.t(), x.cumsum(0), x * y


def test_integers_of_64_bits_keep_their_digits_and_powers_wrap_around(tmp_path: Path) -> None:
    x = torch.tensor([[2**63 - 1, 2**53 + 1, -(2**62) - 1], [2**31 + 1, -7, 3_037_000_501]])
    y = torch.tensor([[3, -5, 2**33 + 1], [2, 2**53 + 3, -9]])
    lowered = lower_model(LongIntegers(), x, y, options={"portable-operators": True})
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(x, y)
    assert [torch.equal(*pair) for pair in zip(results, LongIntegers()(x, y), strict=True)] == [True] * 10


WHOLE = {"finite-only": True, "portable-operators": True}


def check_sizes(lowered: LoweredProgram, module: nn.Module, given: Tensor, folder: Path) -> None:
    model = hatch_lower.load(save_program(lowered, folder / "out"))
    for rows, length in ((2, 7), (1, 1), (4, 16), (1, 16), (2, 2), (4, 1), (3, 9), (4, 16), (2, 7)):
        x = given[:rows, :length].clone()
        for found, expected in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(found, expected.detach() if isinstance(expected, Tensor) else expected)


def delegates(lowered: LoweredProgram) -> list[LoweredBackendModule]:
    return get_lowered_backend_modules(lowered.exported_program().graph_module)


def test_a_transformer_with_dynamic_sizes_is_one_partition_with_portable_operators(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, ids = Attention().eval(), torch.randint(0, 10, (4, 16))
    lowered = lower_model(module, ids[:2, :7].clone(), options=WHOLE, dynamic_shapes={"ids": TWO})
    (partition,) = delegates(lowered)
    assert not lowered.reasons["forward"]
    assert partition.result.info["passed"] == [0]  # the ids alone
    handles = {handle for each in (partition.result.debug_handle_map or {}).values() for handle in each}
    nodes = [node for node in partition.original_module.graph.nodes if node.op == "call_function"]
    assert handles == {node.meta["debug_handle"] for node in nodes}
    check_sizes(lowered, module, ids, tmp_path)


def products(_: nn.Module, x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    heads = x.view(batch, length, 4, 4).transpose(1, 2)
    return torch.softmax(heads @ heads.transpose(-1, -2), -1) @ heads


def test_heads_that_are_multiplied_with_themselves_are_no_results_of_xnnpack_twice(tmp_path: Path) -> None:
    """XNNPACK, which multiplies no batches of dynamic sizes, would only move them, copy them, and give both."""
    shapes = {"args": ({0: Dim("batch", max=8), 1: Dim("length", max=32)},)}
    module = Module(products)
    lowered = lower_model(module, torch.randn(2, 5, 16), options=WHOLE, dynamic_shapes=shapes)
    assert len(delegates(lowered)) == 1
    loaded = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for x in (torch.randn(1, 1, 16), torch.randn(8, 3, 16)):
        torch.testing.assert_close(loaded(x), module(x))


def test_a_result_and_its_copy_are_two_tensors(tmp_path: Path) -> None:
    def copied(_: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(x)
        return y, y.clone(), y.t().clone(memory_format=torch.contiguous_format)

    module, x = Module(copied), torch.randn(3, 4)
    lowered = lower_model(module, x, options=WHOLE)
    assert len(delegates(lowered)) == 1
    results, expected = hatch_lower.load(save_program(lowered, tmp_path / "out"))(x), module(x)
    torch.testing.assert_close(results, expected)
    assert [each.stride() for each in results] == [each.stride() for each in expected]
    assert len({each.data_ptr() for each in results}) == 3


def test_without_portable_operators_the_cuts_are_what_xnnpack_lacks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, ids = Attention().eval(), torch.randint(0, 10, (4, 16))
    lowered = lower_model(module, ids[:2, :7].clone(), options={"finite-only": True}, dynamic_shapes={"ids": TWO})
    # up to the split, up to the mask, and the rest
    assert len(delegates(lowered)) == 3
    reasons = lowered.reasons["forward"]
    assert {reason.rpartition("aten.")[2] for reason in reasons.values() if "has no kernel" in reason} == {
        *("embedding.default`", "split_with_sizes.default`", "where.self`"),
        *("arange.start_step`", "ge.Tensor`", "scalar_tensor.default`", "sum.dim_IntList`"),
    }
    views = {why for name, why in reasons.items() if name.startswith(("aten_view", "aten_clone", "aten_expand", "mul"))}
    assert views == {"it computes nothing, and does not stand between operations that are taken"}
    check_sizes(lowered, module, ids, tmp_path)


def test_sizes_go_into_partitions_and_come_out_of_them(tmp_path: Path) -> None:
    """A product of sizes is used on both sides of what is not taken, and returned."""

    def both(self: Any, x: Tensor) -> tuple[Tensor, int, Tensor]:
        flat = (x.relu() @ self.weight).reshape(x.shape[0] * x.shape[1], 2, 2)
        wide = torch.cat([flat, flat]).erf()  # XNNPACK has none
        return wide.abs().view(2, x.shape[0], x.shape[1], 4), flat.shape[0] + 1, flat.neg()

    torch.manual_seed(0)
    module, x = Module(both, weight=torch.randn(4, 4)).eval(), torch.randn(4, 16, 4)
    lowered = lower_model(module, x[:2, :7].clone(), dynamic_shapes={"args": (TWO,)})
    before, after = delegates(lowered)
    assert "aten.erf.default" in lowered.reasons["forward"]["aten_erf_default"]
    specs = after.original_module.graph_signature.input_specs
    numbers = [place for place, spec in enumerate(specs) if isinstance(spec.arg, SymIntArgument)]
    assert numbers
    assert set(numbers) <= set(after.result.info["passed"])
    assert any(isinstance(spec.arg, SymIntArgument) for spec in before.original_module.graph_signature.output_specs)
    check_sizes(lowered, module, x, tmp_path)


def test_a_size_of_another_partition_that_can_be_inferred_is_not_given(tmp_path: Path) -> None:
    def split(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        count = x.shape[0] * x.shape[1]
        wide = x.relu().reshape(count, 4).neg().erf()  # XNNPACK has none
        return wide.neg().view(count, 2, 2).exp(), wide

    module, x = Module(split), torch.randn(4, 16, 4)
    lowered = lower_model(module, x[:2, :7].clone(), dynamic_shapes={"args": (TWO,)})
    _, after = delegates(lowered)
    specs = after.original_module.graph_signature.input_specs
    (number,) = (place for place, spec in enumerate(specs) if isinstance(spec.arg, SymIntArgument))
    assert number not in after.result.info["passed"]
    check_sizes(lowered, module, x, tmp_path)


def test_views_of_inputs_and_views_that_are_results_have_the_sizes_of_each_call(tmp_path: Path) -> None:
    def views(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        split = x.view(x.shape[0], x.shape[1], 2, 2)
        merged = (x + 1).view(x.shape[0] * x.shape[1], 4).view(x.shape[1], x.shape[0], 4)
        return split, split.exp(), merged, merged.clone(), x.clone(), x.expand(x.shape[0], -1, 4) * 2

    module, x = Module(views), torch.randn(4, 16, 4)
    for name, options in {"default": {"finite-only": True}, "portable": WHOLE}.items():
        lowered = lower_model(module, x[:2, :7].clone(), options=options, dynamic_shapes={"args": (TWO,)})
        assert len(delegates(lowered)) == 1
        check_sizes(lowered, module, x, tmp_path / name)


def test_views_sizes_and_copies_alone_are_worth_no_call() -> None:
    module = Module(lambda self, x: (x.view(x.shape[0], x.shape[1] * 4).clone(), torch.arange(x.shape[1] * 2)))
    names, reasons = taken(export(module, torch.ones(2, 3, 4), dynamic_shapes={"args": (TWO,)}), WHOLE)
    assert not names
    assert set(reasons.values()) == {"it computes nothing, and does not stand between operations that are taken"}


@pytest.mark.parametrize(
    ("function", "options", "operator", "reason"),
    [
        (lambda self, x: x * x.shape[0], {}, "aten.mul.Tensor", "XNNPACK takes no size or number that is known at run"),
        (lambda self, x: x * (x.shape[0] - 3), WHOLE, "aten.mul.Tensor", "which may be negative and so is not a size"),
        (lambda self, x: x * x.shape[0] ** 0.5, WHOLE, "aten.mul.Tensor", "known at run time only and is not a size"),
        (lambda self, x: x * x.shape[0] ** 2, WHOLE, "pow", "ExecuTorch's runtime has no `_operator.pow` for sizes"),
    ],
)
def test_numbers_that_stay_outside_and_why(function: Any, options: Any, operator: str, reason: str) -> None:
    program = export(Module(function), torch.ones(2, 3), dynamic_shapes={"args": ({0: Dim("rows", max=9)},)})
    names, reasons = taken(program, options)
    assert operator not in names
    assert reason in next(why for name, why in reasons.items() if operator in name)


def test_a_size_is_not_inferred_beside_one_that_may_be_zero() -> None:
    module = Module(lambda self, x: (x + 1).view(x.shape[0], -1, 2))
    for least, expected in ((0, "leaves a size to be inferred, and another size may be 0"), (2, "")):
        rows, columns = Dim("rows", min=least, max=4), Dim("half", min=max(least, 1), max=4)
        program = export(module, torch.ones(3, 4), dynamic_shapes={"args": ({0: rows, 1: 2 * columns},)})
        assert expected in taken(program)[1].get("aten.view.default", "")


# The same bytes everywhere.

FRESH = """
import hashlib, json, sys
sys.path[:0] = sys.argv[1:3]
from test_executorch import *
result = whole(Net(sys.argv[3]), torch.ones(3, 8), dynamic_shapes={"x": {0: Dim(sys.argv[3] + "n", max=100)}})
print(hashlib.sha256(result.processed_bytes).hexdigest(), json.dumps([dict(result.info), result.debug_handle_map]))
"""


def test_bytes_depend_on_no_process_folder_hash_seed_or_name(net: PreprocessResult, tmp_path: Path) -> None:
    expected = f"{hashlib.sha256(net.processed_bytes).hexdigest()} {json.dumps([net.info, net.debug_handle_map])}"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    folders = [str(folder) for folder in Path(__file__).parents[:2]]
    command = [sys.executable, "-c", FRESH, *folders, "other"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == expected


# Running without the compiler, and with threads.

RUN = """
import json, sys, torch, warnings
from pathlib import Path
from hatch_lower.backends.executorch.run import ExecutorchDelegate
from hatch_lower.runtime.delegates import DelegateBlob, Place
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name
info = json.loads(sys.argv[2])
found = []
def load(threads):
    path = Path(sys.argv[1])
    weights = {info["weights"]: Place(path.with_suffix(".ptd"), 0, 0)}
    return ExecutorchDelegate.load(DelegateBlob(path, {**info, "threads": threads}, data_places=weights), [])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    first = load(3)
    from hatch_lower.backends.executorch.run import extension
    library = extension()
    found.append(library._threadpool_get_thread_count())
    second = load(1)
    found.append(library._threadpool_get_thread_count())
    found.append([str(each.message) for each in caught])
    given = [torch.ones(3, 8) if place in info["passed"] else 3 for place in range(info["inputs"])]
    first.run(given), second.run(given)
    del first, second
    third = load(1)
    found.append(library._threadpool_get_thread_count())
    third.run(given)
found.append([name for name in ("torchao", "executorch.exir", "executorch.backends") if name in sys.modules])
print(json.dumps(found))
"""


def test_the_run_half_imports_no_compiler_and_sets_threads_while_no_program_is_loaded(
    net: PreprocessResult, tmp_path: Path
) -> None:
    blob = write(net, tmp_path)
    command = [sys.executable, "-c", RUN, str(blob.path), json.dumps(dict(net.info))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    warned = (
        "ExecuTorch runs with 3 threads instead of 1: its pool belongs to the process, and a program that was loaded "
        "before uses it"
    )
    assert json.loads(done.stdout.strip().splitlines()[-1]) == [3, 3, [warned], 1, []]


# What it says.


def test_unknown_and_ill_typed_options_are_refused() -> None:
    with pytest.raises(BackendError) as caught:
        ExecutorchBackend.partitioner({"thread": 2, "threads": 0, "exclude": "x", "portable-operators": 1})
    assert str(caught.value) == (
        "the options of the backend `executorch` are wrong\n"
        "  found: `thread` is no option: did you mean `threads`? known: `exclude`, `finite-only`, "
        "`portable-operators`, `threads`\n"
        "    `exclude` must be a list of strings such as `aten.relu.default`, but is 'x'\n"
        "    `portable-operators` must be true or false, but is 1\n"
        "    `threads` must be a number from 1 on, but is 0\n"
        "  to do: correct the options in the recipe's table for the backend `executorch`"
    )


def test_options_go_through_compile_specs() -> None:
    options = {"threads": 2, "finite-only": True, "exclude": ["aten.relu.default"]}
    (spec, *_) = (
        ExecutorchBackend.partitioner(options).partition(export(Net(), torch.ones(3, 8))).partition_tags.values()
    )
    assert spec.backend_id == "executorch"
    assert spec.compile_specs == [CompileSpec("finite-only", b"true\n"), CompileSpec("threads", b"2\n")]


def test_the_fingerprint_names_executorch() -> None:
    found = ExecutorchBackend.fingerprint([])
    assert found["executorch"] == version("executorch")
    assert set(found) == {"backend", "executorch", "flatbuffers", "torchao"}


def test_without_executorch_the_extra_is_named(
    net: PreprocessResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "executorch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "executorch", None)
    with pytest.raises(BackendError, match="needs ExecuTorch") as caught:
        ExecutorchBackend.partitioner({}).partition(export_plain())
    assert '`[build-system] requires` name "hatch-lower[executorch]"' in str(caught.value)
    with pytest.raises(ProgramError, match="needs ExecuTorch's runtime") as refused:
        ExecutorchDelegate.load(write(net, tmp_path), [])
    assert 'pip install "hatch-lower[executorch]"' in str(refused.value)


def export_plain() -> ExportedProgram:
    return to_edge(torch.export.export(Module(lambda self, x: x.relu()), (torch.ones(3),)))


def test_damaged_files_and_plans_are_refused(net: PreprocessResult, tmp_path: Path) -> None:
    blob = write(net, tmp_path)
    for damage in (
        {"inputs": 0},
        {"outputs": [{"result": 0, "order": [1]}, 1, 2]},
        {"threads": 0},
        {"passed": None},
        {"weights": "others"},
    ):
        with pytest.raises(ProgramError, match="the plan does not describe a partition"):
            ExecutorchDelegate.load(replace(blob, info={**net.info, **damage}), [])
    weights = blob.path.with_suffix(".ptd")
    weights.write_bytes(weights.read_bytes()[:64])
    with pytest.raises(ProgramError, match="cannot be loaded or run"):  # by the first call, which loads the method
        ExecutorchDelegate.load(blob, []).run([torch.ones(3, 8), 3][: net.info["inputs"]])
    blob.path.write_bytes(net.processed_bytes[:64])
    with pytest.raises(ProgramError, match="cannot be loaded or run"):
        ExecutorchDelegate.load(blob, []).run([torch.ones(3, 8), 3][: net.info["inputs"]])


# The kit; what takes longest runs in a long run only.

EXPORTS = Exports()
OPTIONS = "checks/every option is in result or key"
LEFT_OUT = (
    *("checks/the partitioner is linear", "checks/bytes are the same twice"),
    *("checks/every constant is in result or key", OPTIONS),
    *("shapes/empty tensors", "outputs/nested", "aliases/views of results", "aliases/input returned"),
    *("constants/tied", "state/replaced", "control flow/cond"),
    *("outputs/several", "symbolic sizes/empty batch"),
    *(name for name in SHORT if name.startswith("limits/")),  # XNNPACK computes no integers
)
"""For a long run: what other tests here look at, too, and programs of which the others of their group say the same."""
QUICK = [name for name in (*SHORT, *CHECKS) if name not in LEFT_OUT]
VARIATIONS: dict[str, list[Any]] = {
    "exclude": [["aten.relu.default"]],
    "finite-only": [True],
    "portable-operators": [True],
    "threads": [2],
}

test_kit = backend_tests(
    "executorch",
    {"finite-only": False},
    variations=VARIATIONS,
    packed_copies=1,
    flushes_subnormals=True,
    only="*" if LONG else QUICK,
    exports=EXPORTS,
)

test_kit_of_options = backend_tests(
    "executorch",
    {"finite-only": False},
    variations=VARIATIONS,
    packed_copies=1,
    only=["operators/fused", OPTIONS],
    exports=EXPORTS,
)

test_kit_with_portable_operators = backend_tests(
    "executorch",
    {"finite-only": False, "portable-operators": True},
    packed_copies=1,
    flushes_subnormals=True,
    only="*"
    if LONG
    else ["operators/functions float32", "operators/embedding", "shapes/empty tensors", "limits/wrapping int32"],
    exports=EXPORTS,
)

ALL_FINITE = [name for name in trial_names() if not name.startswith("values/odd")]

test_kit_for_finite_numbers = backend_tests(
    "executorch",
    packed_copies=1,
    flushes_subnormals=True,
    only=ALL_FINITE if LONG else ["operators/functions float32"],
    exports=EXPORTS,
)

test_kit_for_finite_numbers_with_portable_operators = backend_tests(
    "executorch",
    {"portable-operators": True},
    packed_copies=1,
    flushes_subnormals=True,
    only=ALL_FINITE if LONG else ["operators/pooling *"],
    exports=EXPORTS,
)
