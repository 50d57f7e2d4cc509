"""The metric of a model: the model that its function gets, and every result that is no number."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.driver.worker import import_metric
from hatch_lower.errors import EntryPointError
from hatch_lower.events import NullReporter
from hatch_lower.model import Method, Model
from hatch_lower.pipeline import metric_process
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.discover import EntryPoint
from hatch_lower.pipeline.metric import metric_entry, metric_of
from hatch_lower.pipeline.metric_process import MeasuredRecipe, answer_measured, measure_apart
from hatch_lower.pipeline.model_build import BuildInputs

pytestmark = pytest.mark.torch


class Counting(torch.nn.Module):
    """Two methods that share a buffer."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 3.0))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.weight + self.count

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + self.count


@pytest.fixture(scope="module")
def source() -> CapturedModel:
    methods = {name: Method((torch.ones(2),)) for name in ("forward", "twice")}
    return capture_model("net", Model(Counting().eval(), methods), NullReporter())


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, source: CapturedModel, tmp_path: Path) -> Callable[..., float]:
    """Measures a model with a function, or another value, as the metric."""

    def run(value: Any, measured: CapturedModel = source) -> float:
        module = types.ModuleType("net_data")
        module.accuracy = value  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "net_data", module)
        model = ModelSettings("net", "net:export", "net", ("default",), metric="net_data:accuracy")
        return metric_of(BuildInputs(Settings(tmp_path, "net", "1.0", (model,), ()), model, source), measured)

    return run


def refusal(measure: Callable[..., float], value: Any) -> str:
    with pytest.raises(EntryPointError) as caught:
        measure(value)
    return str(caught.value)


def test_a_metric_gets_a_model_like_an_installed_model(measure: Callable[..., float]) -> None:
    def accuracy(model: Any) -> float:
        assert (model.name, model.recipe, model.recipes, list(model.methods)) == (
            "net",
            "eager",
            ("eager",),
            ["forward", "twice"],
        )
        first = model(torch.ones(2))
        assert not first.requires_grad
        second = model["twice"](torch.ones(2))
        model.reset()
        return float(first[0] * 100 + second[0] * 10 + model.twice(torch.zeros(2))[0])

    assert measure(accuracy) == 4 * 100 + 3 * 10


def test_each_measurement_begins_with_the_models_state_and_leaves_the_model_unchanged(
    measure: Callable[..., float], source: CapturedModel
) -> None:
    assert [measure(lambda model: model(torch.ones(2))[0]) for _ in range(2)] == [4.0, 4.0]
    assert source.eager is not None
    assert float(dict(source.eager.named_buffers())["count"]) == 0


def test_methods_of_ready_programs_share_their_state(measure: Callable[..., float], source: CapturedModel) -> None:
    programs = CapturedModel("net", source.methods, None)

    def count(model: Any) -> float:
        model(torch.ones(2))
        return float(model.twice(torch.zeros(2))[0])

    assert [measure(count, programs) for _ in range(2)] == [1.0, 1.0]


def test_each_measurement_draws_the_same_random_numbers(measure: Callable[..., float]) -> None:
    def chance(model: Any) -> float:
        return float(torch.rand(())) + float(np.random.rand())

    state = torch.get_rng_state()
    assert measure(chance) == measure(chance)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_of_zero_is_zero(measure: Callable[..., float]) -> None:
    assert str(measure(lambda model: -torch.zeros(()))) == "0.0"


def test_each_import_of_the_module_draws_the_same_random_numbers(
    source: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"drawn_{tmp_path.name}"
    lines = [
        "import random, torch",
        "import numpy as np",
        "DRAWN = random.random() + np.random.rand() + torch.rand(())",
    ]
    (tmp_path / f"{name}.py").write_text("\n".join([*lines, "def accuracy(model): return DRAWN", ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    model = ModelSettings("net", "net:export", "net", ("default",), metric=f"{name}:accuracy")
    inputs = BuildInputs(Settings(tmp_path, "net", "1.0", (model,), ()), model, source)
    found = set()
    for early in (False, True):
        if early:  # as a build does, before the export
            import_metric(metric_entry(inputs))
        found.add(metric_of(inputs, source))
        del sys.modules[name]
        torch.rand(3)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("line", "same"),
    [("torch.rand(3)", False), ("torch.manual_seed(7), torch.rand(3)", True), ("torch.ones(3)", True)],
)
def test_an_import_that_draws_other_numbers_for_eager_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, same: bool
) -> None:
    name = f"early_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"import torch\nDRAWN = {line}\ndef accuracy(model): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(metric_process, "measure_here", lambda measured: 1.0)
    entry = EntryPoint("net", f"{name}:accuracy", tmp_path, setting="metric")
    packaged: Any = SimpleNamespace(imports=())
    measured = MeasuredRecipe(packaged, "net", "small", ("small",), entry.export, tmp_path)

    def ask(asked: MeasuredRecipe) -> object:
        sys.modules.pop(name)
        return answer_measured(asked)

    importlib.import_module(name)  # by the model's code
    torch.rand(3)
    drawn = import_metric(entry)
    spare: Any = SimpleNamespace(ask=ask)
    with nullcontext() if same else pytest.raises(EntryPointError, match="import of the metric draws random numbers"):
        assert measure_apart(spare, measured, drawn) == 1.0


@pytest.mark.parametrize(
    "value", [0.5, torch.tensor(0.5), torch.tensor([0.5]).sum(), np.float32(0.5), np.array(0.5)], ids=repr
)
def test_a_number_of_any_library_is_a_metric(measure: Callable[..., float], value: Any) -> None:
    assert measure(lambda model: value) == 0.5
    assert type(measure(lambda model: value)) is float


@pytest.mark.parametrize("value", [torch.tensor(0.97), np.float32(0.97), torch.tensor([0.94, 1.0]).mean()], ids=str)
def test_a_number_of_low_precision_is_the_decimal_number_that_people_read(
    measure: Callable[..., float], value: Any
) -> None:
    # otherwise 0.97 - 0.96 of float32 is more than 0.01
    assert measure(lambda model: value) == 0.97
    assert measure(lambda model: torch.tensor(29 / 30)) == 0.96666664
    assert measure(lambda model: torch.tensor(29 / 30, dtype=torch.float64)) == 29 / 30


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (
            None,
            "a metric must return a number\n  where: `metric = net_data:accuracy`\n  found: a value of type `NoneType`",
        ),
        (float("nan"), "a metric must return a finite number\n  where: `metric = net_data:accuracy`\n  found: nan"),
        (torch.tensor(float("-inf")), "found: -inf"),
        (10**400, "a metric must return a finite number"),
        (torch.ones(3), "found: a value of type `Tensor` with the shape [3]"),
        (np.ones((2, 2)), "found: a value of type `ndarray` with the shape [2, 2]"),
        ([0.5], "found: a value of type `list`: [0.5]"),
        (True, "found: a value of type `bool`: True"),
        (1 + 1j, "found: a value of type `complex`: (1+1j)"),
    ],
    ids=str,
)
def test_a_result_without_a_number_is_refused(measure: Callable[..., float], value: Any, found: str) -> None:
    text = refusal(measure, lambda model: value)
    assert found in text
    assert "to do: return a number that is higher for a better model" in text


