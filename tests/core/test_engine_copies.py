"""What the engines share: call maps, memory orders, and debug handles of which none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph

from hatch_lower.backends.call_map import CallMap, call_facts, facts_read, inverse, read_call_map
from hatch_lower.backends.instructions import instruction_handles
from hatch_lower.backends.partition_copy import memory_order
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.arrays import find_arrays
from hatch_lower.runtime.delegates import DelegateBlob

pytestmark = pytest.mark.torch


def test_a_call_map_selects_inputs_and_makes_outputs() -> None:
    outputs = [
        1,
        {"result": 0, "permute": [1, 0]},
        {"result": 0, "order": [1, 0]},
        {"result": 2, "number": "int"},
        {"input": 0},
        {"literal": None},
    ]
    call = read_call_map(call_facts(3, [2, 1], outputs))
    assert (call.given, call.results, call.passes_all, call.returns_all) == (3, 3, False, False)
    assert call.select(["a", "b", "c"]) == ["c", "b"]
    first, second = torch.arange(6.0).view(2, 3), torch.ones(1)
    made = call.arrange([7, 8, 9], [first, second, torch.tensor(5)])
    assert made[0] is second
    assert made[1].data_ptr() == first.data_ptr()
    assert torch.equal(made[1], first.t())
    assert torch.equal(made[2], first)
    assert made[2].stride() == (1, 2)
    assert made[3:] == [5, 7, None]


def test_a_call_map_that_changes_nothing_hands_through() -> None:
    call = CallMap(2, [0, 1], [0, 1], find_arrays("torch"))
    inputs, results = [torch.ones(1), torch.ones(1)], [torch.ones(1), torch.ones(1)]
    assert call.select(inputs) is inputs
    assert call.arrange(inputs, results) is results


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (call_facts(1, [1], [0]), "inputs [1] of 1"),
        (call_facts(1, [-1], [0]), "inputs [-1] of 1"),
        (call_facts(1, [0], [1]), "outputs [1]"),
        (call_facts(1, [0], [True]), "outputs [True]"),
        (call_facts(1, [0], ["tensor"]), "outputs ['tensor']"),
        (call_facts(1, [0], [{"input": 1}]), "outputs [{'input': 1}]"),
        (call_facts(1, [0], [{"result": 0, "permute": [0, 2]}]), "outputs [{'result': 0, 'permute': [0, 2]}]"),
        (call_facts(1, [0], [{"result": 0, "number": "str"}]), "outputs [{'result': 0, 'number': 'str'}]"),
        (call_facts(1, [0], [{}]), "outputs [{}]"),
        (call_facts(1, [0], [[0]]), "TypeError: unhashable type: 'list'"),
        ({"inputs": 1, "passed": [0]}, "KeyError: 'outputs'"),
        ({"inputs": "x", "passed": [0], "outputs": []}, "ValueError: invalid literal for int() with base 10: 'x'"),
    ],
)
def test_damaged_facts_are_refused(facts: dict[str, Any], found: str) -> None:
    message = "the plan does not describe a partition of the backend `demo`"
    with (
        pytest.raises(ProgramError, match=message) as caught,
        facts_read(DelegateBlob(Path("blob"), facts), "demo") as given,
    ):
        read_call_map(given)
    assert caught.value.found == found


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2, 3),
        torch.ones(2, 3).t(),
        torch.ones(2, 3, 4).permute(2, 0, 1),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(4, 6)[:, ::2],
        torch.ones(4, 6).t()[::2],
        torch.ones(3).expand(2, 3),
        torch.ones(3, 1, 2).transpose(0, 1),
        torch.ones(1, 3, 1),
        torch.ones(0, 3).t(),
        torch.ones(()),
    ],
)
def test_a_result_in_memory_order_lies_as_a_clone_of_the_output(value: Tensor) -> None:
    order = memory_order(value)
    dense = value.clone()
    made = dense.contiguous() if order is None else dense.permute(order).contiguous().permute(inverse(order))
    sizes = [dim for dim, size in enumerate(dense.shape) if size > 1]
    assert torch.equal(made, dense)
    if dense.numel():
        assert [made.stride(dim) for dim in sizes] == [dense.stride(dim) for dim in sizes]


def test_what_is_no_tensor_has_no_memory_order() -> None:
    assert memory_order(3) is None


def test_an_operation_without_instruction_counts_to_its_neighbours() -> None:
    graph = Graph()
    view = graph.call_function(torch.relu, (graph.placeholder("x"),))
    product = graph.call_function(torch.neg, (view,))
    last = graph.call_function(torch.abs, (product,))
    graph.call_function(torch.sin, (graph.placeholder("y"),))
    numbers = {node: number for number, node in enumerate(node for node in graph.nodes if node.op == "call_function")}
    assert numbers[last] == 2
    found = instruction_handles(numbers, [11, 12, 13, 14], {"kernel": [1], "idle": []}, "nothing")
    assert found == {"kernel": (11, 12, 13), "nothing": (14,)}
