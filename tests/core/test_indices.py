"""The error of a call with an index out of range: argument, index and rows in the same words, for every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.plans import Noting, call, delegate_entry, executor_of, method, op, plan_value, python, tensor_input, v

from hatch_lower.errors import CallError, IndexRangeError
from hatch_lower.runtime.indices import check_indices

OF_ONNXRUNTIME = "indices element out of data bounds, idx={} must be within the inclusive range [-{},{}]"
PAIR = [tensor_input(2, 3, dtype="int64"), tensor_input(2, 3, dtype="int64")]


def failing(error: Exception, names: int = 2) -> Any:
    """Return a method of two arguments of integers, whose delegate raises an error."""

    class Failing(Noting):
        arrays = "numpy"

        def run(self, inputs: list[Any]) -> Any:
            raise error

    copied = [] if names == 2 else [op("aten.clone.default", v(1), out=5)]
    given = [v(0), v(1) if names == 2 else v(5)]
    body = [*copied, call(0, given, PAIR, 2), python("getitem", v(2), 0, out=3)]
    value = plan_value(forward=method(PAIR, body, v(3)), delegates=[delegate_entry("failing")])
    return executor_of(value, delegates={"failing": Failing}, arrays="numpy").methods["forward"]


def arrays(first: int = 0, second: int = 0) -> list[Any]:
    """Return two arguments of zeros, each with a number at [1, 2]."""
    found = [np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int64)]
    found[0][1, 2], found[1][1, 2] = first, second
    return found


@pytest.mark.parametrize(
    ("error", "given", "where", "found"),
    [
        (RuntimeError(OF_ONNXRUNTIME.format(64, 64, 63)), (64, 1), "`x0` of", "64 at [1, 2], where a table has 64"),
        (RuntimeError(OF_ONNXRUNTIME.format(2, 2, 1)), (40, 2), "`x1` of", "2 at [1, 2], where a table has 2"),
        # the program of the engine turns negative indices into the largest
        (
            RuntimeError(OF_ONNXRUNTIME.format(2**63 - 1, 2, 1)),
            (40, -1),
            "`x1` of",
            "-1 at [1, 2], where a table has 2",
        ),
        (
            RuntimeError("index out of bounds: 0 <= tmp2 < 64L"),
            (-1, 1),
            "`x0` of",
            "-1 at [1, 2], where a table has 64",
        ),
        (IndexError("index 7 is out of bounds for dimension 0 with size 5"), (9, 7), "`x1` of", "7 at [1, 2], where a"),
        # inductor does not tell the index: either may be wrong
        (
            RuntimeError("index out of bounds: 0 <= tmp2 < 2L"),
            (40, -1),
            "",
            "40 at [1, 2] of `x0` or -1 at [1, 2] of `x1`, where a table has 2",
        ),
    ],
)
def test_a_bad_index_is_told_with_its_argument(
    error: Exception, given: tuple[int, int], where: str, found: str
) -> None:
    with pytest.raises(CallError, match="an index is out of range") as caught:
        failing(error)(*arrays(*given))
    assert caught.value.where == f"{where} method `forward`".strip()
    assert caught.value.found.startswith(found)
    assert caught.value.found.endswith(" rows")
    assert caught.value.hint.startswith("give indices from 0 to ")
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, IndexError)  # as eager's


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(OF_ONNXRUNTIME.format(50, 8, 7)),  # computed by the program
        RuntimeError("index out of bounds: 0 <= tmp2 < 8L"),
        RuntimeError("index out of bounds: 0 <= tmp2 < ks0"),
        IndexError("index out of range in self"),
    ],
)
def test_an_index_that_no_argument_has_is_told_in_the_engines_words(error: Exception) -> None:
    with pytest.raises(CallError, match="the delegate `failing` failed in a call") as caught:
        failing(error)(*arrays(3, 5))
    assert caught.value.found == f"{type(error).__name__}: {error}"
    assert caught.value.hint == "look at the values of the arguments: an index is out of range"


def test_no_argument_is_blamed_for_the_index_of_another_array() -> None:
    error = RuntimeError(OF_ONNXRUNTIME.format(40, 8, 7))
    with pytest.raises(CallError, match="the delegate `failing` failed in a call"):
        failing(error, names=1)(*arrays(3, 40))  # the delegate is given a copy of `x1`


@pytest.mark.parametrize(("least", "wrong"), [(0, -1), (0, 4), (-4, -5), (-4, 2**40)])
def test_indices_are_compared_for_an_engine_that_does_not_notice(least: int, wrong: int) -> None:
    class Checking(Noting):
        arrays = "numpy"

        def run(self, inputs: list[Any]) -> Any:
            check_indices(inputs[1], 1, least, 4)
            return super().run(inputs)

    body = [call(0, [v(0), v(1)], PAIR, 2), python("getitem", v(2), 0, out=3)]
    value = plan_value(forward=method(PAIR, body, v(3)), delegates=[delegate_entry("checking")])
    forward = executor_of(value, delegates={"checking": Checking}, arrays="numpy").methods["forward"]
    assert forward(*arrays(9, 3)).sum() == 9
    assert forward(*arrays(9, least)).sum() == 9
    with pytest.raises(IndexRangeError) as caught:
        forward(*arrays(9, wrong))
    assert str(caught.value) == (
        "an index is out of range\n"
        "  where: `x1` of method `forward`\n"
        f"  found: {wrong} at [1, 2], where a table has 4 rows\n"
        f"  to do: give indices from {least} to 3"
    )


def test_a_gather_of_numpy_names_its_argument() -> None:
    inputs = [tensor_input(2, 4), tensor_input(2, 3, dtype="int64")]
    value = plan_value(forward=method(inputs, [op("aten.gather.default", v(0), 1, v(1), out=2)], v(2)))
    forward = executor_of(value, arrays="numpy").methods["forward"]
    table = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert forward(table, arrays(0, 3)[1])[1, 2] == 7
    for wrong in (4, -1):
        with pytest.raises(IndexRangeError) as caught:
            forward(table, arrays(0, wrong)[1])
        assert caught.value.where == "`x1` of method `forward`"
        assert caught.value.found == f"{wrong} at [1, 2], where a table has 4 rows"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "args", "least"),
    [
        ("aten.embedding.default", [v(0), v(1)], 0),
        ("aten.index_select.default", [v(0), 0, v(1)], 0),
        ("aten.index.Tensor", [v(0), [v(1)]], -4),
    ],
)
def test_an_operator_of_torch_names_its_argument(name: str, args: list[Any], least: int) -> None:
    import torch

    inputs = [tensor_input(4, 2), tensor_input(3, dtype="int64")]
    forward = executor_of(plan_value(forward=method(inputs, [op(name, *args, out=2)], v(2)))).methods["forward"]
    table = torch.arange(8.0).view(4, 2)
    for right in {3, least}:
        assert torch.equal(forward(table, torch.tensor([0, 1, right]))[2], table[right])
    for wrong in (4, least - 1, 2**40, -(2**63)):
        with pytest.raises(IndexRangeError) as caught:
            forward(table, torch.tensor([0, 1, wrong]))
        assert caught.value.where == "`x1` of method `forward`"
        assert caught.value.found == f"{wrong} at [2], where a table has 4 rows"
        assert caught.value.hint == f"give indices from {least} to 3"


@pytest.mark.torch
def test_an_operator_that_fails_otherwise_raises_torchs_error() -> None:
    import torch

    inputs = [tensor_input(4, 2), tensor_input(3, 3, dtype="int64")]
    body = [op("aten.index_select.default", v(0), 0, v(1), out=2)]
    forward = executor_of(plan_value(forward=method(inputs, body, v(2)))).methods["forward"]
    with pytest.raises(IndexError, match="vector"):
        forward(torch.zeros(4, 2), torch.zeros(3, 3, dtype=torch.int64))
