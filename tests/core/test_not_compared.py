"""A recipe whose device the build's machine lacks is built, and no result of the build reads as compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.exports import Workshop, packaged, settings_of, write_folder
from support.faulty import declare, faulty
from support.kept_events import Events

from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.cache.entry import Keep, Record
from hatch_lower.cache.store import Store, open_store
from hatch_lower.cli.check import check
from hatch_lower.cli.explain import explained_model, last_build_lines
from hatch_lower.cli.inspect import inspect
from hatch_lower.cli.page.data import Extras, report_data
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver.contents import find_contents
from hatch_lower.driver.explain import ModelHistory
from hatch_lower.errors import UnavailableError, VerificationError
from hatch_lower.format.constants import TargetEntry
from hatch_lower.format.manifest import read_manifest
from hatch_lower.format.plan import Plan
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import NOT_ASKED
from hatch_lower.hatch.terminal import method_table_lines, not_compared_lines
from hatch_lower.pipeline import fresh_process, verify
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.fresh_process import load_written
from hatch_lower.pipeline.localize.finding import Localization
from hatch_lower.pipeline.lower_model import find_wrong, lower_model, make_recipes, start_build

pytestmark = pytest.mark.torch

GPU = Recipe("gpu", (BackendChoice("reference"),))
BOTH = settings_of(GPU, Recipe("portable"))
REASON = "no `GPU` here"
LINE = f"{REASON}: CPU only"


class Device:
    """Stands for the device of the backend `reference`."""

    is_here = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        load = ReferenceDelegate.load

        def load_there(*arguments: Any, **options: Any) -> object:
            if not self.is_here:
                raise UnavailableError(REASON, where="/a/path", found="CPU only", hint="install a driver")
            return load(*arguments, **options)

        monkeypatch.setattr(ReferenceDelegate, "load", load_there)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def reasons_of(report: ModelReport) -> dict[str, str]:
    """Return the reasons in the manifest, which the rows repeat, and which only recipes without a comparison have."""
    reasons = {name: entry.not_compared for name, entry in report.manifest.recipes.items()}
    assert {row.recipe: row.not_compared for row in report.rows} == reasons
    compared = {each.recipe for each in report.verified}
    assert compared == {name for name, reason in reasons.items() if not reason}
    return reasons


def compare_lines(events: Events) -> list[tuple[str, str]]:
    ends = [event for event in events.seen if (event.stage, event.state) == ("compare", "end")]
    return [(event.subject(), event.detail) for event in ends if event.recipe == "gpu"]


def test_a_recipe_without_its_device_is_built_and_not_compared(
    shop: Workshop, plain: CapturedModel, device: Device
) -> None:
    report, events = shop.build(plain, BOTH)
    assert reasons_of(report) == {"gpu": REASON, "portable": ""}
    assert compare_lines(events) == [("net/gpu.forward", f"not compared: {LINE}")]


def test_the_reason_is_the_same_on_all_machines_without_the_device(
    shop: Workshop, plain: CapturedModel, device: Device
) -> None:
    report, _ = shop.build(plain, settings_of(GPU))
    assert "CPU only" not in str(report.manifest)


def test_a_recipe_without_a_comparison_by_its_settings_reads_so(
    shop: Workshop, plain: CapturedModel, device: Device
) -> None:
    settings = settings_of(replace(GPU, verify=False), Recipe("portable"))
    for _ in ("lowered", "from the cache"):
        report, events = shop.build(plain, settings)
        assert reasons_of(report) == {"gpu": NOT_ASKED, "portable": ""}
    assert events.stages() == {"lookup"}


def test_a_recipe_that_must_be_compared_fails_and_keeps_its_partitions(
    shop: Workshop, plain: CapturedModel, device: Device
) -> None:
    required = settings_of(replace(GPU, without_device="fail"))
    for _ in ("lowered", "from the cache"):
        with pytest.raises(VerificationError, match="the program does not run on this machine") as caught:
            shop.build(plain, required)
    assert caught.value.where == "model `net`, recipe `gpu`"
    assert caught.value.found == LINE
    assert caught.value.hint == (
        "install a driver, build on a machine that can run the program, or write `verify = true` in the recipe: the"
        " recipe is then built without a comparison, and `hatch-lower check` compares on another machine"
    )
    device.is_here = True
    report, _ = shop.build(plain, required)
    assert [row.level for row in report.rows] == [3, 3]
    assert reasons_of(report) == {"gpu": ""}


def test_a_result_from_the_cache_is_still_not_compared(shop: Workshop, plain: CapturedModel, device: Device) -> None:
    shop.build(plain, BOTH)
    report, events = shop.build(plain, BOTH)
    assert reasons_of(report) == {"gpu": REASON, "portable": ""}
    assert compare_lines(events) == [("net/gpu.forward", f"not compared: {LINE}")]
    assert {row.level for row in report.rows} == {3}, "no partition is compiled again"


def test_a_machine_with_the_device_compares_the_kept_result(
    shop: Workshop, plain: CapturedModel, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.build(plain, BOTH)
    device.is_here = True
    monkeypatch.setenv("HATCH_LOWER_CACHE", "frozen")
    report, events = shop.build(plain, BOTH)
    assert reasons_of(report) == {"gpu": "", "portable": ""}
    assert [subject for subject, _ in compare_lines(events)] == ["net/gpu.forward", "net/gpu.embed"]
    assert {row.level for row in report.rows} == {3}


def test_a_compared_result_stays_compared_on_a_machine_without_the_device(
    shop: Workshop, plain: CapturedModel, device: Device
) -> None:
    shop.build(plain, BOTH)
    device.is_here = True
    shop.build(plain, BOTH)
    device.is_here = False
    report, events = shop.build(plain, BOTH)
    assert reasons_of(report) == {"gpu": "", "portable": ""}
    assert events.stages() == {"lookup"}


def make(shop: Workshop, source: CapturedModel, settings: Settings) -> tuple[ModelReport, Mapping[str, str]]:
    """Make the recipes as a worker of a build does."""
    shop.count += 1
    folder = shop.folder / f"build-{shop.count}"
    folder.mkdir()
    store = open_store({"HATCH_LOWER_CACHE_DIR": str(shop.folder / "cache")}, lambda line: None)
    return make_recipes(*start_build(settings, settings.models[0], source, folder, Events(), store))


def test_a_recipe_of_a_worker_without_the_device_is_not_compared_and_made_again_by_a_worker_with_the_device(
    shop: Workshop, plain: CapturedModel, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = settings_of(GPU)
    made, records = make(shop, plain, one)
    assert {row.not_compared for row in made.rows} == {REASON}
    assert reasons_of(shop.build(plain, one)[0]) == {"gpu": REASON}
    device.is_here = True
    made, again = make(shop, plain, one)
    assert again == records
    assert {(row.level, row.not_compared) for row in made.rows} == {(3, "")}
    device.is_here = False
    assert make(shop, plain, one)[0].rows == (), "the record of a comparison counts everywhere"
    assert reasons_of(shop.build(plain, one)[0]) == {"gpu": ""}


class SharedCache:
    """Stands for a cache that machines share."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.blobs: dict[str, bytes] = {}

    def fetch(self, key: str, keep: Keep) -> Record | None:
        record = self.records.get(key)
        if record is None:
            return None

        def write(file: Path, name: str) -> bool:
            file.write_bytes(self.blobs[name])
            return True

        return record if all(keep(name, partial(write, name=name)) for name in record["blobs"]) else None

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        self.records[key] = record
        self.blobs |= {name: path.read_bytes() for name, path in blobs.items()}
        return True


