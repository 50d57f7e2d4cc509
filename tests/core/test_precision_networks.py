"""Conversion of networks with shared layers, several methods, and results of several parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import CaptureError
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.check_data import example_tensors
from hatch_lower.pipeline.eager import eager_modules
from hatch_lower.pipeline.precision.convert import Conversion, convert_recipes
from hatch_lower.pipeline.random_inputs import example_case
from hatch_lower.runtime.torch_private.recurrent import RECURRENT, decomposition_table, recurrent_shapes

pytestmark = pytest.mark.torch

ALL = ("bfloat16", "float16", "int8", "int8-weights", "int4-weights")


class Quiet:
    def report(self, event: object) -> None:
        pass


def captured(module: nn.Module, methods: Mapping[str, tuple[Tensor, ...]]) -> CapturedModel:
    torch.manual_seed(0)
    entry = Model(module.eval(), {name: Method(inputs) for name, inputs in methods.items()})
    return capture_model("net", entry, Quiet())


def converted(
    model: CapturedModel, precision: str, kept: tuple[str, ...] = (), backend: str = "onnxruntime"
) -> CapturedModel:
    if precision == "int8":
        pytest.importorskip("torchao")
        if backend == "executorch":  # whose quantizer is its own
            pytest.importorskip("executorch")
    settings = ModelSettings("net", "net:export", "net", ("small",))
    cases = {method.name: [example_case(method)] for method in model.methods}
    recipe = Recipe("small", (BackendChoice(backend),), precision=precision)
    return Conversion(model, settings, cases).converted(recipe, kept)


def outputs(model: CapturedModel, method: str, *inputs: Tensor) -> list[Tensor]:
    module, name = eager_modules(model)[method]
    with torch.no_grad():
        found = getattr(module, name)(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def relative_error(expected: list[Tensor], given: list[Tensor]) -> float:
    pairs = zip(expected, given, strict=True)
    return max(float((one - other).detach().norm() / one.norm()) for one, other in pairs)


def errors_of(model: CapturedModel, small: CapturedModel, inputs: Mapping[str, tuple[Tensor, ...]]) -> list[float]:
    return [
        relative_error(outputs(model, name, *given), outputs(small, name, *given)) for name, given in inputs.items()
    ]


class Shared(nn.Module):
    """A convolution that two batch norms follow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        for norm in self.norms:
            assert isinstance(norm, nn.BatchNorm2d)
            assert norm.running_var is not None
            norm.running_var.uniform_(2, 4)
            norm.weight.data.uniform_(0.3, 3)
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.norms[0](self.conv(x)), self.norms[1](self.conv(y))


@pytest.mark.parametrize("backend", ["executorch", "onnxruntime", "aoti"])
def test_a_convolution_with_two_norms_computes_both(backend: str) -> None:
    inputs = {"forward": (torch.randn(1, 8, 9, 9), torch.randn(1, 8, 9, 9) + 1)}
    model = captured(Shared(), inputs)
    assert max(errors_of(model, converted(model, "int8", backend=backend), inputs)) < 0.05


