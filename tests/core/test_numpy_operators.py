"""Every operator that a plan may call on NumPy, beside torch's own: values, layout, shared memory, what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hatch_lower.format.arguments import Special
from hatch_lower.format.graph import OpCall
from hatch_lower.runtime.numpy_operators import NUMPY_OPERATORS, RESULTS, runs_on_numpy

pytestmark = pytest.mark.torch

CONTIGUOUS = Special("memory_format", "contiguous_format")
LAST = Special("memory_format", "channels_last")
PRESERVED = Special("memory_format", "preserve_format")
Case = tuple[tuple[Any, ...], dict[str, Any]]


def tensors() -> Iterator[Tensor]:
    """Yield tensors of every kind of layout: dense, permuted, with gaps, with overlaps, empty, of no dimensions."""
    whole = torch.arange(120.0)
    yield from (whole[7], whole[:1], whole[:0], whole[:6], whole[1:8:3])
    yield from (whole[:6].view(2, 3), whole[:6].view(2, 3).t(), whole[:12].view(3, 4)[:, 1:3], whole[:3].expand(2, 3))
    yield from (whole[:0].view(0, 3), whole[:0].view(2, 0), whole[:2].view(2, 1).expand(2, 3), whole[:4].view(1, 4))
    block = whole[:24].view(2, 3, 4)
    yield from (block.permute(order) for order in itertools.permutations(range(3)))
    yield from (block[:, ::2], block[:, 1:2], block[..., :3].transpose(0, 2), whole[:4].view(1, 4, 1), block[:, :, 1])
    yield from (whole.view(2, 3, 4, 5), whole.view(2, 3, 4, 5).to(memory_format=torch.channels_last))
    yield from (whole.as_strided((2, 1, 3), (3, 50, 1)), whole.as_strided((3, 3), (1, 1)), whole[3].expand(2, 1, 2))


DIMS = ((-3,), (-2,), (-1,), (0,), (1,), (2,), (4,))
SIZES = ([-1], [6], [2, 3], [3, 2], [-1, 3], [1, 6, 1], [2, -1, 1], [], [0, -1], [0, 3], [24], [6, 4], [2, 12], [-2, 3])
SIZES = (*SIZES, [8, 3], [4, -1], [-1, -1], [2, 3, 4, 5], [6, 20], [0])
SLICES = (
    (0, 1, 2),
    (0, -2, 9223372036854775807),
    (1, None, None, 2),
    (-1, 2, 1),
    (0, -99, 99),
    (1, 5, 9),
    (0, 0, 5, 0),
)
CASES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "alias": ((),),
    "detach": ((),),
    "expand": (
        *(([2, 3],), ([-1, 3],), ([2, -1, -1],), ([4, 2, 3],), ([-1, 2, 3],), ([3, 0],), ([],), ([5],), ([2, 3, 4],)),
        *(([1, 1, 7, 4, 1],), ([2, 7, 3],), ([-2, 3],)),
    ),
    "permute": (([],), ([0],), ([1, 0],), ([-1, 0],), ([2, 0, 1],), ([0, 0],), ([0, -1, 1],), ([3, 0, 2, 1],)),
    "select": tuple((dim, index) for dim in (-2, 0, 1, 3) for index in (-3, -1, 0, 1, 5)),
    "slice": ((), *SLICES, (3, 0, 1), (2, -3, -1)),
    "split": ((1,), (2,), (2, 1), (5, -1), (0,), (-1,), (2, 4)),
    "split_with_sizes": (([1, 1],), ([2, 1], 1), ([0, 2],), ([],), ([-1, 3],), ([3, 1], -1), ([2], 5)),
    "squeeze": ((),),
    "squeeze.dim": DIMS,
    "squeeze.dims": (([],), ([0],), ([0, -1],), ([0, 0],), ([1, 2],), ([-3, 2],), ([-1, 1],)),
    "t": ((),),
    "transpose": tuple(itertools.product((-3, -1, 0, 1), (-2, 0, 2))),
    "unbind": ((), (1,), (-1,), (3,)),
    "unsqueeze": ((-4,), (-1,), (0,), (1,), (2,), (3,), (5,)),
    "view": tuple((size,) for size in SIZES),
    "_unsafe_view": tuple((size,) for size in SIZES),
    "reshape": tuple((size,) for size in SIZES),
    "sym_size": DIMS,
    "sym_stride": DIMS,
    "sym_numel": ((),),
    "_local_scalar_dense": ((),),
    "_assert_async": ((),),
    "_assert_async.msg": (("an assertion",),),
    "lift_fresh": ((),),
    "lift_fresh_copy": ((),),
}
KEYWORDS: dict[str, tuple[dict[str, Special], ...]] = {
    "clone": ({}, {"memory_format": PRESERVED}, {"memory_format": CONTIGUOUS}, {"memory_format": LAST}),
}
OWN_TESTS = {*RESULTS, "aten.gather.default"}
OF_TENSORS = sorted(
    name for name in NUMPY_OPERATORS if "_scalar." not in name and "constrain" not in name and name not in OWN_TESTS
)


def cases_of(name: str) -> list[Case]:
    _, packet, overload = name.split(".")
    if packet in KEYWORDS:
        return [((), keywords) for keywords in KEYWORDS[packet]]
    packet = packet.removesuffix("_copy") if packet != "lift_fresh_copy" else packet
    args = CASES[f"{packet}.{overload}"] if f"{packet}.{overload}" in CASES else CASES[packet]
    return [(each, {}) for each in args]


def of_torch(name: str, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _, packet, overload = name.split(".")
    options = {key: getattr(torch, value.name) for key, value in kwargs.items()}
    return getattr(getattr(torch.ops.aten, packet), overload)(tensor, *args, **options)


def described(found: Any, given: Any) -> object:
    """Return what is compared of a result: values, sizes, strides as far as they mean something, shared memory."""
    if isinstance(found, list | tuple):
        return [described(each, given) for each in found]
    if isinstance(found, Tensor):
        strides = [step for step, size in zip(found.stride(), found.shape, strict=True) if size != 1 and found.numel()]
        shares = found.untyped_storage().data_ptr() == given.untyped_storage().data_ptr() and found.numel() > 0
        return tuple(found.shape), strides, found.tolist(), shares
    if isinstance(found, np.ndarray):
        steps = [step // found.itemsize for step in found.strides]
        strides = [step for step, size in zip(steps, found.shape, strict=True) if size != 1 and found.size]
        return found.shape, strides, found.tolist(), np.may_share_memory(found, given) and found.size > 0
    return found


def array_of(tensor: Tensor) -> Any:
    steps = [step * tensor.itemsize for step in tensor.stride()]
    base = torch.empty(0).set_(tensor.untyped_storage(), 0, (tensor.untyped_storage().nbytes() // 4,), (1,)).numpy()
    return np.lib.stride_tricks.as_strided(base[tensor.storage_offset() :], tensor.shape, steps)


@pytest.mark.parametrize("name", OF_TENSORS)
def test_an_operator_means_on_numpy_what_torch_means(name: str) -> None:
    entry = NUMPY_OPERATORS[name]
    tried = refused = shared = 0
    for tensor in tensors():
        if "_local_scalar" in name and tensor.numel() != 1:
            continue  # torch reads the first element, or what is no element
        array = array_of(tensor)
        for args, kwargs in cases_of(name):
            where = f"{name} of {list(tensor.shape)}, strides {tensor.stride()}: {args}, {kwargs}"
            try:
                expected = of_torch(name, tensor, args, kwargs)
            except (RuntimeError, IndexError):
                with pytest.raises((RuntimeError, IndexError, ValueError)):
                    pytest.fail(f"{where} gives {entry.function(array, *args, **kwargs)!r}")
                refused += 1
                continue
            found = entry.function(array, *args, **kwargs)
            assert described(found, array) == described(expected, tensor), where
            parts = found if isinstance(found, list) else [found]
            shared += any(isinstance(part, np.ndarray) and np.may_share_memory(part, array) for part in parts)
            tried += 1
    assert tried
    assert entry.may_alias == (shared > 0)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("wanted", sorted(RESULTS["aten._to_copy.default"]))
def test_numbers_are_converted_as_torch_converts_them(dtype: str, wanted: str) -> None:
    convert = NUMPY_OPERATORS["aten._to_copy.default"].function
    kind = getattr(torch, dtype)
    limits = torch.iinfo(kind) if not (kind.is_floating_point or kind == torch.bool) else None
    if limits is None:
        numbers = [0.1, -0.0, float("nan"), float("-inf"), 65504.0, 3e-8, 1 / 3, 1e300, 1 + 2.0**-24]
    else:
        numbers = [0, 1, limits.min, limits.max, limits.max - 1, min(limits.max, 2**24 + 1), min(limits.max, 2**53 + 1)]
    for tensor in (torch.tensor(numbers, dtype=kind), *(each.to(kind) for each in tensors())):
        expected = torch.ops.aten._to_copy.default(tensor, dtype=getattr(torch, wanted))
        found = convert(tensor.numpy(), dtype=np.dtype(wanted))
        steps = [
            step * expected.itemsize for step, size in zip(expected.stride(), expected.shape, strict=True) if size > 1
        ]
        assert found.dtype == np.dtype(wanted)
        np.testing.assert_array_equal(found, expected.numpy(), strict=True)
        if found.size:
            assert [step for step, size in zip(found.strides, found.shape, strict=True) if size > 1] == steps
        assert not np.may_share_memory(found, tensor.numpy())


@pytest.mark.parametrize(
    ("dim", "index"),
    [
        *((0, [[0, 2, 1, 1]]), (0, [[0, 2], [1, 1]]), (-1, [[3, 3, 0, 1, 2]]), (1, [[0], [2], [1]])),
        *((1, [[], [], []]), (1, [[-1]]), (1, [[4]]), (0, [[3]]), (0, [0, 1]), (2, [[0]]), (0, [[0] * 5])),
        *((1, [[0]] * 4), (0, [[0.0]]), (0, [[True]])),
    ],
)
def test_an_index_reads_on_numpy_what_it_reads_on_torch(dim: int, index: list[Any]) -> None:
    places = torch.tensor(index) if index != [[], [], []] else torch.zeros(3, 0, dtype=torch.int64)
    read = NUMPY_OPERATORS["aten.gather.default"].function
    for tensor in (torch.arange(12.0).view(3, 4), torch.arange(12.0).view(4, 3).t(), torch.arange(4.0).expand(3, 4)):
        try:
            expected = torch.ops.aten.gather.default(tensor, dim, places)
        except (RuntimeError, IndexError):
            with pytest.raises((RuntimeError, IndexError)):
                read(tensor.numpy(), dim, places.numpy())
            continue
        found = read(tensor.numpy(), dim, places.numpy())
        np.testing.assert_array_equal(found, expected.numpy(), strict=True)
        assert found.flags.c_contiguous
        assert expected.is_contiguous()
    number = torch.tensor(3.0)
    expected = torch.ops.aten.gather.default(number, 0, torch.tensor(0))
    np.testing.assert_array_equal(read(number.numpy(), 0, np.array(0)), expected.numpy(), strict=True)


@pytest.mark.parametrize("dtype", sorted(RESULTS["aten.full.default"]))
@pytest.mark.parametrize("value", [0, 1, True, 2.5, -3])
@pytest.mark.parametrize("size", [[], [0, 3], [2, 1, 3]])
def test_arrays_are_filled_as_torch_fills_tensors(size: list[int], value: float, dtype: str) -> None:
    expected = torch.ops.aten.full.default(size, value, dtype=getattr(torch, dtype))
    found = NUMPY_OPERATORS["aten.full.default"].function(size, value, dtype=np.dtype(dtype))
    np.testing.assert_array_equal(found, expected.numpy(), strict=True)


@pytest.mark.parametrize(
    ("op", "kwargs", "runs"),
    [
        ("aten._to_copy.default", {"dtype": ("dtype", "float32")}, True),
        ("aten._to_copy.default", {"dtype": ("dtype", "float32"), "layout": ("layout", "strided")}, True),
        ("aten._to_copy.default", {"dtype": ("dtype", "int64")}, False),
        ("aten._to_copy.default", {"dtype": ("dtype", "float16")}, False),
        ("aten._to_copy.default", {"memory_format": ("memory_format", "contiguous_format")}, False),
        ("aten.full.default", {"dtype": ("dtype", "bfloat16")}, False),
        ("aten.full.default", {}, False),
        ("aten.full.default", {"dtype": ("dtype", "int64"), "layout": ("layout", "sparse_coo")}, False),
        ("aten.clone.default", {}, True),
        ("aten.add.Tensor", {}, False),
    ],
)
def test_numpy_makes_the_dtypes_only_that_torch_rounds_alike(
    op: str, kwargs: dict[str, tuple[str, str]], runs: bool
) -> None:
    assert runs_on_numpy(OpCall(op, (), {name: Special(*each) for name, each in kwargs.items()}, 0)) == runs


@pytest.mark.parametrize("name", ["aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default"])
@pytest.mark.parametrize("bounds", [{}, {"min": 3}, {"max": 5}, {"min": 3, "max": 5}])
def test_a_size_out_of_its_range_is_refused_as_torch_refuses_it(name: str, bounds: dict[str, int]) -> None:
    _, packet, overload = name.split(".")
    of_torch = getattr(getattr(torch.ops.aten, packet), overload)
    for size in (-1, 0, 2, 3, 5, 6):
        found = [is_refused(function, size, bounds) for function in (of_torch, NUMPY_OPERATORS[name].function)]
        assert found[0] == found[1], size


def is_refused(function: Callable[..., None], size: int, bounds: dict[str, int]) -> bool:
    try:
        function(size, **bounds)
    except RuntimeError:
        return True
    return False


def test_an_assertion_says_what_it_asserts() -> None:
    check = NUMPY_OPERATORS["aten._assert_scalar.default"].function
    assert check(True, "the length is even") is None
    with pytest.raises(RuntimeError, match="the length is even"):
        check(0, "the length is even")


def test_the_names_are_those_of_torchs_overloads() -> None:
    for name, entry in NUMPY_OPERATORS.items():
        _, packet, overload = name.split(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        aliases = any(result.alias_info is not None for result in schema.returns)
        # `_unsafe_view` promises torch that its argument dies, and shares memory all the same
        assert entry.may_alias >= aliases, name
