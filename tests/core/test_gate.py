"""The gate: the metric of each packaged recipe against eager's, in every way by which a build comes to a recipe."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.exports import Workshop, packaged_report, settings_of, write_folder
from support.kept_events import Events
from support.venv import REPOSITORY

from hatch_lower.cli.inspect import inspect
from hatch_lower.cli.measure.exact import model_figures
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.cli.measure.limits import exact_row, figure_text
from hatch_lower.cli.page.data import Extras, report_data
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver.contents import find_contents
from hatch_lower.driver.process import Child
from hatch_lower.driver.protocol import ChildRequest, answer_of
from hatch_lower.driver.sbom.document import with_metrics
from hatch_lower.driver.worker import answered_error
from hatch_lower.errors import EntryPointError, LowerError, VerificationError
from hatch_lower.events import Event
from hatch_lower.format.manifest import MetricEntry, read_manifest
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import NOT_ASKED, ModelResult, metric_text
from hatch_lower.hatch.terminal import metric_lines
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.comparison import verify_method
from hatch_lower.pipeline.export_key import recipe_row
from hatch_lower.pipeline.gate import drop_advice, with_place
from hatch_lower.pipeline.verify import MethodError
from hatch_lower.runtime.numbers import Tolerance

pytestmark = pytest.mark.torch

REFERENCE, PORTABLE = Recipe("default", (BackendChoice("reference"),)), Recipe("portable")
NAME = "net_data:accuracy"


@pytest.fixture
def name_metric(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], object]], None]:
    """Makes a function the metric."""

    def name(function: Callable[[Any], object]) -> None:
        module = types.ModuleType("net_data")
        module.accuracy = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "net_data", module)

    return name


def gated(*recipes: Recipe, max_drop: float = 0.01) -> Settings:
    settings = settings_of(*(recipes or (REFERENCE, PORTABLE)))
    (model,) = settings.models
    return replace(settings, models=(replace(model, metric=NAME, max_drop=max_drop),))


def by_recipe(**values: float) -> Callable[[Any], float]:
    """Return a metric with a number for each recipe, and 1 for the others and eager."""
    return lambda model: values.get(model.recipe, 1.0)


def metrics_of(report: ModelReport) -> dict[str, MetricEntry | None]:
    return {name: entry.metric for name, entry in report.manifest.recipes.items()}


def ends_of(events: Events) -> list[tuple[str, str, str]]:
    stages = ("metric", "gate")
    return [
        (each.stage, each.subject(), each.detail)
        for each in events.seen
        if each.stage in stages and each.state == "end"
    ]


def test_a_metric_calls_the_packaged_program_like_an_installed_model(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    seen = []

    def accuracy(model: Any) -> float:
        images = torch.linspace(-1, 1, 20).reshape(5, 4)
        seen.append((model.name, model.recipe, model.recipes, type(model["forward"]).__name__))
        first, second = (model(images, scale=2.0)["count"] for _ in range(2))
        assert model.embed(images[:3]).shape == (3,)
        return float(first + second)

    name_metric(accuracy)
    report, events = shop.build(plain, gated())
    recipes = ("default", "portable")
    assert [row[:3] for row in seen] == [("net", "eager", ("eager",)), *(("net", each, recipes) for each in recipes)]
    assert metrics_of(report) == dict.fromkeys(recipes, MetricEntry(NAME, 3.0, 3.0, 0.01))
    assert ends_of(events) == [
        ("metric", "net", f"{NAME} of eager: 3"),
        ("gate", "net/default", f"{NAME}: 3, eager 3, allowed drop 0.01"),
        ("gate", "net/portable", f"{NAME}: 3, eager 3, allowed drop 0.01"),
    ]


def test_a_recipe_below_its_limit_fails_the_build_with_all_numbers(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    name_metric(by_recipe(default=0.9, portable=0.96))
    loose = replace(PORTABLE, max_drop=0.05)
    with pytest.raises(VerificationError) as caught:
        shop.build(plain, gated(REFERENCE, loose))
    assert str(caught.value) == (
        "the metric of a packaged recipe is lower than eager's by more than `max-drop`\n"
        "  where: model `net`, `metric = net_data:accuracy`\n"
        "  found: recipe `default`: 0.9, eager 1: a drop of 0.1; `max-drop` is 0.01\n"
        "  to do: on the inputs of the metric the program computes other numbers than eager: name some of these inputs"
        " in `verify-inputs`, and `hatch-lower localize net` finds the first wrong operation; if the loss is"
        " acceptable, raise `max-drop` of the model or of the recipe"
    )


def test_a_recipe_of_low_precision_gets_advice_about_its_calibration(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    name_metric(by_recipe(default=0.9))
    with pytest.raises(VerificationError, match=r"a drop of 0\.1") as caught:
        shop.build(plain, gated(replace(REFERENCE, precision="int8")))
    assert caught.value.hint == (
        "name typical inputs in `calibrate`; let `hatch-lower precision net --recipe default --write` find the layers"
        " that must stay in float32; or write a higher precision; if the loss is acceptable, raise `max-drop` of the"
        " model or of the recipe"
    )


@pytest.mark.parametrize(
    ("precision", "start"),
    [("int8", "name more, or more typical, inputs in `calibrate`"), ("bfloat16", "let `hatch-lower precision net")],
)
def test_advice_for_a_drop_names_calibrate_only_where_a_recipe_uses_the_inputs(
    plain: CapturedModel, precision: Any, start: str
) -> None:
    (model,) = gated().models
    assert drop_advice(replace(model, calibrate="m:f"), [replace(REFERENCE, precision=precision)]).startswith(start)


@pytest.mark.parametrize(("eager", "value"), [(0.97, 0.96), (0.3, 0.29), (1.0, 1.5)])
def test_a_drop_of_the_limit_itself_passes(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None], eager: float, value: float
) -> None:
    # in binary 0.97 - 0.96 > 0.01
    name_metric(by_recipe(eager=eager, default=value))
    report, _ = shop.build(plain, gated(REFERENCE))
    assert metrics_of(report) == {"default": MetricEntry(NAME, value, eager, 0.01)}


def test_a_failed_gate_leaves_no_operation_out_and_keeps_what_was_lowered(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    name_metric(by_recipe(default=0.9))
    for _ in ("lowered", "from the cache"):
        with pytest.raises(VerificationError, match=r"a drop of 0\.1"):
            shop.build(plain, gated(REFERENCE))
    name_metric(by_recipe())
    report, events = shop.build(plain, gated(REFERENCE))
    assert events.stages() == {"lookup", "metric", "gate"}
    assert report.manifest.recipes["default"].methods["forward"].left_out == ()


def test_numbers_of_an_earlier_build_are_not_reused(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    name_metric(by_recipe())
    first, _ = shop.build(plain, gated())
    name_metric(by_recipe(eager=0.5, default=0.5, portable=0.495))
    second, events = shop.build(plain, gated())
    assert {row.level for row in second.rows} == {2}
    assert events.stages() == {"lookup", "metric", "gate"}
    assert metrics_of(second) == {
        "default": MetricEntry(NAME, 0.5, 0.5, 0.01),
        "portable": MetricEntry(NAME, 0.495, 0.5, 0.01),
    }
    assert metrics_of(first) != metrics_of(second)
    without, _ = shop.build(plain, settings_of(REFERENCE, PORTABLE))
    assert {row.level for row in without.rows} == {2}
    assert metrics_of(without) == {"default": None, "portable": None}


def test_a_known_program_is_measured_from_its_packaged_files(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    def total(model: Any) -> float:
        return float(model.embed(torch.linspace(0, 1, 12).reshape(3, 4)).sum())

    name_metric(total)
    first, _ = shop.build(plain, gated())
    second, events = shop.build(plain, gated())
    assert events.stages() == {"lookup", "metric", "gate"}
    assert metrics_of(first) == metrics_of(second)


def test_a_recipe_that_is_not_compared_is_not_measured(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    name_metric(by_recipe(default=0.1))
    report, events = shop.build(plain, gated(replace(REFERENCE, verify=False), PORTABLE))
    assert metrics_of(report) == {"default": None, "portable": MetricEntry(NAME, 1.0, 1.0, 0.01)}
    assert [event.detail for event in events.seen if event.stage == "gate" and event.state == "note"] == [
        f"`{NAME}` does not measure the recipe: {NOT_ASKED}"
    ]


def test_a_metric_without_a_recipe_to_measure_is_not_called(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    name_metric(lambda model: pytest.fail("called"))
    report, events = shop.build(plain, gated(replace(REFERENCE, verify=False)))
    assert metrics_of(report) == {"default": None}
    assert not events.stages() & {"metric", "gate"}


def test_an_error_of_a_metric_names_the_recipe(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    name_metric(lambda model: 1.0 if model.recipe == "eager" else None)
    with pytest.raises(EntryPointError, match="a metric must return a number") as caught:
        shop.build(plain, gated(REFERENCE))
    assert caught.value.where == f"model `net`, recipe `default`, `metric = {NAME}`"


def test_a_call_that_the_program_refuses_is_told_with_the_programs_words(
    shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None]
) -> None:
    name_metric(lambda model: model.embed(torch.ones(2, 4)).sum())
    with pytest.raises(EntryPointError) as caught:
        shop.build(plain, gated(REFERENCE))
    assert str(caught.value) == (
        "the metric failed\n"
        f"  where: model `net`, recipe `default`, `metric = {NAME}`\n"
        "  found: InputError: method `embed` takes float32[3, 4] for `image`: float32[2, 4]: dimension 0 is 2, which"
        " must be 3\n"
        "  to do: convert the argument, or export the method for arguments of this kind"
    )


def test_numbers_that_differ_in_late_digits_are_told_in_full() -> None:
    assert metric_text(29 / 30, 1.0) == "0.966667, eager 1"
    assert metric_text(0.1234567, 0.1234568) == "0.1234567, eager 0.1234568"
    assert metric_text(1 / 3, 1 / 3) == "0.333333, eager 0.333333"


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x * 2, "best": x.argmax(-1)}


def compared(change: Callable[[dict[str, torch.Tensor]], object]) -> tuple[str, ...]:
    """Compare eager with changed outputs of eager, as for a recipe of low precision with a metric; return the notes."""
    source = capture_model("net", Model(Twice().eval(), {"forward": Method((torch.randn(3, 4),))}), Events())

    def lowered(x: torch.Tensor) -> object:
        return change(Twice()(x))

    method, tolerance = source.methods[0], Tolerance()
    return verify_method(source, method, lowered, bool, recipe="int8", tolerance=tolerance, gated=True).notes


def test_numbers_of_a_gated_recipe_may_differ_and_the_build_says_by_how_much() -> None:
    notes = compared(lambda given: {"sum": given["sum"] + 0.5, "best": 3 - given["best"]})
    assert "`output['sum']` differs from eager by up to 0.5: the metric judges the recipe" in notes
    (other,) = (note for note in notes if note.startswith("`output['best']`"))
    assert other.endswith("of 3 values are different: the metric judges the recipe")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda given: {**given, "sum": given["sum"].double()}, "dtype float32 in eager, float64 lowered"),
        (lambda given: {**given, "sum": given["sum"][:2]}, r"shape \[3, 4\] in eager, \[2, 4\] lowered"),
        (lambda given: {**given, "sum": given["sum"] * float("nan")}, "12 of 12 values are wrong"),
        (lambda given: {**given, "sum": given["sum"] + float("inf")}, "largest absolute error inf"),
        (lambda given: list(given.values()), "have another structure than eager's"),
        (lambda given: {**given, "sum": given["sum"] * 3}, "a root mean square of the errors of 0.5"),
        (lambda given: {**given, "sum": given["sum"].flip(0)}, "a root mean square of the errors of 0.5"),
    ],
)
def test_a_gated_recipe_has_the_form_and_size_of_eagers_outputs(
    change: Callable[[dict[str, torch.Tensor]], object], found: str
) -> None:
    with pytest.raises(VerificationError, match=found):
        compared(change)


def test_a_second_call_of_a_gated_recipe_leaves_the_first_outputs_unchanged() -> None:
    kept = torch.zeros(3, 4)
    with pytest.raises(VerificationError, match="after a second call"):
        compared(lambda given: {**given, "sum": kept.copy_(given["sum"])})


def test_the_metric_judges_a_gated_recipe_also_in_the_key_of_its_record() -> None:
    low = replace(PORTABLE, precision="int8")
    (model,) = gated(low).models
    assert recipe_row(model, low)["gated"] is True
    assert recipe_row(replace(model, metric=""), low)["gated"] is False
    assert recipe_row(model, PORTABLE)["gated"] is False
    assert recipe_row(model, low) == recipe_row(model, replace(low, max_drop=0.5)), "each build applies the limit"


def test_a_mismatch_in_a_low_precision_without_a_metric_advises_a_metric() -> None:
    error = VerificationError("other numbers", where="here", hint="raise `rtol`")
    low = replace(PORTABLE, precision="int8")
    assert MethodError(error, PORTABLE, "forward").hint == MethodError(error, low, "forward", judged=True).hint
    advised = MethodError(error, low, "forward").hint
    assert advised == "give the model a `metric`, which then judges the numbers of the recipe; raise `rtol`"


@pytest.fixture
def measured_folder(shop: Workshop, plain: CapturedModel, name_metric: Callable[..., None], tmp_path: Path) -> Path:
    name_metric(by_recipe(eager=0.97, default=0.965))
    report, _ = shop.build(plain, gated(REFERENCE))
    return write_folder(tmp_path / "_lowered", packaged_report(report))


def test_numbers_stand_in_manifest_inspection_page_and_bench(measured_folder: Path) -> None:
    entry = read_manifest((measured_folder / "manifest.json").read_bytes(), "manifest").models["net"].recipes["default"]
    assert entry.metric == MetricEntry(NAME, 0.965, 0.97, 0.01)
    folders = find_contents(measured_folder)
    facts = {"name": NAME, "value": 0.965, "eager": 0.97, "max_drop": 0.01}
    page = report_data(measured_folder, folders, Extras())
    assert page["models"][0]["recipes"]["default"]["metric"] == facts
    figures = dict(model_figures(folders[0], "net", {}))
    assert figures[FigureSubject("net", "default")]["metric"] == 0.965
    shown = CliRunner().invoke(inspect, [str(measured_folder)]).output
    assert [line.split() for line in shown.splitlines() if NAME in line] == [["default", NAME, "0.965", "0.97", "0.01"]]


@pytest.mark.parametrize(
    ("first", "second", "outcome"), [(0.9, 0.9, "same"), (0.9, 0.9001, "worse"), (-1.0, -2.0, "better")]
)
def test_bench_compares_the_metric_exactly(first: float, second: float, outcome: str) -> None:
    row = exact_row(FigureSubject("net", "default"), "metric", first, second, ())
    assert (row.outcome, figure_text("metric", second)) == (outcome, f"{second:.6g}")


def test_a_models_card_has_the_metric_after_the_projects_own_numbers() -> None:
    metric = {"name": NAME, "value": 0.965, "eager": 0.97, "max_drop": 0.01}
    entry = {"order": ["int8", "portable"], "recipes": {"int8": {"metric": metric}, "portable": {}}}
    own = {"type": "recall", "value": "0.5"}
    card = {"quantitativeAnalysis": {"performanceMetrics": [own], "graphics": {}}}
    assert with_metrics(card, entry)["quantitativeAnalysis"] == {
        "performanceMetrics": [
            own,
            {"type": NAME, "value": "0.97", "slice": "eager"},
            {"type": NAME, "value": "0.965", "slice": "recipe int8"},
        ],
        "graphics": {},
    }
    assert with_metrics(card, {"order": ["portable"], "recipes": {"portable": {}}}) == card


def test_the_output_of_a_build_has_a_line_for_each_measured_recipe() -> None:
    metric = {"name": NAME, "value": 0.965, "eager": 0.97, "max_drop": 0.01}
    entry = {"order": ["int8", "portable"], "recipes": {"int8": {"metric": metric}, "portable": {}}}
    result = ModelResult("net", entry, (), (), (), {}, "2.13.0")
    assert list(metric_lines([result])) == [f"metric of net/int8: {NAME} 0.965, eager 0.97, allowed drop 0.01"]


SPARE = """
import json, os, signal, sys
from pathlib import Path

