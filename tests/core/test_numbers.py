"""How far apart two arrays may be: NumPy's arrays are compared as torch's tensors are."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hatch_lower.runtime.exchange import array_of
from hatch_lower.runtime.numbers import Tolerance, number_difference, steps_apart, widest, wrong_places

pytestmark = pytest.mark.torch
INFINITE = [1.0, math.inf, -math.inf, math.nan, 0.0, -2.0]
PAIRS = {
    "equal": ([0.0, 1.0, -1.0], [0.0, 1.0, -1.0]),
    "apart": ([0.0, 1.0, -1.0], [1e-3, 1.0, -1.1]),
    "within": ([0.0, 1.0, -1.0], [1e-6, 1.00001, -1.0]),
    "infinite on both sides": (INFINITE, INFINITE),
    "infinite on one side": (INFINITE, [math.inf, 1.0, math.nan, -math.inf, math.nan, 2.0]),
    "infinities of other signs": ([math.inf, -math.inf], [-math.inf, math.inf]),
    "the greatest": ([1.7e308, -1.7e308], [-1.7e308, 1.7e308]),
    "only zeros expected": ([0.0, 0.0], [0.0, 0.5]),
    "one value": (3.0, 3.5),
    "no values": ([], []),
    "a step apart": ([-1.27, 0.0, 0.5, 1.27], [-1.26, 0.0, 0.5, 1.27]),
    "two dimensions": ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 5.0]]),
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64)


@pytest.mark.parametrize(
    "tolerance", [Tolerance(), Tolerance(quantized=True), Tolerance(judged=True)], ids=["plain", "quantized", "judged"]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pair", PAIRS)
def test_numpys_arrays_are_as_far_apart_as_tensors(pair: str, dtype: torch.dtype, tolerance: Tolerance) -> None:
    pytest.importorskip("ml_dtypes")
    same_on_numpy(*(torch.tensor(values, dtype=torch.float64).to(dtype) for values in PAIRS[pair]), tolerance)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64], ids=str)
def test_integers_of_numpy_are_equal_or_not(dtype: torch.dtype) -> None:
    expected, given = torch.tensor([[0, 1, 2]], dtype=dtype), torch.tensor([[1, 1, 3]], dtype=dtype)
    same_on_numpy(expected, given, Tolerance(atol=9))
    same_on_numpy(expected, expected.clone(), Tolerance())
    same_on_numpy(expected[0, 0], given[0, 0], Tolerance())
    same_on_numpy(expected, given, Tolerance(judged=True))


@pytest.mark.parametrize(
    ("given", "agrees"),
    [
        ([1.4, -1.4, 1.0], True),
        ([1.0, -1.0, 0.0], False),  # 0.58 of the root mean square
        ([0.0, 0.0, 0.0], False),
        ([1.0, -1.0, math.nan], False),
        ([1.0, -1.0, math.inf], False),
    ],
)
def test_errors_of_a_judged_method_are_at_most_half_of_its_numbers(given: list[float], agrees: bool) -> None:
    expected = torch.tensor([1.0, -1.0, 1.0])
    difference, _ = number_difference(expected, torch.tensor(given), Tolerance(judged=True))
    assert (not difference) == agrees
    if difference:
        assert "or a root mean square of the errors of 0.5 of that of eager's numbers" in difference


def test_great_numbers_of_a_judged_method_agree_by_share() -> None:
    expected = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert not number_difference(expected, expected * 1.1, Tolerance(judged=True))[0]
    assert number_difference(expected, expected * 1.9, Tolerance(judged=True))[0]


def test_integers_of_a_judged_method_are_the_metrics_to_judge() -> None:
    assert not number_difference(torch.tensor([1, 2]), torch.tensor([2, 2]), Tolerance(judged=True))[0]


def same_on_numpy(expected: torch.Tensor, given: torch.Tensor, tolerance: Tolerance) -> None:
    one, other = array_of(expected), array_of(given)
    assert number_difference(one, other, tolerance) == number_difference(expected, given, tolerance)
    wrong = wrong_places(one, other, tolerance)
    assert np.array_equal(wrong, wrong_places(expected, given, tolerance).numpy())
    if expected.numel() and not expected.dtype.is_complex and expected.is_floating_point():
        assert steps_apart(one, other) == pytest.approx(steps_apart(expected, given))


def test_what_is_compared_is_of_numpy_where_torch_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert number_difference(np.float32([1, 2]), np.float32([1, 3]), Tolerance())[1] == 1.0


def test_a_tensor_on_the_tape_is_compared() -> None:
    values = torch.nn.Parameter(torch.ones(3))
    comparing: Callable[[Any], Any] = widest
    assert not comparing(values).requires_grad
    assert number_difference(values, values + 1, Tolerance())[1] == 1.0
