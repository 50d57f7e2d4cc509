"""Metrics of outputs: what each says, over pieces and calls, and of numbers that are not finite."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

from hatch_lower.format.record import OutputMetrics, worst
from hatch_lower.runtime import numbers as module
from hatch_lower.runtime.numbers import Measured

pytestmark = pytest.mark.torch


def measured(*pairs: tuple[torch.Tensor, torch.Tensor]) -> OutputMetrics:
    """Return the metrics of one output over some calls."""
    both = Measured()
    for expected, given in pairs:
        both.add(expected, given)
    return both.metrics()


def test_metrics_say_how_far_an_output_is_from_eager() -> None:
    expected = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    given = torch.tensor([[3.0, 4.5], [0.25, 0.0]])
    found = measured((expected, given))
    assert (found.largest_error, found.largest_relative_error, found.argmax) == (1.0, 1.0, 0.5)
    assert found.snr == pytest.approx(10 * math.log10(26 / (0.25 + 0.0625 + 1)))
    assert found.cosine == pytest.approx(27 / math.sqrt(26 * (9 + 20.25 + 0.0625)))
    assert found.text() == "largest difference 1.0e+00, SNR 13 dB, cosine 0.978026, argmax 50 %"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64])
def test_arrays_of_numpy_have_the_same_metrics(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    one = torch.randn(6, 5).to(dtype)
    other = one * (1 + 1e-2)
    one[0, 0] = other[0, 0] = math.nan
    arrays: tuple[Any, Any] = (one.numpy(), other.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measured(arrays)
    for name in ("largest_error", "largest_relative_error", "snr", "cosine", "argmax"):
        assert getattr(found, name) == pytest.approx(getattr(measured((one, other)), name)), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.float64])
def test_pieces_and_calls_come_to_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    pairs = [(torch.randn(6, 5).to(dtype), torch.randn(6, 5).to(dtype)) for _ in range(2)]
    whole = measured((torch.cat([one for one, _ in pairs]), torch.cat([other for _, other in pairs])))
    monkeypatch.setattr(module, "PIECE", 10)
    parts = measured(*pairs)
    for name in ("largest_error", "largest_relative_error", "snr", "cosine", "argmax"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name)), name
    assert (whole.argmax is None) == dtype.is_complex


def test_an_output_that_is_equal_has_no_noise() -> None:
    ones = torch.ones(3)
    assert measured((ones, ones)) == OutputMetrics(0.0, 0.0, None, pytest.approx(1.0), 1.0)
    assert measured((ones, ones)).text() == "largest difference 0.0e+00, argmax 100 %"
    tiny, huge = torch.full((2,), 1e-200, dtype=torch.float64), torch.full((2,), 1e200, dtype=torch.float64)
    for one, other in ((tiny, tiny * 2), (huge, huge * 2)):  # their squares are 0 and infinite
        assert (measured((one, other)).snr, measured((one, other)).cosine) == (None, None)
    zeros = torch.zeros(3, 1)
    assert measured((zeros, zeros)) == OutputMetrics(0.0, 0.0, None, None, None)
    assert measured((torch.zeros(0), torch.zeros(0))) == OutputMetrics(0.0, 0.0, None, None, None)


def test_numbers_that_are_not_finite_on_both_sides_are_left_out() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, 2.0])
    assert measured((odd, odd)) == OutputMetrics(0.0, 0.0, None, 1.0, 1.0)
    for value in (math.nan, math.inf):
        found = measured((torch.tensor([1.0, 2.0]), torch.tensor([1.0, value])))
        assert (found.largest_error, found.largest_relative_error) == (math.inf, math.inf)
        assert found.snr is None


def test_the_worst_of_several_outputs_is_told() -> None:
    one, other = OutputMetrics(0.1, 0.3, 20.0, 0.9, None), OutputMetrics(0.2, 0.1, None, 1.0, 0.5)
    assert worst([one, other]) == OutputMetrics(0.2, 0.3, 20.0, 0.9, 0.5)
    assert worst([]) is None
