"""Weights of convolutions that loading lays out for AOTInductor's code, unless `prepack-weights` is false."""

from __future__ import annotations

import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import hatch_lower
from hatch_lower.backends.aoti import run
from hatch_lower.backends.aoti.compile import AotiBackend
from hatch_lower.backends.aoti.configuration import options_from_specs, parse_options
from hatch_lower.backends.aoti.prepare import AotiCopy
from hatch_lower.errors import ProgramError
from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.backend.backend_details import PreprocessResult
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.format.plan import read_plan
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.torch_private.inductor import packed_weight

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]


class Convolution(nn.Module):
    def __init__(self, **where: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(6, 12, 3, **where)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result


def edge_of(module: nn.Module, *args: Tensor, shapes: Any = None) -> ExportedProgram:
    program = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
    return to_edge(program, keep=[torch.ops.aten.conv2d.default])


def copied(program: ExportedProgram, *, prepacks: bool = True) -> AotiCopy:
    return AotiCopy(program, prepacks=prepacks)


def call(program: ExportedProgram, *inputs: Tensor) -> Tensor:
    """Return what the graph for inductor gives, its weights laid out."""
    copy = copied(program)
    tensors = [constant_of(program, spec) for spec in constant_specs(program)]
    assert copy.packed
    given = {f"c{place}": tensor for place, tensor in enumerate(tensors)}
    for name, places in copy.packed.items():
        where = asdict(places)
        given[name] = packed_weight(tensors[where.pop("constant")].detach(), **where)
    with torch.no_grad():
        (result,) = torch.fx.GraphModule(given, copy.graph)(*inputs)
    assert isinstance(result, Tensor)
    assert result.stride() == program.module()(*inputs).stride()
    return result


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"stride": 2, "bias": False},
        {"padding": (2, 1), "stride": (1, 3)},
        {"dilation": (1, 2), "padding": 1},
        {"groups": 3},
        {"groups": 6, "bias": False},
    ],
)
def test_a_convolution_gives_eagers_numbers(where: dict[str, Any]) -> None:
    eager = Convolution(**where)
    program = edge_of(eager, torch.randn(2, 6, 9, 8))
    for x in (torch.randn(2, 6, 9, 8), torch.zeros(2, 6, 9, 8)):
        torch.testing.assert_close(call(program, x), eager(x).detach())


@pytest.mark.parametrize("place", [0, 2])
def test_a_convolution_of_images_of_unknown_number_or_size_is_left_as_it_is(place: int) -> None:
    shapes = {"x": {place: Dim("size", min=4, max=99)}}
    assert not copied(edge_of(Convolution(padding=1), torch.randn(5, 6, 9, 8), shapes=shapes)).packed


def test_weights_are_laid_out_for_the_images_that_a_call_gets() -> None:
    (places,) = copied(edge_of(Convolution(), torch.randn(5, 6, 9, 8))).packed.values()
    assert places.size == (5, 9, 8)


def test_weights_with_the_dimensions_in_another_order_are_laid_out_too() -> None:
    eager = Convolution()
    eager.layer.weight = nn.Parameter(eager.layer.weight.detach().contiguous(memory_format=torch.channels_last))
    x = torch.randn(2, 6, 9, 8)
    torch.testing.assert_close(call(edge_of(eager, x), x), eager(x).detach())


def test_convolutions_share_the_copy_of_the_weights_that_they_share() -> None:
    class Often(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(6, 6, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.layer(x)
            return F.conv2d(x, self.layer.weight, stride=2)

    eager, x = Often(), torch.randn(2, 6, 9, 8)
    program = edge_of(eager, x)
    assert [(places.constant, places.stride) for places in copied(program).packed.values()] == [
        (0, (1, 1)),
        (0, (2, 2)),
    ]
    torch.testing.assert_close(call(program, x), eager(x).detach())


class Computed(Convolution):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.layer.weight * 2)


class Changed(Convolution):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        self.layer.weight.add_(1)
        return result


class OfState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(12, 6, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Computed, Changed, OfState])
@torch.no_grad()
def test_what_is_no_parameter_or_changes_is_bound_as_it_lies(kind: type[nn.Module]) -> None:
    assert not copied(edge_of(kind(), torch.randn(2, 6, 9, 8))).packed


