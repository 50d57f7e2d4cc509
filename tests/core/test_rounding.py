"""The roundings that each output of a method went through, and the tolerance that follows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hatch_lower.errors import VerificationError
from hatch_lower.events import NullReporter
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.check_data import example_tensors
from hatch_lower.pipeline.comparison import Verification, verify_method
from hatch_lower.pipeline.rounding import rounding_of
from hatch_lower.runtime.check import mark_name
from hatch_lower.runtime.numbers import Tolerance

pytestmark = pytest.mark.torch

Cell = tuple[torch.Tensor, torch.Tensor]


class Net(nn.Module):
    """Runs a function of the module, an input and an input of half precision."""

    def __init__(self, run: Callable[[Any, torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.run = run
        self.linear = nn.Linear(4, 4)
        self.low = nn.Linear(4, 4).bfloat16()
        self.register_buffer("kept", torch.zeros(4))
        self.register_buffer("table", torch.randn(9, 4).half())

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.run(self, x, h)


def exact_branches(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    first, second = torch.cond(x.sum() > 0, lambda x, h: (x + 1, h * 2), lambda x, h: (x - 1, h + 1), (x, h))
    return first, second


def chosen_by_a_half(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return torch.cond((h * 3).sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def one_branch(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, h: x + 1, lambda x, h: x + (h * h).float(), (x, h))


def loop(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    def body(count: torch.Tensor, x: torch.Tensor, h: torch.Tensor) -> Any:
        return count + 1, x * 0.5, h * 0.5

    start = (torch.zeros((), dtype=torch.int64), x.clone(), h.clone())
    return torch.while_loop(lambda count, x, h: count < 3, body, start)[1:]


def crossing_loop(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    def body(count: torch.Tensor, x: torch.Tensor, h: torch.Tensor) -> Any:
        return count + 1, h.float() + 1, x.bfloat16()

    start = (torch.zeros((), dtype=torch.int64), x.clone(), h.clone())
    return torch.while_loop(lambda count, x, h: count < 3, body, start)[1:]


def under_autocast(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = x @ x.t()
    return product.float(), net.linear(x)


def written_in_place(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    before = x * 2
    after = x.clone()
    after[0].add_(net.low(h)[0].float())
    return before, after * 3


def left_in_a_buffer(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    kept = net.kept * 2
    net.kept.copy_((h * h).float().sum(0))
    return kept, net.linear(x)


def quantized(net: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  # declares the operators

    ops = torch.ops.quantized_decomposed
    steps = ops.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8)
    return ops.dequantize_per_tensor(steps, 0.1, 0, -128, 127, torch.int8) + 1, x + 1


NONE: set[str] = set()
BF16 = {"bfloat16"}

CASES: dict[str, tuple[Callable[[Any, torch.Tensor, torch.Tensor], Any], list[set[str]]]] = {
    "an unused half parameter": (lambda net, x, h: net.linear(x), [NONE]),
    "dead code": (lambda net, x, h: (net.low(h), net.linear(x))[1], [NONE]),
    "an output beside": (lambda net, x, h: (net.linear(x), net.low(h)), [NONE, BF16]),
    "a half widened first": (lambda net, x, h: net.linear(h.float()), [NONE]),
    "a half weight widened first": (lambda net, x, h: functional.linear(x, net.low.weight.float()), [NONE]),
    "rows of a half table": (lambda net, x, h: net.linear(net.table[h.shape[0] :].float()), [NONE]),
    "looked up in a half table": (
        lambda net, x, h: net.linear(functional.embedding(x.argmax(-1), net.table).float()),
        [NONE],
    ),
    "computed in half precision": (lambda net, x, h: net.linear(net.low(h).float()), [BF16]),
    "narrowed and widened": (lambda net, x, h: net.linear(x.half().float()), [{"float16"}]),
    "both kinds": (lambda net, x, h: x.half().float() + (h * h).float(), [{"float16", "bfloat16"}]),
    "only the size of a half": (lambda net, x, h: x * (h * h).shape[0], [NONE]),
    "only the shape of a half": (lambda net, x, h: torch.zeros_like(h * h, dtype=torch.float32) + x, [NONE]),
    "indices by a half": (lambda net, x, h: x[(h * h).sum(1).argsort()], [BF16]),
    "integers": (lambda net, x, h: (x.argmax(-1), (h * h).argmax(-1)), [NONE, BF16]),
    "a part of several": (lambda net, x, h: torch.cat([x, h.float()]).chunk(2)[0], [NONE]),
    "branches": (exact_branches, [NONE, BF16]),
    "a branch with halves": (one_branch, [BF16]),
    "a condition with halves": (chosen_by_a_half, [BF16]),
    "a loop": (loop, [NONE, BF16]),
    "a loop that crosses": (crossing_loop, [BF16, BF16]),
    "autocast": (under_autocast, [BF16, NONE]),
    "a write in place": (written_in_place, [NONE, BF16]),
    "a buffer from call to call": (left_in_a_buffer, [BF16, NONE]),
    "quantized beside": (quantized, [{"quantized"}, NONE]),
}


def inputs() -> Cell:
    return torch.randn(4, 4), torch.randn(4, 4).bfloat16()


@pytest.mark.parametrize("name", CASES)
def test_outputs_have_the_marks_of_their_own_values(name: str) -> None:
    run, expected = CASES[name]
    program = torch.export.export(Net(run).eval(), inputs())
    assert list(rounding_of(program).outputs) == expected
    assert list(rounding_of(program.run_decompositions()).outputs) == expected


def test_inputs_that_are_written_into_have_the_marks_of_the_new_values() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(y.half().float())
            return y + 1

    program = torch.export.export(Writes(), (torch.randn(3), torch.randn(3)))
    for each in (program, program.run_decompositions()):
        assert rounding_of(each).inputs == ({"float16"}, NONE)
        assert rounding_of(each).outputs == (NONE,)


def verified(change: Callable[[Any], Any]) -> Verification:
    module = Net(lambda net, x, h: {"plain": net.linear(x), "half": net.low(h), "index": x.argmax(-1)}).eval()
    source = capture_model("net", Model(module, {"forward": Method(inputs())}), NullReporter())
    lowered = copy.deepcopy(module)

    def call(*args: Any) -> Any:
        return change(lowered(*args))

    (method,) = source.methods
    return verify_method(source, method, call, lambda: None, recipe="r", tolerance=Tolerance())


def test_each_output_has_its_own_tolerance() -> None:
    result = verified(lambda found: {**found, "half": found["half"] * 1.02})
    text = "`output['plain']` rtol 0.0001, atol 1e-05; `output['half']` rtol 0.04, atol 0.004 (bfloat16)"
    assert result.allowed == text
    with pytest.raises(VerificationError, match=r"allowed: atol 1e-05, rtol 0\.0001"):
        verified(lambda found: {**found, "plain": found["plain"] * 1.02})
    with pytest.raises(VerificationError, match=r"allowed: atol 0\.004, rtol 0\.04"):
        verified(lambda found: {**found, "half": found["half"] * 1.2})
    with pytest.raises(VerificationError, match="of 4 values are different"):
        verified(lambda found: {**found, "index": found["index"] + 1})


def test_check_data_say_which_outputs_were_rounded() -> None:
    module = Net(lambda net, x, h: (net.linear(x), net.low(h))).eval()
    found, _ = example_tensors(capture_model("net", Model(module, {"forward": Method(inputs())}), NullReporter()))
    marks = {key for key in found if key.split("/")[1] not in ("input", "output")}
    assert marks == {mark_name("forward", "bfloat16", 1)}
