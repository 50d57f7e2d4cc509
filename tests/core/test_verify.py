"""Lowered against eager: what is compared, what is left out, and how a mismatch is told."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

from hatch_lower.errors import SampleError, VerificationError
from hatch_lower.events import NullReporter
from hatch_lower.format.record import OutputMetrics
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.check_data import example_tensors, limited
from hatch_lower.pipeline.comparison import Verification, verify_method
from hatch_lower.pipeline.eager import changed_parameters, random_operators, training_note
from hatch_lower.pipeline.generated_inputs import LARGEST_ELEMENTS, InputMaker
from hatch_lower.pipeline.random_inputs import InputCase, example_case
from hatch_lower.pipeline.real_inputs import RealInputs
from hatch_lower.pipeline.verify import compared_text, wishes_for_real_inputs
from hatch_lower.runtime.numbers import Tolerance

pytestmark = pytest.mark.torch

HINT = (
    "\n  to do: if the difference is acceptable, raise `rtol` and `atol` in the hook's table; if not, leave out"
    " backends to find the backend that causes the difference, and report it there"
)


class Counter(torch.nn.Module):
    """Adds how often it was called; returns a view of its state too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count += 1
        return {"sum": x + self.count, "count": self.count}


class Function(torch.nn.Module):
    """Runs a function."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(x)


@dataclass(eq=False)
class Lowered:
    """Stands for a loaded model: a copy of the module, changed in some way."""

    module: torch.nn.Module
    change: Callable[[Any], Any] = lambda result: result

    def __post_init__(self) -> None:
        self.fresh = copy.deepcopy(self.module)

    def reset(self) -> None:
        self.module = copy.deepcopy(self.fresh)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.change(self.module(*args, **kwargs))


def captured(module: torch.nn.Module, *args: Any, dynamic_shapes: Any = None) -> CapturedModel:
    method = Method(args, dynamic_shapes=dynamic_shapes)
    return capture_model("net", Model(module.eval(), {"forward": method}), NullReporter())


def verify(model: CapturedModel, lowered: Lowered, rtol: float = 1e-4, atol: float = 1e-5) -> Verification:
    (method,) = model.methods
    return verify_method(model, method, lowered, lowered.reset, recipe="default", tolerance=Tolerance(rtol, atol))


def refuse(model: CapturedModel, lowered: Lowered) -> str:
    with pytest.raises(VerificationError) as caught:
        verify(model, lowered)
    return str(caught.value)


def changed(module: torch.nn.Module, change: Callable[[Any], Any], *args: Any, dynamic_shapes: Any = None) -> str:
    """Return the error for a lowered module whose results were changed."""
    return refuse(captured(module, *args, dynamic_shapes=dynamic_shapes), Lowered(module, change))


def test_every_case_is_compared() -> None:
    module = torch.nn.Linear(4, 3)
    model = captured(module, torch.randn(2, 4), dynamic_shapes={"input": {0: Dim("batch", max=8)}})
    result = verify(model, Lowered(module))
    assert result == Verification(
        ("example inputs", "equal numbers", "batch = 3", "batch = 1", "batch = 0", "batch = 8", "zeros"),
        (),
        {"output": OutputMetrics(0.0, 0.0, None, pytest.approx(1.0), 1.0)},
        0,
        1,
    )


def test_the_largest_error_within_the_tolerance_is_told() -> None:
    module = Function(lambda x: x * 1)
    result = verify(captured(module, torch.ones(3)), Lowered(module, lambda y: y + 5e-6))
    assert result.outputs["output"].largest_error == pytest.approx(5e-6, rel=0.1)


def test_state_of_both_sides_starts_fresh_and_goes_on() -> None:
    module = Counter()
    model = captured(module, torch.zeros(2))
    assert not verify(model, Lowered(module)).notes
    assert module.count == 0


def test_state_that_does_not_go_on() -> None:
    module = Counter()
    lowered = Lowered(module)
    original = lowered.fresh

    def forget(result: Any) -> Any:
        lowered.module = copy.deepcopy(original)
        return result

    lowered.change = forget
    assert refuse(captured(module, torch.zeros(2)), lowered) == (
        "the lowered method computes other numbers than the eager module\n"
        "  where: model `net`, recipe `default`, method `forward`, example inputs, second call, output `['sum']`\n"
        "  found: largest absolute error 1, largest relative error 0.5 (allowed: atol 1e-05, rtol 0.0001); 2 of 2"
        f" values are wrong{HINT}"
    )


def test_outputs_that_the_next_call_overwrites() -> None:
    module = Function(lambda x: x * 1)
    arena = torch.zeros(2)
    steps = iter([lambda y: arena.copy_(y), lambda y: (arena.zero_(), y)[1]])
    message = changed(module, lambda y: next(steps)(y), torch.ones(2))
    assert "method `forward`, example inputs, after a second call, its only output\n" in message


def test_ready_programs_are_their_own_eager() -> None:
    module = Counter()
    program = torch.export.export(module, (torch.zeros(2),))
    model = capture_model("net", {"forward": program}, NullReporter())
    assert not verify(model, Lowered(module)).notes
    assert program.state_dict["count"] == 0


def test_a_size_that_eager_refuses_is_passed_over() -> None:
    def even(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and x.shape[0] % 2:
            raise ValueError("odd")
        return x + 1

    module = Function(even)
    model = captured(module, torch.zeros(4), dynamic_shapes={"x": {0: Dim("length", max=64)}})
    assert verify(model, Lowered(module)).cases[1:] == (
        "example inputs, second call",
        "length = 8",
        "length = 0",
        "length = 64",
    )


def test_inputs_that_eager_refuses_are_noted() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and bool((x < 0).any()):
            raise ValueError("negative")
        return x + 1

    module = Function(positive)
    model = captured(module, torch.ones(64), dynamic_shapes={"x": {0: Dim("length", max=65)}})
    result = verify(model, Lowered(module))
    assert result.cases == ("example inputs", "example inputs, second call", "length = 1", "length = 0", "zeros")
    assert result.notes == (
        "a second size of `length`: left out (ValueError: negative)",
        "a large size, length = 65: left out (ValueError: negative)",
    )
    assert list(wishes_for_real_inputs(model.methods[0], result)) == [
        "1 of 1 generated inputs were left out: eager refuses them; name real inputs in `verify-inputs`"
    ]


def real_case(value: torch.Tensor, name: str = "samples.safetensors, case 3") -> InputCase:
    return InputCase(name, (value,), {}, ("x",))


def verify_on(model: CapturedModel, lowered: Lowered, *real: InputCase) -> Verification:
    (method,) = model.methods
    return verify_method(model, method, lowered, lowered.reset, recipe="default", tolerance=Tolerance(), real=real)


def test_a_difference_that_only_a_real_input_shows_is_found() -> None:
    module = Function(lambda x: x + 1)
    model = captured(module, torch.zeros(4))
    lowered = Lowered(module, lambda y: torch.where(y > 1000, 0.0, y))
    assert not verify_on(model, lowered).notes
    with pytest.raises(VerificationError) as caught:
        verify_on(model, lowered, real_case(torch.full((4,), 1e6)))
    assert caught.value.where.startswith("model `net`, recipe `default`, method `forward`, samples.safetensors, case 3")


def test_a_real_input_that_eager_refuses_is_an_error() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and bool((x < 0).any()):
            raise ValueError("negative")
        return x + 1

    module = Function(positive)
    with pytest.raises(SampleError) as caught:
        verify_on(captured(module, torch.ones(4)), Lowered(module), real_case(torch.full((4,), -1.0)))
    assert (caught.value.what, caught.value.found) == (
        "the eager module cannot run a real input",
        "ValueError: negative",
    )


def test_metrics_are_of_all_calls_and_each_output() -> None:
    module = Function(lambda x: {"a": x * 1, "b": x.sum(), "c": x.long()})
    lowered = Lowered(module, lambda out: {**out, "a": out["a"] * (1 + 1e-5)})
    found = verify_on(captured(module, torch.ones(4, 2)), lowered, real_case(torch.full((4, 2), 512.0))).outputs
    assert list(found) == ["output['a']", "output['b']"]
    assert found["output['a']"].largest_error == pytest.approx(512e-5, rel=0.05)
    assert found["output['a']"].snr == pytest.approx(100, abs=1)
    assert (found["output['b']"].largest_error, found["output['b']"].argmax) == (0.0, None)


def test_integers_and_refused_inputs_ask_for_real_ones() -> None:
    def short(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and not bool((x == torch.arange(len(x))).all()):
            raise IndexError("no such token")
        return x * 2

    module = Function(short)
    model = captured(module, torch.arange(4))
    assert list(wishes_for_real_inputs(model.methods[0], verify(model, Lowered(module)))) == [
        "`x`: compared only on integers of the example, zeros and limits; name real inputs in `verify-inputs`"
    ]
    floats = captured(Function(lambda x: x + 1), torch.ones(2))
    assert list(wishes_for_real_inputs(floats.methods[0], verify(floats, Lowered(Function(lambda x: x + 1))))) == []


def test_what_was_compared_is_summed_up() -> None:
    cases = (
        "example inputs",
        "example inputs, second call",
        "s, case 0",
        "s, case 1",
        "random inputs, seed 1",
        "b = 3",
    )
    real = RealInputs("s", tuple(real_case(torch.ones(1), f"s, case {number}") for number in (0, 1)))
    assert compared_text(cases, real) == "example inputs, random inputs, b = 3, 2 real inputs of s"
    assert compared_text(cases[:1], None) == "example inputs"


def test_a_condition_on_sizes_that_a_size_does_not_meet_is_said_to_be_torchs_assumption() -> None:
    def fail(result: Any) -> Any:
        raise RuntimeError("Runtime assertion failed for expression Ne(Mod(s0, 7), 0)")

    message = changed(Function(lambda x: x + 1), fail, torch.ones(2))
    assert "  to do: torch.export chose the operations for sizes that meet the condition: declare such sizes" in message


def test_a_lowered_method_that_fails() -> None:
    module = Function(lambda x: x + 1)

    def fail(result: Any) -> Any:
        raise RuntimeError("no such kernel")

    assert changed(module, fail, torch.ones(2)) == (
        "the lowered method fails where the eager module does not\n"
        "  where: model `net`, recipe `default`, method `forward`, example inputs\n"
        f"  found: RuntimeError: no such kernel{HINT}"
    )


@pytest.mark.parametrize(
    ("change", "place", "found"),
    [
        (lambda y: [y[0] + 1, y[1]], "`[0]`", "largest absolute error 1, largest relative error 1"),
        (lambda y: [y[0], y[1].double()], "`[1]`", "dtype float32 in eager, float64 lowered"),
        (lambda y: [y[0], y[1][:1]], "`[1]`", "shape [2] in eager, [1] lowered"),
        (lambda y: [y[0] * float("nan"), y[1]], "`[0]`", "largest absolute error inf"),
        (lambda y: [3, y[1]], "`[0]`", "`Tensor` in eager, `int` lowered"),
    ],
)
def test_an_output_that_differs(change: Callable[[Any], Any], place: str, found: str) -> None:
    message = changed(Function(lambda x: [x * 1, x + 1]), change, torch.ones(2))
    assert f"method `forward`, example inputs, output {place}\n  found: {found}" in message
    assert message.endswith(HINT)


def test_another_structure() -> None:
    assert changed(Function(lambda x: [x * 1, x + 1]), tuple, torch.ones(2)) == (
        "the lowered method's outputs have another structure than eager's\n"
        "  where: model `net`, recipe `default`, method `forward`, example inputs\n"
        f"  found: eager [*, *], lowered (*, *){HINT}"
    )


def test_a_dictionary_stands_for_a_defaultdict() -> None:
    module = Function(lambda x: [defaultdict(list, {"sums": [x + 1]})])
    assert verify(captured(module, torch.ones(2)), Lowered(module, lambda y: [dict(y[0])])).cases
    assert "another structure" in changed(module, lambda y: [{"sum": y[0]["sums"]}], torch.ones(2))


def test_nan_among_eagers_outputs_is_noted() -> None:
    module = Function(lambda x: [x + 1, x * float("nan"), x.long()])
    assert verify(captured(module, torch.ones(2)), Lowered(module)).notes == (
        "`output[1]` of eager has NaN on the example inputs: NaN on both sides is equal",
    )


def test_integers_are_compared_exactly() -> None:
    message = changed(Function(lambda x: x * 1), lambda y: y + 1, torch.arange(3))
    assert "  found: 3 of 3 values are different\n" in message


def test_numbers_that_are_no_tensors() -> None:
    module = Function(lambda x: (x * 1, 7))
    assert not verify(captured(module, torch.ones(2)), Lowered(module)).notes
    message = changed(module, lambda y: (y[0], 8), torch.ones(2))
    assert "output `[1]`\n  found: 7 in eager, 8 lowered\n" in message


def test_equal_nan_and_infinity_agree() -> None:
    module = Function(lambda x: torch.stack((x.sqrt(), 1 / (x - x))))
    assert verify(captured(module, torch.tensor([-1.0, 4.0])), Lowered(module)).outputs["output"].largest_error == 0


def test_inputs_that_are_changed_in_place_are_compared() -> None:
    module = Function(lambda x: x.mul_(2))
    example = torch.ones(2)
    model = captured(module, example)
    assert not verify(model, Lowered(module)).notes
    assert torch.equal(example, torch.ones(2))
    message = refuse(model, Lowered(Function(lambda x: x * 2)))
    assert "method `forward`, example inputs, input `x`\n" in message


def test_half_precision_has_wider_tolerances() -> None:
    module = Function(lambda x: (x * 3).float())
    example = torch.ones(4, dtype=torch.bfloat16)
    result = verify(captured(module, example), Lowered(module, lambda y: y * 1.01))
    assert result.outputs["output"].largest_error > 0.01
    message = changed(module, lambda y: y * 1.1, example)
    assert "(allowed: atol 0.004, rtol 0.04)" in message


def test_outputs_that_only_eager_gives_contiguous_are_named() -> None:
    module = torch.nn.Linear(4, 3)
    model = captured(module, torch.randn(2, 4))
    assert verify(model, Lowered(module)).notes == ()
    (note,) = verify(model, Lowered(module, lambda result: result.t().contiguous().t())).notes
    assert note.startswith("`output` has the strides [1, 2] that `torch.export` predicts, where eager has [3, 1]: if")


def test_a_module_in_training_mode_is_told_so() -> None:
    module = torch.nn.Dropout(0.5)
    model = capture_model("net", Model(module, {"forward": Method((torch.ones(64),))}), NullReporter())
    assert refuse(model, Lowered(module)).endswith(
        "\n  to do: the module is in training mode; call `module.eval()` in the entry point"
    )


@pytest.mark.parametrize("wrong", [0, 1])
def test_torchs_fast_path_is_named_where_the_difference_is_its_own(wrong: int) -> None:
    layer = torch.nn.TransformerEncoderLayer(12, 4, 24, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 1).eval()
    model = captured(module, torch.randn(2, 3, 12), None, torch.tensor([[False] * 3, [False, True, True]]))
    error = refuse(model, Lowered(model.methods[0].program.module(), lambda result: result + wrong))
    assert ("`torch.backends.mha.set_fastpath_enabled(False)`" in error) is (not wrong)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_method_that_draws_random_numbers_is_told_so() -> None:
    module = Function(lambda x: x + torch.rand_like(x))
    model = captured(module, torch.ones(64))
    assert refuse(model, Lowered(module)) == (
        "the method draws random numbers, so that a comparison with the eager module is impossible\n"
        "  where: model `net`, recipe `default`, method `forward`\n"
        "  found: `aten.rand_like.default`\n"
        "  to do: pass the random numbers as an input, or set `verify = false` for the recipe"
    )
    assert example_tensors(model) == ({}, "")


class Appending(torch.nn.Module):
    """Counts its calls in a list, which is no state of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(1)
        return x + len(self.calls)