def test_without_the_option_and_without_several_images_nothing_is_laid_out() -> None:
    x = torch.randn(2, 6, 9, 8)
    assert not copied(edge_of(Convolution(), x), prepacks=False).packed
    assert not copied(edge_of(Convolution(), x[0])).packed
    assert not copied(edge_of(Convolution().double(), x.double())).packed


@torch.no_grad()
def test_a_parameter_that_another_method_changes_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[AotiCopy] = []

    def compile_nothing(programs: list[ExportedProgram], compile_specs: object) -> list[PreprocessResult]:
        seen.extend(map(copied, programs))
        return [PreprocessResult(b"", suffix="so") for _ in programs]

    monkeypatch.setattr(AotiBackend, "preprocess_many", compile_nothing)

    class Change(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            self.layer.weight.add_(1)  # type: ignore[operator]
            return x + 1

    using, x = Convolution(), torch.randn(2, 6, 9, 8)
    partitioner = AotiBackend.partitioner({"prepack-weights": True})
    for programs, packed in (
        ({"forward": edge_of(using, x)}, 1),
        ({"forward": edge_of(using, x), "change": edge_of(Change(using.layer), x)}, 0),
    ):
        seen.clear()
        lower_methods(programs, dict.fromkeys(programs, partitioner))
        assert seen
        assert sum(len(each.packed) for each in seen) == packed


@pytest.mark.skipif(platform.machine() != "x86_64", reason="packing is the default on x86-64 only")
def test_packing_is_the_default_and_part_of_what_shapes_the_code() -> None:
    for given, keys in (({}, ["isa", "prepack-weights"]), ({"prepack-weights": False}, ["isa"])):
        options = parse_options(given)
        specs = options.to_specs()
        assert [spec.key for spec in specs] == keys
        assert options_from_specs(specs) == options


@pytest.mark.slow
def test_a_compiled_model_gives_eagers_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16)
    ).eval()
    program = torch.export.export(eager, (torch.randn(2, 3, 9, 8),))
    partitioner = AotiBackend.partitioner({})
    lowered = to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()
    folder = save_program(lowered, tmp_path / "saved")
    (plan,) = folder.rglob("default.json")
    (entry,) = read_plan(plan.read_bytes(), "plan").delegates
    assert [(given["groups"], given["size"]) for given in entry.info["packed"].values()] == [
        (1, [2, 9, 8]),
        (16, [2, 9, 8]),
    ]
    model = hatch_lower.load(folder)
    with torch.no_grad():
        images = torch.randn(3, 2, 3, 9, 8)
        images[2, 0, 0, 4, 4] = float("nan")
        for x in images:
            for each in (model, model.clone(), model):
                found, expected = each(x), eager(x)
                torch.testing.assert_close(found, expected, equal_nan=True)
                assert found.stride() == expected.stride()


@pytest.mark.parametrize(("dtype", "zero_point"), [(torch.int8, None), (torch.float32, 0), (torch.float64, None)])
def test_weights_of_another_dtype_are_refused(tmp_path: Path, dtype: torch.dtype, zero_point: int | None) -> None:
    where = {"zero_point": zero_point, "groups": 1, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    with pytest.raises(ProgramError) as caught:
        run.pack(DelegateBlob(tmp_path / "net.so", {}), torch.zeros(1, 1, 3, 3, dtype=dtype), where)
    assert caught.value.found == f"weights of {dtype} in 4 dimensions"


@pytest.mark.slow
@torch.no_grad()
def test_a_result_that_a_convolution_reads_and_the_model_returns_has_eagers_order(tmp_path: Path) -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Conv2d(6, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            first = self.first(x)
            return first, F.relu(self.second(first) + first)

    eager, x = Features(), torch.randn(2, 6, 9, 8)
    program = torch.export.export(eager, (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({"prepack-weights": True})])
    model = hatch_lower.load(save_program(lowered.to_executorch(), tmp_path / "saved"))
    for found, expected in zip(model(x), eager(x), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
