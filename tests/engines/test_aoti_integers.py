"""Integers in inductor's code: `aoti` gives those of eager, where inductor takes numbers for places in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.export import Dim

import hatch_lower
from hatch_lower.backends.aoti.compile import AotiBackend
from hatch_lower.errors import LowerError
from hatch_lower.exir.capture._config import EdgeCompileConfig
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.torch_private.inductor_numbers import LONGEST, is_exact, limit_to_dtype
from hatch_lower.runtime.torch_private.older import is_older
from hatch_lower.runtime.torch_private.symbols import ValueRanges, int_oo

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]


class Places(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        places = torch.arange(x.shape[0])
        narrow = (places.to(torch.int8) * 50).to(torch.int64), (places.to(torch.uint8) - 5).to(torch.int64)
        wide = places * 600_000_000, (places * 2**61) // 7, places * 2**61 > places
        rounded = torch.full_like(places, 2**24 + 1).float().double(), (places + 2**24 + 1).float().double()
        return *narrow, *wide, *rounded, torch.fmod(places - 5, 3), places.bool().to(torch.int64), x[(places * 97) % 3]


class Compared(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x + 1 > x, (x + 1) * x, -x < 0


def test_numbers_computed_from_places_wrap_around_as_their_dtypes_say(tmp_path: Path) -> None:
    program = torch.export.export(Places(), (torch.zeros(3),), dynamic_shapes={"x": {0: Dim("n", min=3, max=512)}})
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    assert not lowered.reasons["forward"]
    loaded = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for count in (3, 8, 65, 300):
        x = torch.arange(count, dtype=torch.float32)
        for place, (result, expected) in enumerate(zip(loaded(x), Places()(x), strict=True)):
            assert torch.equal(result, expected), (count, place)


def test_a_comparison_behind_a_sum_that_wraps_around_is_no_constant(tmp_path: Path) -> None:
    x = torch.tensor([2**31 - 1, 5, -(2**31), 0, -1, 46341, 65536], dtype=torch.int32)
    program = torch.export.export(Compared(), (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(x)
    assert all(map(torch.equal, results, Compared()(x)))


class Reduced(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        results: list[Tensor] = []
        for numbers in (x, y, z, z[:3], x[:40].view(5, 8)):
            narrow = numbers.dtype
            small, large = numbers.clamp(max=0), numbers.clamp(min=5)
            results += numbers.sum(dtype=narrow), (numbers + 1).sum(dtype=narrow).to(torch.int64) + 1
            results += numbers.sum(0, dtype=narrow), numbers.prod(dtype=narrow), numbers.cumsum(0, dtype=narrow)
            results += small.amax(), large.amin(), small.argmax(), large.argmin(), *large.min(0), *large.aminmax()
        return tuple(results)


def test_reductions_of_narrow_integers_take_no_element_more(tmp_path: Path) -> None:
    x = torch.arange(-128, 128).to(torch.int8)[torch.arange(41) * 97 % 256] | 1
    y, z = torch.arange(17, 222, 5).to(torch.uint8), torch.arange(-(2**15), 2**15, 1601).to(torch.int16) | 1
    program = torch.export.export(Reduced(), (x, y, z))
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    assert not lowered.reasons["forward"]
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(x, y, z)
    for place, (result, expected) in enumerate(zip(results, Reduced()(x, y, z), strict=True)):
        assert torch.equal(result, expected), place
        assert result.dtype is expected.dtype, place


class Looked(nn.Module):
    def forward(self, table: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        places = torch.arange(x.shape[0])
        narrow = (places * 100).to(torch.int8)
        written = (
            table.index_put((narrow.long(),), torch.ones(1)),
            table.scatter_add(0, (narrow & 127).long(), x.float()),
        )
        taken = table[narrow.long()], table[(places * 2).to(torch.uint8).long()], table[(narrow * 2).abs().long()]
        far = table[places * 2**61 >> 56], table[(places.to(torch.int32) * 600_000_000 >> 24).long()]
        return *written, *taken, *far, table[x.abs().long()], table[(x.abs() - 1).long()]


def test_indices_that_wrap_around_are_counted_from_the_end_and_checked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dynamic = {"table": {0: Dim("m", min=3, max=300)}, "x": {0: Dim("n", min=3, max=300)}}
    table, x = torch.arange(300.0), torch.tensor([5, -128, 127, 1], dtype=torch.int8).repeat(75)
    program = torch.export.export(Looked(), (table[:256], x[:9]), dynamic_shapes=dynamic)
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    loaded = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for count in (3, 8, 127, 130, 256, 300):
        results, expected = loaded(table[:256], x[:count]), Looked()(table[:256], x[:count])
        assert [torch.equal(*pair) for pair in zip(results, expected, strict=True)] == [True] * len(expected), count
    for size in (20, 100, 127):
        with pytest.raises(IndexError):
            Looked()(table[:size], x[:8])
        with pytest.raises(LowerError, match="index"):
            loaded(table[:size], x[:8])
    assert capfd.readouterr().err == ""


class Scattered(nn.Module):
    def forward(self, x: Tensor, places: Tensor, more: Tensor) -> tuple[Tensor, ...]:
        products = x.scatter_reduce(0, places, x, "prod"), x.scatter_reduce(0, places, x, "amax")
        return *products, x.scatter(0, more, 1.5, reduce="add"), x.scatter(0, more, 2, reduce="multiply") + 1


def test_scatters_that_reduce_take_any_number_of_places_and_check_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    x, more = torch.rand(3, 2), torch.tensor([[0, 2], [1, 1], [2, 0], [1, 0], [1, 2]])
    places = more[:3].clone()
    program = torch.export.export(Scattered(), (x, places, more))
    config = EdgeCompileConfig(_check_ir_validity=False)
    manager = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})], compile_config=config)
    loaded = hatch_lower.load(save_program(manager.to_executorch(), tmp_path / "out"))
    torch.testing.assert_close(loaded(x, places, more), Scattered()(x, places, more))
    with pytest.raises(RuntimeError, match="out of bounds"):
        Scattered()(x, places + 1, more)
    # the reason in libtorch's function is not in the error of an older torch, which prints the reason
    with pytest.raises(LowerError, match="scatter_reduce" if is_older() else "index"):
        loaded(x, places + 1, more)
    assert is_older() or capfd.readouterr().err == ""


class Subtracted(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.addmm(x, x, x, beta=-1, alpha=2), torch.baddbmm(x[None], x[None], x[None], alpha=-1)


def test_products_of_uint8_with_negative_factors_are_left(tmp_path: Path) -> None:
    x = torch.arange(9, dtype=torch.uint8).reshape(3, 3)
    partitioner = [AotiBackend.partitioner({})]
    lowered = to_edge_transform_and_lower(torch.export.export(Subtracted(), (x,)), partitioner=partitioner)
    program = lowered.to_executorch()
    assert "negative factors of `aten.addmm.default`" in str(program.reasons)
    torch.testing.assert_close(hatch_lower.load(save_program(program, tmp_path / "out"))(x), Subtracted()(x))


@pytest.mark.parametrize(
    ("lower", "upper", "dtype", "rounded", "expected"),
    [
        (0, 127, torch.int8, False, (0, 127)),
        (0, 128, torch.int8, False, (-128, 127)),
        (-1, 5, torch.uint8, False, (0, 255)),
        (0, int_oo, torch.int8, False, (-128, 127)),
        (0, 2**63, torch.int64, False, (-(2**63), 2**63 - 1)),
        (0, 5, torch.int32, True, (0, 2**31 - 1)),
        (-1, 5, torch.int32, True, (-(2**31), 2**31 - 1)),
    ],
)
def test_bounds_are_those_of_a_dtype_where_a_number_may_wrap_around(
    lower: int, upper: int, dtype: torch.dtype, rounded: bool, expected: tuple[int, int]
) -> None:
    bounds = limit_to_dtype(ValueRanges(lower, upper), dtype, rounded=rounded)
    assert (bounds.lower, bounds.upper) == expected


@pytest.mark.parametrize(
    ("factor", "dtype", "size", "exact"),
    [
        (600_000_000, torch.int64, int_oo, False),
        (2**15, torch.int64, int_oo, True),
        (600_000_000, torch.int32, 4, True),
        (600_000_000, torch.int32, 5, False),
        (1, torch.int8, 128, True),
        (1, torch.int8, 129, False),
        (-1, torch.uint8, 2, False),
        (1, torch.bool, 2, True),
        (1, torch.bool, 3, False),
        (1, torch.float32, 2**24 + 1, True),
        (1, torch.float32, 2**24 + 2, False),
        (1, torch.float16, 2**11 + 2, False),
    ],
)
def test_a_formula_is_exact_where_its_dtype_has_all_numbers(
    factor: int, dtype: torch.dtype, size: int, exact: bool
) -> None:
    place = sympy.Symbol("x0", integer=True, nonnegative=True)
    assert is_exact(factor * place, dtype, {place: ValueRanges(0, size - 1)}) is exact
    assert LONGEST * 2**15 < 2**63


@pytest.mark.parametrize(
    ("number", "dtype", "exact"),
    [
        (2**24 + 1, torch.float32, False),
        (0.1, torch.float32, False),
        (0.1, torch.float64, True),
        (300, torch.uint8, False),
        (torch.nan, torch.float32, True),
        (torch.inf, torch.float32, True),
        (True, torch.bool, True),
    ],
)
def test_a_constant_is_exact_where_its_dtype_has_it(number: float, dtype: torch.dtype, exact: bool) -> None:
    assert is_exact(number, dtype, {}) is exact
    assert dtype is torch.bool or is_exact(sympy.sympify(number), dtype, {}) is exact


def test_views_as_another_dtype_and_integer_powers_are_left() -> None:
    def forward(self: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        zero = torch.zeros(4, dtype=torch.int32)
        bits = (x + 1).view(torch.int32)
        return bits.diagonal_scatter(zero).view(torch.float32), 2 ** bits.clamp(0, 5), 2**x

    net = type("Net", (nn.Module,), {"forward": forward})()
    program = to_edge(torch.export.export(net, (torch.randn(4, 4),)))
    reasons = AotiBackend.partitioner({}).partition(program).reasons
    told = sorted(reason for reason in set(reasons.values()) if "inductor" in reason)
    assert told == [
        "inductor cannot write into views of the results of `aten.view.dtype`",
        "inductor's `aten.pow.Scalar` gives floating-point numbers for integers",
    ]