def test_values_that_python_objects_carry_from_call_to_call_are_told() -> None:
    model = captured(Appending(), torch.ones(2))
    assert refuse(model, Lowered(model.methods[0].program.module())).endswith(
        "\n  to do: eager itself computes other numbers in a second call with the same inputs, and no tensor of the"
        " module changes: keep values of Python objects in buffers, and change the buffers in place"
    )


class Growing(Appending):
    """Returns a tensor more in each call."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:  # type: ignore[override]
        self.calls.append(1)
        return [x] * len(self.calls)


def test_outputs_that_grow_from_call_to_call_are_told() -> None:
    model = captured(Growing(), torch.ones(2))
    assert "keep values of Python objects in buffers" in refuse(model, Lowered(model.methods[0].program.module()))


@pytest.mark.parametrize(
    ("norm", "noted"),
    [
        (torch.nn.BatchNorm1d(4), True),
        (torch.nn.BatchNorm1d(4).eval(), False),
        (torch.nn.BatchNorm1d(4, track_running_stats=False), False),
        (torch.nn.InstanceNorm1d(4, track_running_stats=True), True),
        (torch.nn.InstanceNorm1d(4), False),
    ],
)
def test_a_norm_in_training_mode_is_noted(norm: torch.nn.Module, noted: bool) -> None:
    model = capture_model("net", Model(norm, {"forward": Method((torch.randn(3, 4, 5),))}), NullReporter())
    (method,) = model.methods
    assert training_note(method.program) == noted * (
        "each call normalizes by its own batch, and changes the running statistics"
        f" (`aten.{'batch' if isinstance(norm, torch.nn.BatchNorm1d) else 'instance'}_norm.default`): the module is in"
        " training mode; call `module.eval()` in the entry point"
    )


def test_a_draw_that_other_inputs_show_is_told_so() -> None:
    module = Function(lambda x: torch.where(x == 1, x, torch.rand_like(x)))  # equal on the example inputs
    model = captured(module, torch.ones(64))
    assert refuse(model, Lowered(module)).startswith("the method draws random numbers")


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
        lambda x: x.bernoulli_(0.5),
    ],
)
def test_only_operators_that_draw_count_as_random(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    (method,) = captured(Function(run), torch.ones(1, 2, 4)).methods
    assert random_operators(method.program) == [
        str(node.target) for node in method.program.graph.nodes if "bernoulli" in str(node.target)
    ]


def test_a_module_that_cannot_be_copied() -> None:
    class Locked(torch.nn.Linear):
        def __deepcopy__(self, memo: object) -> Locked:
            raise TypeError("locked")

    module = Locked(2, 2)
    model = captured(module, torch.ones(2))
    with pytest.raises(VerificationError) as caught:
        verify_method(model, model.methods[0], module, lambda: None, recipe="default", tolerance=Tolerance(0, 0))
    assert str(caught.value) == (
        "the module cannot be copied, so that a verification would change its state\n"
        "  where: model `net`\n"
        "  found: TypeError: locked\n"
        "  to do: make `copy.deepcopy(module)` work: keep objects that cannot be copied outside of the module"
    )


class Grows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        self.other = torch.nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.size.add_(1)
        return x + self.size + self.other


class ThroughViews(Grows):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, _ = self.size.view(2, 1).unbind()
        first.mul_(2).add_(1)
        (x + self.other).relu_()
        return x + self.size


class WithoutGradients(Grows):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * x
        with torch.no_grad():
            self.size.add_(1 + self.other)
        return y + self.size


class InLists(Grows):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([self.size], 1)
        return x + self.size + self.other


@pytest.mark.parametrize("kind", [Grows, ThroughViews, WithoutGradients, InLists])
def test_parameters_are_shared_with_eager_unless_they_change(kind: type[Grows]) -> None:
    module = kind()
    model = captured(module, torch.ones(2))
    assert changed_parameters(model.methods[0].program) == {"size"}
    example_tensors(model)
    assert torch.equal(module.size, torch.zeros(2))
    lowered = Lowered(module)
    verify_method(model, model.methods[0], lowered, lowered.reset, recipe="default", tolerance=Tolerance(0, 0))
    assert torch.equal(module.size, torch.zeros(2))


def test_random_inputs_are_of_the_same_specification() -> None:
    module = Function(lambda x: x["ids"] + x["mask"] + x["image"])
    example = {
        "ids": torch.tensor([[5, 7, 9], [5, 5, 9]]),
        "mask": torch.tensor([True, False, True]).expand(2, 3),
        "image": torch.randn(3, 2, dtype=torch.float64).t(),
    }
    (method,) = captured(module, example).methods
    one, same, other = (InputMaker(method, seed).random().args[0] for seed in (1, 1, 2))
    for name, tensor in example.items():
        assert one[name].shape == tensor.shape
        assert one[name].stride() == tensor.stride()
        assert one[name].dtype == tensor.dtype
        assert torch.equal(one[name], same[name])
    assert not torch.equal(one["image"], other["image"])
    assert set(one["ids"].flatten().tolist()) <= {5, 7, 9}


def test_a_second_size_holds_for_every_input_and_keeps_strides() -> None:
    rows = Dim("rows", min=2, max=4)

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y[::2]

    shapes = {"x": {0: rows}, "y": {0: 2 * rows}}
    (method,) = captured(Net(), torch.zeros(3, 4).t(), torch.zeros(8, 3), dynamic_shapes=shapes).methods
    (near, *_) = InputMaker(method, 1).sized()
    cases = near.tries
    assert near.what == "a second size of `rows`"
    assert [case.name for case in cases] == ["rows = 3", "rows = 2"]
    assert [tuple(each.shape) for each in cases[0].args] == [(3, 3), (6, 3)]
    assert cases[0].args[0].stride() == (1, 3)


def test_dimensions_and_numbers_without_a_name() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
            return x * times

    shapes = {"x": {1: Dim.AUTO}, "times": Dim.DYNAMIC}
    (method,) = captured(Net(), torch.zeros(3, 4), 5, dynamic_shapes=shapes).methods
    both, *_ = InputMaker(method, 1).sized()
    assert [each.what for each in both.apart] == ["a second size of `x.shape[1]`", "a second size of `times`"]
    (rows, times) = (each.tries[0] for each in both.apart)
    assert (rows.name, times.name) == ("x.shape[1] = 5", "times = 6")
    assert times.args[1] == 6
    assert rows.args[0].shape == (3, 5)
    assert both.tries[0].name == "x.shape[1] = 5 and times = 7"
    assert example_case(method).args[1] == 5


def test_check_data_are_the_example_inputs_and_what_eager_returns() -> None:
    module = Counter()
    example = torch.arange(6.0).reshape(2, 3).t()
    model = captured(module, example)
    tensors, lines = limited(model, example_tensors(model)[0], 1000)
    assert lines == []
    assert sorted(tensors) == ["forward/input/0", "forward/output/0", "forward/output/1"]
    assert torch.equal(tensors["forward/output/0"], example + 1)
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    assert module.count == 0


def test_check_data_that_are_too_large_are_left_out_and_named() -> None:
    model = captured(Function(lambda x: x + 1), torch.zeros(250_000))
    tensors, lines = limited(model, example_tensors(model)[0], 1_500_000)
    assert tensors == {}
    assert lines == [
        "no check data of `forward`: its example inputs and outputs take 1.91 MiB,"
        " and the limit for a model's check data is 1.43 MiB; raise `check-megabytes`"
    ]


@pytest.mark.parametrize(("limit", "rows"), [(8_000, 8), (7_999, 7), (2_500, 2), (1_000, 1)])
def test_check_data_of_a_dynamic_batch_are_as_many_rows_as_fit(limit: int, rows: int) -> None:
    example = torch.arange(1000.0).reshape(8, 125)
    model = captured(Function(lambda x: x.cumsum(0)), example, dynamic_shapes=({0: Dim("batch")},))
    tensors, lines = limited(model, example_tensors(model)[0], limit)
    assert torch.equal(tensors["forward/input/0"], example[:rows])
    assert torch.equal(tensors["forward/output/0"], example[:rows].cumsum(0))
    assert len(lines) == (rows < 8)
    assert all(line.startswith(f"check data of `forward` have {rows} of 8 rows: ") for line in lines)


def test_check_data_of_rows_that_other_sizes_depend_on_are_left_out() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum() + y.sum()

    batch = Dim("batch", min=2)
    model = captured(Two(), torch.zeros(8, 100), torch.zeros(16), dynamic_shapes=({0: batch}, {0: 2 * batch}))
    tensors, lines = limited(model, example_tensors(model)[0], 2000)
    assert tensors == {}
    assert lines[0].startswith("no check data of `forward`")


FRESH = """
import json, sys
from pathlib import Path

