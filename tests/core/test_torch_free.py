"""Recipes that need torch and those that do not: what they require, and the promise `torch-free`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.exports import Workshop, settings_of
from support.plans import method, op, plan_value, tensor_input, v

from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver import worker
from hatch_lower.driver.lookup import LookupResult, ResultLookup, keeps_promises
from hatch_lower.driver.protocol import ChildRequest
from hatch_lower.errors import BackendError, ConfigError
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import ModelResult
from hatch_lower.pipeline.emit.constants import write_constants
from hatch_lower.pipeline.fresh_process import Packaged, find_problem
from hatch_lower.runtime.arrays import ArrayOperator
from hatch_lower.runtime.numbers import Tolerance
from hatch_lower.runtime.numpy_operators import NUMPY_OPERATORS

pytestmark = pytest.mark.torch

SOURCE = """\
import torch
from hatch_lower import Method, Model

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = torch.relu(self.linear(x))
        y = y.exp()
        return torch.relu(self.linear(y))

def export():
    torch.manual_seed(0)
    return Model(Net(), {"forward": Method((torch.ones(2, 4),))})
"""
WITH_BESSEL = {"y.exp()": "torch.special.bessel_j0(y)"}
ONNX = Recipe("default", (BackendChoice("onnxruntime"),), verify=False)
PORTABLE = Recipe("portable", verify=False)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Return a place to lower models, with a cache of its own."""
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "shop"
    folder.mkdir()
    return Workshop(folder)


def settings(*recipes: Recipe, promised: Sequence[str] = (), dependencies: Sequence[str] | None = None) -> Settings:
    return replace(
        settings_of(*recipes, check=False),
        torch_free=tuple(promised),
        dependencies=None if dependencies is None else tuple(dependencies),
    )


def required(report: ModelReport) -> dict[str, list[str]]:
    return {name: list(recipe.requirements) for name, recipe in report.manifest.recipes.items()}


def test_a_program_that_its_engine_takes_whole_requires_no_torch(shop: Workshop) -> None:
    report, _ = shop.build(shop.capture(SOURCE), settings(ONNX, PORTABLE))
    engine = "onnxruntime>=1.23,<2"
    assert required(report) == {
        "default": ["hatch-lower>=0.1", "numpy>=1.26", engine],
        "portable": ["hatch-lower>=0.1", "torch>=2.11"],
    }
    report, _ = shop.build(shop.capture(SOURCE, WITH_BESSEL), settings(ONNX))
    assert required(report) == {"default": ["hatch-lower>=0.1", engine, "torch>=2.11"]}


def test_a_project_of_torch_free_recipes_need_not_depend_on_torch(shop: Workshop) -> None:
    declared = ["hatch-lower>=0.1", "onnxruntime>=1.23,<2", "numpy>=1.26"]
    shop.build(shop.capture(SOURCE), settings(ONNX, dependencies=declared))
    reference = replace(ONNX, backends=(BackendChoice("reference"),))
    for recipe in (reference, replace(ONNX, imports=("json",))):
        with pytest.raises(ConfigError) as caught:
            shop.build(shop.capture(SOURCE), settings(recipe, dependencies=declared))
        assert caught.value.found == "`torch>=2.11`: not among the dependencies"


def test_numpy_is_asked_for_with_the_engine_before_anything_is_lowered(shop: Workshop) -> None:
    with pytest.raises(ConfigError) as caught:
        shop.build(shop.capture(SOURCE), settings(ONNX, dependencies=["hatch-lower>=0.1"]))
    assert caught.value.found == (
        "`numpy>=1.26`: not among the dependencies\n`onnxruntime>=1.23,<2`: not among the dependencies"
    )


def test_a_promise_is_refused_with_the_operation_and_its_source_line(shop: Workshop) -> None:
    source = shop.capture(SOURCE, WITH_BESSEL)
    with pytest.raises(BackendError) as caught:
        shop.build(source, settings(ONNX, promised=["default"]))
    assert str(caught.value) == (
        "the recipe is `torch-free`, but its program needs torch\n"
        "  where: model `net`, recipe `default`\n"
        "  found: `aten.special_bessel_j0.default` in method `forward` at net.py:11: onnxruntime: ONNX"
        " Runtime is not known to give eager's results for `aten.special_bessel_j0.default` with any dtypes\n"
        "  to do: write the model without these operations, or in a form that a backend takes; or set `torch-free` of"
        " the recipe to false"
    )