def test_an_exception_of_a_metric_is_told_with_its_words(measure: Callable[..., float]) -> None:
    def accuracy(model: Any) -> float:
        raise KeyError("labels")

    text = refusal(measure, accuracy)
    assert "the metric failed\n  where: `metric = net_data:accuracy`" in text
    assert "found: KeyError: 'labels'" in text
    assert "print(net_data.accuracy(hatch_lower.load('net')))" in text


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (SystemExit(3), "to do: let `net_data:accuracy` return a number, and not end the process; call"),
        (TypeError("no labels"), "to do: the build calls `net_data:accuracy` with the model as the only argument"),
        (ConnectionRefusedError("no"), "to do: the function of `metric` could not reach a server: download the files"),
    ],
)
def test_advice_fits_the_exception_of_a_metric(measure: Callable[..., float], error: BaseException, hint: str) -> None:
    def accuracy(model: Any) -> float:
        raise error

    assert hint in refusal(measure, accuracy)


def test_a_call_that_the_model_refuses_is_told_with_the_models_advice(measure: Callable[..., float]) -> None:
    text = refusal(measure, lambda model: model["encode"](torch.ones(2)))
    assert "the metric failed" in text
    assert "model `net` has no method `encode`" in text
    assert "to do: name a method of the model" in text


def test_a_metric_that_ends_the_process_is_an_error(measure: Callable[..., float]) -> None:
    def accuracy(model: Any) -> float:
        raise SystemExit(3)

    assert "found: SystemExit: 3" in refusal(measure, accuracy)


def test_a_metric_must_be_a_function(measure: Callable[..., float]) -> None:
    text = refusal(measure, 0.5)
    assert (
        "a metric must be a function\n  where: `metric = net_data:accuracy`\n  found: a value of type `float`" in text
    )


def test_a_metric_that_changes_the_model_is_refused(measure: Callable[..., float], source: CapturedModel) -> None:
    def accuracy(model: Any) -> float:
        assert source.eager is not None
        with torch.no_grad():
            dict(source.eager.named_parameters())["weight"].add_(0)
        return 1.0

    text = refusal(measure, accuracy)
    assert "the metric changes the model\n  where: `metric = net_data:accuracy`\n  found: `weight`" in text


def by_data(weight: torch.Tensor) -> None:
    weight.data.mul_(2)


def by_numpy(weight: torch.Tensor) -> None:
    weight.detach().numpy()[0] = 5


def by_replacement(weight: torch.Tensor) -> None:
    weight.data = weight.data + 1


@pytest.mark.parametrize("change", [by_data, by_numpy, by_replacement])
def test_a_change_of_the_model_that_torch_does_not_count_is_refused(
    change: Callable[[torch.Tensor], None], measure: Callable[..., float]
) -> None:
    changing = capture_model("net", Model(Counting().eval(), {"forward": Method((torch.ones(2),))}), NullReporter())

    def accuracy(model: Any) -> float:
        assert changing.eager is not None
        change(dict(changing.eager.named_parameters())["weight"])
        return 1.0

    with pytest.raises(EntryPointError, match="the metric changes the model") as error:
        measure(accuracy, changing)
    assert error.value.found == "`weight`"


def test_settings_of_torch_that_a_metric_changes_are_restored(measure: Callable[..., float]) -> None:
    def accuracy(model: Any) -> float:
        torch.set_default_dtype(torch.float64)
        return 1.0

    assert measure(accuracy) == 1.0
    assert torch.get_default_dtype() is torch.float32


def test_a_metric_cannot_ask_for_another_recipe(measure: Callable[..., float]) -> None:
    text = refusal(measure, lambda model: model.in_recipe("int8"))
    assert "a metric cannot ask model `net` for a recipe `int8`" in text