import torch

from hatch_lower.pipeline.fresh_process import start_fresh

work = Path(sys.argv[1])
sys.path.insert(0, str(work))
fresh = start_fresh()

import hatch_lower
from hatch_lower.cache.store import Store
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.errors import VerificationError
from hatch_lower.events import NullReporter
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.lower_model import lower_model, start_build
from torch.ao.quantization.fx import _decomposed

scales = torch.ones(3)
(work / "other_library.py").write_text("import torch\\nlibrary = torch.library.Library('other', 'DEF')\\n"
    "library.define('twice(Tensor x) -> Tensor')\\nlibrary.impl('twice', lambda x: x * 2, 'CompositeExplicitAutograd')")
import other_library

def install(distribution, module, text):
    (work / f"{module}.py").write_text(text)
    folder = work / f"{distribution}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {distribution}\\nVersion: 1.0\\n")
    (folder / "RECORD").write_text(f"{module}.py,,\\n")

install("helper", "helper_library", "")
install("user", "using_library", "import helper_library")
install("net", "own_library", "")

def quantized(x):
    q = torch.ops.quantized_decomposed.quantize_per_channel(x, scales, scales, 0, -128, 127, torch.int8)
    return torch.ops.quantized_decomposed.dequantize_per_channel(q, scales, scales, 0, -128, 127, torch.int8)