class Head(nn.Module):
    """A layer of two inputs, as a detector's of feature maps of two sizes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(self.layer(x)), self.layer(y)


LAYERS = {
    "convolution": (lambda: nn.Conv2d(32, 16, 3, padding=1), torch.randn(1, 32, 9, 9), torch.randn(1, 32, 5, 5)),
    "linear": (lambda: nn.Linear(64, 32), torch.randn(9, 64), torch.randn(5, 64)),
}


@pytest.mark.parametrize("backend", ["executorch", "onnxruntime", "aoti"])
@pytest.mark.parametrize("precision", ["int8", "int8-weights"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_two_inputs_has_its_weights_once(backend: str, precision: str, layer: str) -> None:
    make, *given = LAYERS[layer]
    inputs = {"forward": tuple(given)}
    model = captured(Head(make()), inputs)
    small = converted(model, precision, backend=backend)
    assert max(errors_of(model, small, inputs)) < 0.05
    program = small.methods[0].program
    large = [each for each in {**program.state_dict, **program.constants}.values() if each.numel() > 1000]
    assert {each.dtype for each in large} == {torch.int8}
    assert len({each.data_ptr() for each in large}) == 1


class Sides(nn.Module):
    """Two methods, each with a linear layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.first(x)
        return result

    def embed(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(x)
        return result


@pytest.mark.parametrize("precision", ALL)
def test_methods_have_constants_of_their_own(precision: str) -> None:
    inputs = {"forward": (torch.randn(3, 64),), "embed": (torch.randn(5, 64),)}
    model = captured(Sides(), inputs)
    small = converted(model, precision)
    assert max(errors_of(model, small, inputs)) < 0.2
    stores = [{**each.program.state_dict, **each.program.constants} for each in small.methods]
    for name in stores[0].keys() & stores[1].keys():
        assert stores[0][name] is stores[1][name], name


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        result: Tensor = self.inner(one) * torch.sigmoid(other)
        return result


@pytest.mark.parametrize("kept", [("1",), ("0",), ("0", "1"), ("1.inner",)])
def test_a_kept_module_takes_parts_of_halves(kept: tuple[str, ...]) -> None:
    inputs = {"forward": (torch.randn(3, 16),)}
    model = captured(nn.Sequential(nn.Linear(16, 32), Gate(), nn.Linear(16, 16)), inputs)
    assert errors_of(model, converted(model, "bfloat16", kept), inputs)[0] < 0.02


def test_kept_layers_compute_exactly_up_to_the_output() -> None:
    inputs = {"forward": (torch.randn(3, 64),)}
    model = captured(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), inputs)
    assert errors_of(model, converted(model, "bfloat16", ("2",)), inputs)[0] > 1e-4
    with pytest.raises(CaptureError, match="changes no operation") as caught:
        converted(model, "bfloat16", ("0", "1", "2"))
    assert caught.value.found == "operators: `aten.linear.default`, `aten.relu.default`"
    last = next(iter(reversed(converted(model, "bfloat16", ("2",)).methods[0].program.graph.nodes)))
    (result,) = last.args[0]
    assert str(result.target) == "aten.linear.default", result


