"""Inputs that benchmarks call methods with lie in memory as the example inputs did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from support.plans import BATCH, method, plan_of, plan_value, tensor_input, v

from hatch_lower.cli.measure.opened import input_values

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.torch


def value_of(entry: dict[str, Any], packaged: Tensor | None = None, **wanted: int) -> Tensor:
    """Return the value of the one input of a method."""
    from torch import Tensor

    plan = plan_of(plan_value(forward=method([entry], [], v(0), symbols=BATCH)))
    tensors = {} if packaged is None else {"forward/input/0": packaged}
    (value,) = input_values("forward", plan.methods["forward"], tensors, wanted)
    assert isinstance(value, Tensor)
    return value


@pytest.mark.parametrize("stride", [[4, 1], [1, 3], [0, 1], [1, 0], [0, 0], [8, 2], [1, 1]])
def test_an_example_keeps_its_values_and_strides(stride: Sequence[int]) -> None:
    import torch

    example = torch.arange(23.0).as_strided((3, 4), stride)
    value = value_of(tensor_input(3, 4, stride=stride), example.contiguous())
    assert value.stride() == tuple(stride)
    assert torch.equal(value, example)


def test_a_scalar_and_an_empty_example_are_kept() -> None:
    import torch

    assert value_of(tensor_input(), torch.tensor(3.0)).item() == 3
    assert value_of(tensor_input(0, 4, stride=[0, 1]), torch.empty(0, 4)).shape == (0, 4)


def test_an_expanded_example_is_expanded_at_another_size() -> None:
    import torch

    value = value_of(tensor_input("s0", 4, stride=[0, 1]), torch.ones(1, 4).expand(3, 4).contiguous(), batch=5)
    assert (value.shape, value.stride()) == ((5, 4), (0, 1))
    assert torch.equal(value[0], value[4])
    assert len(set(value.flatten().tolist())) == 4