class Net(torch.nn.Module):
    def forward(self, x):
        return self.run(x)

def said(run, *imports, dependencies=None):
    net = Net().eval()
    net.run = run
    method = hatch_lower.Method((torch.ones(3, 2),))
    source = capture_model("net", hatch_lower.Model(net, {"forward": method}), NullReporter())
    recipe = Recipe("default", imports=imports)
    model = ModelSettings("net", "net:export", "net", ("default",))
    settings = Settings(work, "net", "1", (model,), (recipe,), dependencies=dependencies)
    folder = work / f"{len(list(work.iterdir()))}"
    folder.mkdir()
    try:
        store = Store(work / "cache", "off", print)
        lower_model(*start_build(settings, model, source, folder, NullReporter(), store, fresh))
    except VerificationError as error:
        return str(error)

torch.set_num_threads(1)
twice = torch.ops.other.twice
own = ("hatch-lower>=0.1", "torch==2.13.*")
print(json.dumps([
    said(quantized),
    said(twice),
    said(twice, "no_such_library"),
    said(twice, "other_library"),
    said(torch.relu, "using_library", dependencies=own),
    said(torch.relu, "using_library", dependencies=(*own, "helper>=1")),
    said(torch.relu, "own_library", dependencies=own),
]))
"""


def test_what_is_packaged_runs_in_a_process_that_has_not_run_the_models_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    torch_own, missing, absent, named, not_required, required, own = json.loads(done.stdout)
    assert torch_own is None
    assert missing == (
        "the packaged program does not run in a process that has not run the model's code\n"
        "  where: model `net`, recipe `default`\n"
        "  found: the program calls an operator that torch does not have here: other.twice.default\n"
        "  to do: if the program needs operators or classes of a library, name the library's module in the setting"
        " `imports`; if the program needs a setting of the process, such as the default dtype, change the model's code"
        " to do without"
    )
    assert "found: ModuleNotFoundError: No module named 'no_such_library'" in absent
    assert named is None
    assert "`helper_library` is installed here, but no requirement of the wheel brings the module" in not_required
    assert required is None
    assert own is None


def wrong_where(run: Callable[[torch.Tensor], torch.Tensor], is_hit: Callable[[torch.Tensor], bool]) -> Any:
    """Return a module, and a lowered one that is wrong for some inputs."""
    module, wrong = Function(run), Function(lambda x: run(x) + is_hit(x))
    return module, Lowered(wrong)


@pytest.mark.parametrize(
    ("is_hit", "case"),
    [
        (lambda x: len(x) == 0, "rows = 0"),
        (lambda x: len(x) == 1, "rows = 1"),
        (lambda x: len(x) == 64, "rows = 64"),
        (lambda x: bool((x == 0).all()) and len(x) > 0, "zeros"),
        (lambda x: len(x) > 1 and bool((x == x.reshape(-1)[:1]).all()), "equal numbers"),
    ],
)
def test_sizes_and_values_at_the_ends_are_tried(is_hit: Callable[[torch.Tensor], bool], case: str) -> None:
    module, lowered = wrong_where(lambda x: x.sum(0), is_hit)
    model = captured(module, torch.randn(3, 2), dynamic_shapes={"x": {0: Dim("rows", min=0, max=64)}})
    assert f"method `forward`, {case}, its only output\n" in refuse(model, lowered)


def test_a_mismatch_in_the_order_of_equal_numbers_names_the_operation() -> None:
    model = captured(Function(lambda x: x.topk(2).indices), torch.tensor([1.0, 3.0, 3.0, 3.0]))
    with pytest.raises(VerificationError) as caught:
        verify(model, Lowered(Function(lambda x: 3 - x.flip(0).topk(2).indices)))
    assert caught.value.hint.startswith(
        "torch does not specify which of equal numbers `aten.topk.default` gives first: make the outputs independent"
    )


def test_a_mismatch_at_the_smallest_size_says_how_to_leave_it_out() -> None:
    module, lowered = wrong_where(lambda x: x.sum(0), lambda x: x.shape[0] == 1)
    model = captured(module, torch.randn(3, 2), dynamic_shapes={"x": {0: Dim("rows", max=64)}})
    with pytest.raises(VerificationError) as caught:
        verify(model, lowered)
    assert caught.value.hint.startswith("if the method is never called with this size, let the range begin later")


@pytest.mark.parametrize("value", [torch.iinfo(torch.int32).max, torch.iinfo(torch.int32).min])
def test_integers_at_their_limits_are_tried(value: int) -> None:
    module, lowered = wrong_where(lambda x: x * 2, lambda x: bool((x == value).any()))
    model = captured(module, torch.arange(1, 9, dtype=torch.int32))
    assert "method `forward`, limits of integers, its only output\n" in refuse(model, lowered)


def test_a_large_size_is_bounded_by_the_elements_that_are_computed() -> None:
    module = torch.nn.Linear(128, 128)
    model = captured(module, torch.randn(2, 128), dynamic_shapes={"input": {0: Dim("rows", max=100_000)}})
    rows = [int(case.removeprefix("rows = ")) for case in verify(model, Lowered(module)).cases if "rows" in case]
    assert max(rows) == LARGEST_ELEMENTS // 256


def test_independent_sizes_change_together_and_by_themselves_where_eager_refuses() -> None:
    def square(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and x.shape[0] > x.shape[1]:
            raise ValueError("tall")
        return x * 2

    sizes = {"x": {0: Dim("height", min=2, max=64), 1: Dim("width", min=2, max=64)}}
    model = captured(Function(lambda x: x * 2), torch.randn(4, 8), dynamic_shapes=sizes)
    assert "height = 5 and width = 10" in verify(model, Lowered(Function(lambda x: x * 2))).cases
    model = captured(Function(square), torch.randn(8, 8), dynamic_shapes=sizes)
    result = verify(model, Lowered(Function(square)))
    assert {"height = 9 and width = 10", "height = 2 and width = 2", "width = 64"} <= set(result.cases)
    assert result.notes == ("a large size, height = 64: left out (ValueError: tall)",)
    narrow = {"x": {0: Dim("height", min=2, max=8), 1: Dim("width", min=2, max=64)}}
    model = captured(Function(square), torch.randn(8, 8), dynamic_shapes=narrow)
    assert {"height = 7 and width = 10"} <= set(verify(model, Lowered(Function(square))).cases)


def test_what_is_not_finite_or_in_no_order_for_equal_numbers_is_no_fault() -> None:
    module = Function(lambda x: (x - x.mean()) / x.std())
    lowered = Lowered(module, lambda y: torch.nan_to_num(y))
    result = verify(captured(module, torch.randn(6)), lowered)
    assert "zeros" not in result.cases
    assert any(
        note.startswith("zeros: left out (eager's `aten.div.Tensor` gives a number that") for note in result.notes
    )
    ordered = Function(lambda x: x.topk(2).indices)
    other = Lowered(Function(lambda x: 5 - x.flip(0).topk(2).indices))
    result = verify(captured(ordered, torch.randn(6)), other)
    assert (
        "zeros: left out (torch does not specify which of equal numbers `aten.topk.default` gives first)"
        in result.notes
    )


def test_rounding_errors_that_a_norm_of_equal_numbers_enlarges_are_no_fault() -> None:
    module = Function(lambda x: torch.nn.functional.group_norm(x + 50, 2))
    lowered = Lowered(module, lambda y: y + 1e-3 * bool((y.abs() < 0.01).all()))
    result = verify(captured(module, torch.randn(2, 4, 6)), lowered)
    reason = "eager's `aten.native_group_norm.default` enlarges the rounding errors of equal numbers"
    assert f"equal numbers: left out ({reason})" in result.notes
    near_zero = Function(lambda x: torch.nn.functional.group_norm(x * 0, 2))
    with pytest.raises(VerificationError, match="computes other numbers"):
        verify(captured(near_zero, torch.randn(2, 4, 6)), Lowered(near_zero, lambda y: y + 1e-3))


def test_integers_that_decide_how_long_a_call_takes_are_not_at_their_limits() -> None:
    module = Function(lambda x: torch.nonzero(x))
    model = captured(module, torch.arange(4))
    assert "limits of integers" not in verify(model, Lowered(module)).cases