class Outputs(nn.Module):
    """Outputs of four floating dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.layer(x)
        return y, y.double() * 2, y.half() + 1, y.bfloat16() + 1


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_outputs_keep_their_dtypes(precision: str) -> None:
    x = torch.randn(3, 16)
    model = captured(Outputs(), {"forward": (x,)})
    given = outputs(converted(model, precision), "forward", x)
    assert [each.dtype for each in given] == [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("precision", ["int8-weights", "int4-weights"])
@pytest.mark.parametrize("backend", ["executorch", "openvino"])
def test_a_table_of_integers_refuses_a_negative_index(precision: str, backend: str) -> None:
    ids = torch.arange(8)
    small = converted(captured(nn.Embedding(64, 32), {"forward": (ids,)}), precision, backend=backend)
    with pytest.raises(IndexError):
        outputs(small, "forward", ids - 8)


def test_a_table_that_calls_change_stays_in_float32() -> None:
    ids = torch.arange(8).reshape(2, 4)
    model = captured(nn.Embedding(64, 32, max_norm=0.5), {"forward": (ids,)})
    with pytest.raises(CaptureError, match="changes no operation"):
        converted(model, "int8-weights")
    small = converted(model, "bfloat16")  # which casts the rows in each call
    assert small.methods[0].program.state_dict["weight"].dtype is torch.float32
    assert errors_of(model, small, {"forward": (ids + 20,)})[0] < 0.05


def test_threads_leave_the_tables_of_recurrent_networks_as_found() -> None:
    before = {op: decomposition_table.get(op) for op in RECURRENT}
    inside, go = threading.Event(), threading.Event()

    def other() -> None:
        with recurrent_shapes():
            inside.set()
            go.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    threading.Timer(0.2, go.set).start()
    with recurrent_shapes():
        thread.join(10)
    assert {op: decomposition_table.get(op) for op in RECURRENT} == before


SUMS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "with a number": lambda layer, x: torch.relu(layer(x) + 1),
    "of a number": lambda layer, x: 1 - layer(x),
    "of a later value": lambda layer, x: layer(layer(x)) * 2 + x,
    "with itself": lambda layer, x: (y := layer(x)) + y,
    "in place": lambda layer, x: layer(x).add_(x).relu_(),
    "with a share": lambda layer, x: torch.add(layer(x), x, alpha=0.5),
}


class Sum(nn.Module):
    def __init__(self, kind: str, layer: nn.Module) -> None:
        super().__init__()
        self.kind, self.layer = kind, layer

    def forward(self, x: Tensor) -> Tensor:
        return SUMS[self.kind](self.layer, x)


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("backend", ["executorch", "onnxruntime", "openvino"])
def test_sums_of_layers_compute(kind: str, backend: str) -> None:
    for layer, x in ((nn.Linear(64, 64), torch.randn(3, 64)), (nn.Conv2d(16, 16, 3, 1, 1), torch.randn(1, 16, 8, 8))):
        inputs = {"forward": (x,)}
        model = captured(Sum(kind, layer), inputs)
        assert errors_of(model, converted(model, "int8", backend=backend), inputs)[0] < 0.05


class Unused(nn.Module):
    """A head whose result no output has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        torch.tanh(self.head(y))
        result: Tensor = y + 1
        return result


@pytest.mark.parametrize("precision", ALL)
@pytest.mark.parametrize("backend", ["executorch", "onnxruntime"])
def test_an_unused_layer_is_left_out(precision: str, backend: str) -> None:
    inputs = {"forward": (torch.randn(3, 64),)}
    model = captured(Unused(), inputs)
    assert errors_of(model, converted(model, precision, backend=backend), inputs)[0] < 0.2


class Branches(nn.Module):
    """A branch with a linear layer and a softmax, beside a branch without layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        def layers(y: Tensor) -> Tensor:
            return torch.softmax(self.inner(y), -1) * 30

        result: Tensor = self.outer(torch.cond(x.sum() > 0, layers, lambda y: y - 1, (x,)))
        return result


@pytest.mark.parametrize("precision", ALL)
def test_branches_compute(precision: str) -> None:
    x = torch.rand(3, 64)
    model = captured(Branches(), {"forward": (x,)})
    small = converted(model, precision)
    for given in (x,) if precision == "int8" else (x, -x):  # the calibration has one call
        assert errors_of(model, small, {"forward": (given,)})[0] < 0.1


class Cancelling(nn.Module):
    """Numbers that a half loses beside greater numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) + 1000) - 1000


def test_a_precision_that_loses_the_numbers_needs_a_metric() -> None:
    model = captured(Cancelling(), {"forward": (torch.randn(3, 64),)})
    settings = Settings(Path(), "net", "1.0", (), ())
    entry = ModelSettings("net", "net:export", "net", ("small",))
    recipes = (Recipe("small", precision="bfloat16"),)
    examples = example_tensors(model)
    with pytest.raises(CaptureError) as caught:
        convert_recipes(settings, entry, recipes, model, Quiet(), examples=examples)
    assert caught.value.what == (
        "the precision `bfloat16` changes the numbers of `forward` by more than half of their size"
    )
    assert caught.value.hint == "name a `metric`, which then judges the recipe, or another precision"
    judged = replace(entry, metric="net:accuracy")
    assert convert_recipes(settings, judged, recipes, model, Quiet(), examples=examples)
    unverified = (replace(recipes[0], verify=False),)
    assert convert_recipes(settings, entry, unverified, model, Quiet(), examples=examples)