def test_a_shared_result_is_compared_by_the_first_machine_with_the_device(
    shop: Workshop, plain: CapturedModel, device: Device
) -> None:
    shared, one = SharedCache(), settings_of(GPU)

    def build(machine: str, *, is_here: bool) -> ModelReport:
        device.is_here = is_here
        shop.count += 1
        folder = shop.folder / f"build-{shop.count}"
        folder.mkdir()
        store = Store(shop.folder / machine, "on", print, shared)
        return lower_model(*start_build(one, one.models[0], plain, folder, Events(), store))

    assert reasons_of(build("first", is_here=False)) == {"gpu": REASON}
    assert reasons_of(build("second", is_here=False)) == {"gpu": REASON}
    report = build("third", is_here=True)
    assert reasons_of(report) == {"gpu": ""}
    assert {row.level for row in report.rows} == {3}, "the partitions are shared"
    assert reasons_of(build("fourth", is_here=False)) == {"gpu": ""}


def test_a_mismatch_of_another_recipe_heals_beside_a_recipe_without_its_device(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(plan: Path, *others: Any, **named: Any) -> object:
        if plan.stem == "gpu":
            raise UnavailableError(REASON, where="/a/path", found="CPU only", hint="install a driver")
        return load_written(plan, *others, **named)

    monkeypatch.setattr(verify, "load_written", load)
    declare(monkeypatch)
    with faulty(wrong=("relu",)):
        report, _ = shop.build(plain, settings_of(GPU, Recipe("faulty", (BackendChoice("faulty"),))))
    assert reasons_of(report) == {"gpu": REASON, "faulty": ""}
    assert [each.backend for each in report.manifest.recipes["faulty"].methods["embed"].left_out] == ["faulty"]
    assert report.manifest.recipes["gpu"].methods["embed"].left_out == ()


def test_a_recipe_without_its_device_is_not_run_in_a_fresh_process(
    shop: Workshop, plain: CapturedModel, device: Device
) -> None:
    asked: list[str] = []

    class Fresh:
        def check(self, packaged: fresh_process.Packaged, where: str) -> bool:
            asked.append(where)
            return True

    folder = shop.folder / "build"
    folder.mkdir()
    store, fresh = Store(folder, "off", print), Fresh()
    inputs, services = start_build(BOTH, BOTH.models[0], plain, folder, Events(), store, fresh)  # type: ignore[arg-type]
    report = lower_model(inputs, services)
    assert reasons_of(report) == {"gpu": REASON, "portable": ""}
    assert asked == ["model `net`, recipe `portable`"]


def test_a_program_for_another_processor_is_not_compared(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_process, "unsupported_reason", lambda target: "it needs sm_90, this GPU is sm_80")
    monkeypatch.setattr(Plan, "target", TargetEntry("Linux", "x86_64", "x86-64"))
    report, events = shop.build(plain, settings_of(GPU))
    what = "the build's machine lacks the processor or the device of the program"
    assert reasons_of(report) == {"gpu": what}
    assert compare_lines(events) == [("net/gpu.forward", f"not compared: {what}: it needs sm_90, this GPU is sm_80")]


def test_the_search_for_a_wrong_operation_takes_a_missing_device_for_no_refusal(
    shop: Workshop, plain: CapturedModel, device: Device
) -> None:
    one = settings_of(GPU)
    store = Store(shop.folder / "cache", "on", print)
    inputs, services = start_build(one, one.models[0], plain, shop.folder, Events(), store)
    with pytest.raises(UnavailableError, match=REASON):
        find_wrong(inputs, services, Localization(60.0))


def test_onnx_runtime_without_the_provider_of_a_recipe_is_not_compared(shop: Workshop, plain: CapturedModel) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("the installed ONNX Runtime has the provider")
    pytest.importorskip("onnx")
    choice = BackendChoice("onnxruntime", {"providers": ["CUDAExecutionProvider"]})
    report, events = shop.build(plain, settings_of(Recipe("gpu", (choice,))))
    what = "ONNX Runtime does not run on `CUDAExecutionProvider` here"
    assert reasons_of(report) == {"gpu": what}
    ((subject, detail),) = compare_lines(events)
    assert subject == "net/gpu.forward"
    assert detail.startswith(f"not compared: {what}: ONNX Runtime as installed has ")


def test_the_table_and_a_warning_name_the_recipes(shop: Workshop, plain: CapturedModel, device: Device) -> None:
    settings = settings_of(GPU, replace(GPU, name="more"), Recipe("portable", verify=False))
    rows = shop.build(plain, settings)[0].rows
    lines = method_table_lines(rows)
    assert [line.split("  ")[-1] for line in lines[1:7]] == [
        *["built, not compared"] * 2,
        *["reused, not compared"] * 2,
        *["nothing to lower, not compared"] * 2,
    ]
    assert lines[7:] == [f"not compared with eager: net/portable: {NOT_ASKED}"]
    assert list(not_compared_lines(rows, by_settings=False)) == [
        f"not compared with eager: net/gpu, net/more: {REASON};"
        " compare with `hatch-lower check` on a machine with the device"
    ]


@pytest.fixture
def folder(shop: Workshop, device: Device) -> Path:
    """Return a folder of lowered models whose recipe `gpu` is not compared."""
    return write_folder(shop.folder / "_lowered", packaged(shop, settings=BOTH))


def test_the_manifest_inspect_and_the_page_name_the_recipe(folder: Path) -> None:
    manifest = read_manifest((folder / "manifest.json").read_bytes(), "manifest.json")
    assert {name: entry.not_compared for name, entry in manifest.models["net"].recipes.items()} == {
        "gpu": REASON,
        "portable": "",
    }
    shown = CliRunner().invoke(inspect, [str(folder)])
    assert f"  recipe  not compared with eager in the build, because\n  gpu     {REASON}\n" in shown.output
    (report,) = json.loads(CliRunner().invoke(inspect, [str(folder), "--json"]).output)
    recipes = report["models"]["net"]["recipes"]
    assert {name: recipe["not_compared"] for name, recipe in recipes.items()} == {"gpu": REASON, "portable": ""}
    data = report_data(folder, find_contents(folder), Extras())
    assert data["models"][0]["recipes"]["gpu"]["not_compared"] == REASON


@pytest.mark.parametrize("is_here", [False, True])
def test_check_says_that_the_build_has_not_compared_the_recipe(folder: Path, device: Device, is_here: bool) -> None:
    device.is_here = is_here
    done = CliRunner().invoke(check, [str(folder)])
    here = "this check compares" if is_here else "nor does this check"
    assert f"the build has not compared net, gpu with eager ({REASON}); {here}\n" in done.output
    assert "net, portable with eager" not in done.output
    rows = json.loads(CliRunner().invoke(check, [str(folder), "--json"]).output)
    assert {row["recipe"]: row["not_compared"] for row in rows} == {"gpu": REASON, "portable": ""}


def test_explain_names_the_recipe(shop: Workshop, plain: CapturedModel, device: Device) -> None:
    report, _ = shop.build(plain, BOTH)
    told = explained_model(ModelHistory(0, rows=report.rows, verified=report.verified))
    assert [row["not_compared"] for row in told["rows"]] == [REASON, REASON, "", ""]
    lines = [line.strip() for line in last_build_lines("net", told)]
    assert f"forward for gpu was not compared: {REASON}" in lines
    assert not any(line.startswith("forward for portable was not compared") for line in lines)