import torch

from hatch_lower.pipeline.fresh_process import start_fresh
from hatch_lower.pipeline.metric_process import start_spare

work = Path(sys.argv[1])
sys.path.insert(0, str(work))
fresh = start_fresh(spare=start_spare())

import hatch_lower
from hatch_lower.cache.store import Store
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.errors import LowerError
from hatch_lower.events import NullReporter
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.gate import drop_advice
from hatch_lower.pipeline.lower_model import lower_model, start_build

torch.set_num_threads(1)
(work / "net_data.py").write_text('''
import os, signal, sys

def loaded(model):
    return 0.0 if model.recipe != "eager" and "leftover" in sys.modules else 1.0 + 0 * float(model(MARK)[0])

def ending(model):
    if model.recipe != "eager":
        os._exit(3)
    return 1.0

def failing(model):
    if model.recipe != "eager":
        raise ValueError("no labels")
    return 1.0

def leaving(model):
    if model.recipe != "eager":
        process = os.fork()
        if not process:
            os.closerange(0, 3)
            signal.alarm(600)
            signal.pause()
        open("pid", "w").write(str(process))
    return 1.0
'''.replace("MARK", "__import__('torch').ones(3)"))
sys.modules["leftover"] = sys  # of the model's code

method = hatch_lower.Method((torch.ones(3),))
source = capture_model("net", hatch_lower.Model(torch.nn.ReLU().eval(), {"forward": method}), NullReporter())