def test_the_reasons_of_an_operation_in_the_code_are_one_list(shop: Workshop) -> None:
    # a linear layer is a transposition and a product
    half = "w, b = self.linear.weight, self.linear.bias; x, w, b = (each.bfloat16() for each in (x, w, b))"
    half += "; y = torch.nn.functional.linear(x, w, b).float()"
    source = shop.capture(SOURCE, {"y = torch.relu(self.linear(x))": half})
    with pytest.raises(BackendError) as caught:
        shop.build(source, settings(ONNX, promised=["default"]))
    assert (
        ": onnxruntime: `aten_permute_default` has the type bfloat16; onnxruntime: `aten_addmm_default` has the type"
        " bfloat16\n"
    ) in str(caught.value)


def test_a_promise_is_kept_of_what_an_earlier_build_has_lowered(shop: Workshop) -> None:
    source = shop.capture(SOURCE, WITH_BESSEL)
    shop.build(source, settings(ONNX))
    with pytest.raises(BackendError, match=r"`aten.special_bessel_j0.default` in method `forward` at net.py:11"):
        shop.build(source, settings(ONNX, promised=["default"]))
    kept, _ = shop.build(shop.capture(SOURCE), settings(ONNX, promised=["default"]))
    assert required(kept)["default"][1] == "numpy>=1.26"


def test_a_stored_result_counts_only_if_it_keeps_the_promise() -> None:
    def result(*requirements: str) -> ModelResult:
        recipes = {"default": {"requirements": list(requirements)}, "other": {"requirements": ["torch>=2.11"]}}
        return ModelResult("net", {"recipes": recipes}, (), (), (), {}, "2.13.0")

    promised = settings(ONNX, promised=["default"])
    assert keeps_promises(promised, result("hatch-lower>=0.1", "numpy>=1.26"))
    assert not keeps_promises(promised, result("hatch-lower>=0.1", "Torch<3,>=2.13"))
    assert keeps_promises(settings(ONNX), result("torch>=2.11"))


def test_a_child_process_does_not_take_a_result_that_breaks_the_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ModelResult("net", {"recipes": {"default": {"requirements": ["torch>=2.11"]}}}, (), (), (), {}, "2.13.0")
    store = Store(tmp_path, "on", print)
    monkeypatch.setattr(ResultLookup, "look_up", lambda self, key: LookupResult(key, store, made))
    monkeypatch.setattr(LookupResult, "report", "the report")

    def found(*promised: str) -> object:
        request = ChildRequest(settings(ONNX, promised=promised), "net", tmp_path, "lower", (), (), (), -1)
        return worker.look_again(request, store)

    assert [found(), found("default")] == ["the report", None]


def test_all_that_needs_torch_is_named(shop: Workshop) -> None:
    source = shop.capture(SOURCE, {"y.exp()": "y.sin() + y.cos()"})
    recipe = Recipe("default", (BackendChoice("reference"),), imports=("json",), verify=False)
    with pytest.raises(BackendError) as caught:
        shop.build(source, settings(recipe, promised=["default"]))
    lines = caught.value.found.split("\n")
    assert lines[0] == "the module `json`, which registers torch operators"
    assert lines[1].startswith("the delegate `reference` in method `forward` at net.py:10")


def test_a_torch_free_program_is_verified_on_numpys_arrays_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    viewing = method([tensor_input(4)], [op("aten.view.default", v(0), [2, 2], out=1)], v(1))
    plan = tmp_path / "plan.json"
    plan.write_bytes(canonical_json(plan_value(forward=viewing)))
    x = torch.arange(4.0)
    examples = tmp_path / "examples.safetensors"
    write_constants(examples, {"forward/input/0": x, "forward/output/0": x.reshape(2, 2)})
    packaged = Packaged(tmp_path, plan, None, (), examples, ("forward",), Tolerance())
    assert find_problem(packaged) == ""
    wrong = ArrayOperator(lambda self, size: self.reshape(size) + 1)
    monkeypatch.setattr(
        "hatch_lower.runtime.numpy_arrays.NUMPY_OPERATORS", {**NUMPY_OPERATORS, "aten.view.default": wrong}
    )
    assert find_problem(packaged).startswith(
        "method `forward` on arrays of NumPy: `output`: largest absolute error 1, "
    )
