"""Functions that inductor's own formulas lose digits for: `aoti` gives those of eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import hatch_lower
from hatch_lower.backends.aoti.compile import AotiBackend
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]


class Functions(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.expm1(x), torch.atanh(x), torch.acosh(x), torch.pow(x, -0.5)


class Dtypes(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        floats = x, x.double(), x.half(), x.bfloat16()
        results = [Functions()(given) for given in (*floats, x.int())]
        results += [(nn.functional.elu(given, 0.3), nn.functional.selu(given)) for given in floats]
        return tuple(result for of_dtype in results for result in of_dtype)


def test_small_and_large_numbers_keep_the_digits_of_eager(tmp_path: Path) -> None:
    sizes = torch.logspace(-30, 30, 241)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([sizes, -sizes, torch.linspace(-100, 100, 401), torch.linspace(-1, 1, 401), special])
    program = torch.export.export(Dtypes(), (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    assert not lowered.reasons["forward"]
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(x)
    for result, expected in zip(results, Dtypes()(x), strict=True):
        # four units in the last place, or two of half precision
        eps = torch.finfo(expected.dtype).eps * (4 if expected.dtype.itemsize > 2 else 2)
        torch.testing.assert_close(result, expected, rtol=eps, atol=0, equal_nan=True)
        numbers = ~expected.isnan()
        assert torch.equal(result.signbit()[numbers], expected.signbit()[numbers])


class Deviations(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        by_rows = [torch.std(given, 1, correction=0, keepdim=True) for given in (x, x.bfloat16(), x.double())]
        means = *torch.std_mean(x, 1, correction=0), *torch.std_mean(x.bfloat16(), 1, keepdim=True), *torch.std_mean(x)
        return *by_rows, x.T.std(0), (x[:2] * 1e19).std(), *means


def test_standard_deviations_of_small_and_large_numbers_keep_the_digits_of_eager(tmp_path: Path) -> None:
    sizes = torch.logspace(-36, 37, 40)
    x = torch.linspace(-1, 2, 9) ** 3 * sizes[:, None]
    program = torch.export.export(Deviations(), (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(x)
    for result, expected in zip(results, Deviations()(x), strict=True):
        assert expected.all()
        torch.testing.assert_close(result, expected, rtol=torch.finfo(expected.dtype).eps * 4, atol=0)


class Sizes(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        sizes = [given.abs() for given in (x, x.to(torch.int8), x.int(), x.float())]
        return *(size.float().sqrt() for size in sizes), *(size * 2 for size in sizes), -x, (-x).float()


def test_absolute_values_of_narrow_integers_wrap_around(tmp_path: Path) -> None:
    x = torch.tensor([-(2**15), -(2**15) + 1, -129, -128, -127, -1, 0, 1, 127, 128, 2**15 - 1] * 4, dtype=torch.int16)
    program = torch.export.export(Sizes(), (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(x)
    for result, expected in zip(results, Sizes()(x), strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True)


class Remainders(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return [result for given in (x, y) for result in (given % 0.7, given % -1.3, torch.remainder(1.3, given))]


def test_remainders_of_half_precision_round_a_number_as_eager(tmp_path: Path) -> None:
    numbers = torch.cat([torch.arange(-40, 41) * step for step in (0.7, 1.3, 0.08125)])
    given = numbers.bfloat16(), numbers.half()
    program = torch.export.export(Remainders(), given)
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    assert not lowered.reasons["forward"]
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(*given)
    for result, expected in zip(results, Remainders()(*given), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


class Concatenations(nn.Module):
    def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, ...]:
        heads = x.transpose(1, 2)
        empty = [torch.zeros(0), torch.zeros(0, dtype=torch.float64), heads[:0]]
        sole = [torch.cat([heads]), torch.cat([image[:, :0], image], 1), *(torch.cat([each, heads]) for each in empty)]
        return *sole, torch.cat([image, image], 1), torch.cat([heads, heads], -1)


def test_a_tensor_joined_with_empty_tensors_alone_has_the_strides_of_eager(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    example = torch.randn(2, 7, 3, 4), image
    program = torch.export.export(Concatenations(), example, dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO}, None))
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    assert not lowered.reasons["forward"]
    model = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for x in (example[0], torch.randn(3, 5, 3, 4)):
        for result, expected in zip(model(x, image), Concatenations()(x, image), strict=True):
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()