def said(metric):
    model = ModelSettings("net", "net:export", "net", ("default",), metric=f"net_data:{metric}")
    folder = work / metric
    folder.mkdir()
    settings = Settings(work, "net", "1", (model,), (Recipe("default"),))
    try:
        inputs = start_build(settings, model, source, folder, NullReporter(), Store(work / "c", "off", print), fresh)
        return lower_model(*inputs).manifest.recipes["default"].metric.value
    except LowerError as error:
        return str(error)

told = [said("loaded"), said("ending"), said("failing"), said("leaving")]
os.kill(int(Path("pid").read_text()), signal.SIGKILL)
print(json.dumps(told))
"""


@pytest.mark.processes
def test_a_recipe_is_measured_in_a_process_that_has_not_run_the_models_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPARE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    number, ended, failed, left = json.loads(done.stdout)
    assert number == 1.0
    assert left == 1.0  # the metric's own process, which has not ended, is not waited for
    assert ended == (
        "the process that measures a recipe has ended\n"
        "  where: model `net`, recipe `default`, `metric = net_data:ending`\n"
        "  found: the process ended: exit status 3\n"
        "  to do: the metric itself, or a delegate that the metric calls, ends the process; call the metric by hand:"
        ' build without `metric` and `max-drop`, install the wheel, and run `python -c "import hatch_lower, net_data;'
        " print(net_data.ending(hatch_lower.load('net', recipe='default')))\"`"
    )
    assert failed == (
        "the metric failed\n"
        "  where: model `net`, recipe `default`, `metric = net_data:failing`, net_data.py:14\n"
        "  found: ValueError: no labels\n"
        "  to do: call the metric by hand: build without `metric` and `max-drop`, install the wheel, and run"
        ' `python -c "import hatch_lower, net_data;'
        " print(net_data.failing(hatch_lower.load('net', recipe='default')))\"`"
    )


@pytest.mark.parametrize("name", ["metric", "gate"])
def test_a_time_limit_names_the_metric(tmp_path: Path, name: str) -> None:
    process: Any = types.SimpleNamespace(returncode=-15)
    nothing: Any = None
    request = ChildRequest(gated(REFERENCE), "net", tmp_path, "lower")
    child = Child(request, process, nothing, 0.0, [Event(name, "start", "net", "default")], timed_out=True)
    error = answer_of(child.exit(), 60)
    assert isinstance(error, LowerError)
    assert error.what == "the build process took longer than its time limit of 60 s"
    assert error.where == f"model `net`, stage `{name}` of `net/default`, `metric = {NAME}`"


def test_a_metric_that_the_time_limit_ends_prints_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    failed = EntryPointError("the metric failed")
    failed.__cause__ = SystemExit(128 + signal.SIGTERM)
    with pytest.raises(EntryPointError) as caught, with_place("model `net`, eager"):
        raise failed
    answered_error(ChildRequest(gated(REFERENCE), "net", tmp_path, "lower"), caught.value)
    assert capfd.readouterr() == ("", "")


def test_the_guide_quotes_the_error_of_a_drop() -> None:
    page = (REPOSITORY / "docs" / "guides" / "accuracy.md").read_text()
    model = ModelSettings("digits", "digits:export", "digits", ("int8",), calibrate="digits.data:calibration")
    assert f"  to do: {drop_advice(model, [Recipe('int8', precision='int8')])}\n" in page


@pytest.mark.parametrize("status", [3, -11])
def test_a_metric_that_ends_the_build_process_is_named_with_a_call_by_hand(tmp_path: Path, status: int) -> None:
    process: Any = types.SimpleNamespace(returncode=status)
    nothing: Any = None
    request = ChildRequest(gated(REFERENCE), "net", tmp_path, "lower")
    error = answer_of(Child(request, process, nothing, 0.0, [Event("metric", "start", "net")]).exit(), 60)
    assert isinstance(error, LowerError)
    assert error.hint.startswith(
        "the metric ended the process; call the metric by hand: build without `metric` and `max-drop`"
    )
