"""The parent's half of a build: child processes, what they see, how they end, and what becomes of their reports."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Client, Listener
from multiprocessing.process import current_process
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import is_running, wait_for

import hatch_lower.driver.process
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BenchTable, ModelLimits
from hatch_lower.config.timed import recipe_digest
from hatch_lower.driver.build import build
from hatch_lower.driver.child_guards import shorten_sockets
from hatch_lower.driver.context import BuildContext, CacheNotes, ProjectView, build_context, open_cache, write_site
from hatch_lower.driver.environment import child_environment
from hatch_lower.driver.lookup import LookupResult
from hatch_lower.driver.process import Child, tell_of_long_stage
from hatch_lower.driver.protocol import (
    Answer,
    ChildExit,
    ChildRequest,
    answer_of,
    output_tail,
    without_errors,
    write_answer,
)
from hatch_lower.driver.worker import enter_folder, unexpected_error
from hatch_lower.errors import CaptureError, ConfigError, EntryPointError, LowerError, ProcessError
from hatch_lower.events import Event, NullReporter, SaidOnce
from hatch_lower.format.codec import decode, encode, read_record, write_record
from hatch_lower.format.evidence import (
    EVIDENCE_FILE,
    Evidence,
    MeasuredAccuracy,
    MeasuredCall,
    Measurement,
    write_evidence,
)
from hatch_lower.format.manifest import ModelEntry, read_manifest
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import MethodRow, ModelResult, PayloadFile
from hatch_lower.pipeline.checkpoint import LocalSource
from hatch_lower.pipeline.exceptions import describe_exception, is_out_of_memory
from hatch_lower.runtime.torch_private.unimported import tried_versions

MODELS = """
import json, os, stub, subprocess, sys, tempfile, time
from importlib.metadata import entry_points, version
import torch
from hatch_lower import Method, Model


def small():
    assert version("shop-floor") == "1.5"
    print("loading the weights")
    return Model(torch.nn.Linear(2, 2).eval(), {"forward": Method((torch.zeros(1, 2),))})


small2 = small


def broken():
    raise ValueError("no weights")


def sleeping():
    helper = subprocess.Popen(["sleep", "600"])
    print("pids", os.getpid(), helper.pid)
    time.sleep(600)


def leaving():
    os._exit(7)


def wandering():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    os.closerange(3, 256)
    global held
    held = [tempfile.TemporaryFile() for _ in range(20)]
    return small()


class Patching(torch.nn.Module):
    def forward(self, x):
        json.dumps = os.write = None
        return x + 1


def patching():
    return Patching(), (torch.zeros(1, 2),)


def silenced():
    sys.stderr.close()
    raise ValueError("no weights")


def killing():
    os.kill(os.getpid(), 0)
    os.killpg(0, 9)
"""

STUB = """
import hashlib, os, random, sys
import hatch_lower.pipeline.lower_model
import torch
from hatch_lower.events import stage
from hatch_lower.format.constants import TargetEntry
from hatch_lower.format.manifest import FileEntry, MethodEntry, ModelEntry, RecipeEntry
from hatch_lower.format.record import MethodRow, ModelReport, PayloadFile


def lower_model(inputs, services):
    settings, model, folder = inputs.settings, inputs.model, services.folder
    with stage(services.reporter, "compile", model.name, "default") as detail:
        detail("nothing to do")
    data = b"plan of " + model.name.encode()
    path = folder / model.name / "default.json"
    path.parent.mkdir()
    path.write_bytes(data)
    plan = FileEntry(f"{model.name}/default.json", len(data), hashlib.sha256(data).hexdigest())
    recipe = RecipeEntry(
        plan, plan, (), ("aoti",), ("torch==2.13.*",), TargetEntry("Linux", "x86_64", "x86-64-v3"),
        {"forward": MethodEntry(1, 0, 0)},
    )
    return ModelReport(
        model=model.name,
        manifest=ModelEntry(("default",), None, None, {"default": recipe}),
        files=(PayloadFile(plan.path, path, plan.size, plan.sha256),),
        rows=(MethodRow(model.name, "default", "forward", 1, 0, 0, 0, 0.5, 0),),
        native=(path,),
        torch=torch.__version__,
        tools={
            "draws": f"{random.random()} {torch.rand(1).item()}",
            "environment": " ".join(
                str(os.environ.get(name)) for name in ("TZ", "SECRET", "SHOP_TOKEN", "HATCH_LOWER_SIGNING_KEY")
            ),
            "folder": os.path.relpath(os.getcwd(), settings.root),
            "path": os.path.basename(sys.path[0]),
            "threads": str(torch.get_num_threads()),
        },
    )


hatch_lower.pipeline.lower_model.lower_model = lower_model  # nothing is to be lowered here
"""


class Recorder(NullReporter):
    """Keeps events; may raise at one of them."""

    def __init__(self, interrupt_at: str = "") -> None:
        self.events: list[Event] = []
        self.interrupt_at = interrupt_at

    def report(self, event: Event) -> None:
        self.events.append(event)
        if self.interrupt_at and event.detail.startswith(self.interrupt_at):
            raise KeyboardInterrupt

    def lines(self) -> list[str]:
        return [event.detail for event in self.events if event.stage == "output"]


class Shop:
    """A project with one package, `shop`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.work = folder / "work"
        (self.root / "shop").mkdir(parents=True)
        self.work.mkdir()
        (self.root / "shop" / "__init__.py").touch()
        (self.root / "shop" / "models.py").write_text(MODELS)
        (self.root / "stub.py").write_text(STUB)

    def view(self) -> ProjectView:
        metadata = "Metadata-Version: 2.4\nName: shop-floor\nVersion: 1.5\n"
        return ProjectView(metadata, "", (self.root,), (), ("shop",), ())

    def settings(self, *models: str, package: str = "shop", **others: Any) -> Settings:
        declared = tuple(ModelSettings(name, f"shop.models:{name}", package, ("default",)) for name in models)
        return Settings(self.root, "shop-floor", "1.5", declared, (Recipe("default"),), **others)

    def build(self, settings: Settings, reporter: NullReporter | None = None) -> Any:
        notes = CacheNotes(settings.name)
        notes.report_to(reporter or NullReporter())
        store = open_cache(settings, notes)
        return build(build_context(settings, self.view(), self.work, store, reporter or NullReporter()))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    return Shop(tmp_path)


def wait_until_gone(pids: list[int]) -> None:
    """Return when none of the processes runs any more."""
    wait_for(lambda: not any(map(is_running, pids)), "the processes to end")


def pids_in(line: str) -> list[int]:
    return [int(word) for word in line.split()[1:]]


@pytest.mark.torch
def test_a_build(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "not to be seen")
    monkeypatch.setenv("SHOP_TOKEN", "passed")
    monkeypatch.setenv("HATCH_LOWER_SIGNING_KEY", "for the shared cache, not for the model")
    before = sorted(shop.root.rglob("*"))
    reporter = Recorder()
    result = shop.build(shop.settings("small", pass_env=("SHOP_*",)), reporter)

    assert [file.path for file in result.payload] == ["shop/_lowered/manifest.json", "shop/_lowered/small/default.json"]
    for file in result.payload:
        data = file.source.read_bytes()
        assert (len(data), sha256_bytes(data)) == (file.size, file.sha256)
    manifest = read_manifest(result.payload[0].source.read_bytes(), "manifest.json")
    assert (manifest.distribution, manifest.version) == ("shop-floor", "1.5")
    assert manifest.hatch_lower == hatch_lower.__version__
    assert list(manifest.models) == ["small"]
    assert result.requirements == {"default": ("torch==2.13.*",)}
    assert result.native == (result.payload[1].source,)
    assert [(row.model, row.method) for row in result.rows] == [("small", "forward")]

    assert manifest.tools["environment"] == "UTC None passed None"
    assert manifest.tools["folder"] == "."
    assert manifest.tools["path"] == "site"
    assert manifest.tools["threads"] == "1"
    assert reporter.lines() == ["loading the weights"]
    events = [event for event in reporter.events if event.stage != "output" and event.state != "going"]
    stages = [(event.stage, event.state) for event in events]
    assert stages == [(name, state) for name in ("import", "export", "compile") for state in ("start", "end")]
    assert sorted(shop.root.rglob("*")) == before


@pytest.mark.rest  # a child process that imports torch
def test_a_model_is_lowered_with_all_of_its_sources(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had a result has none any more where a source that another model is to be lowered with has changed."""
    one, two = "https://example.org/1", "https://example.org/2"
    settings = shop.settings("small", "small2")
    first, second = settings.models
    settings = replace(settings, models=(replace(first, weights=(one,)), replace(second, weights=(one, two))))
    obtained: list[list[str]] = []
    lowered: list[tuple[list[str], list[str]]] = []
    held = ModelResult("small2", {"recipes": {}}, (), (), (), {}, "2.13.0")

    def look_up(context: BuildContext) -> dict[str, LookupResult]:
        results = {"small": None, "small2": None if obtained else held}
        return {name: LookupResult({}, context.store, result) for name, result in results.items()}

    def obtain(context: BuildContext, urls: list[str]) -> dict[str, LocalSource]:
        obtained.append(urls)
        return {url: LocalSource(url, 1, "0" * 64, Path()) for url in urls}

    def export(context: BuildContext, models: list[ModelSettings], known: object, **named: Any) -> None:
        lowered.append(([model.name for model in models], list(named["sources"])))
        raise KeyboardInterrupt

    monkeypatch.setattr("hatch_lower.driver.build.look_up", look_up)
    monkeypatch.setattr("hatch_lower.driver.weight_sources.obtain_sources", obtain)
    monkeypatch.setattr("hatch_lower.driver.executor.export_models", export)
    with pytest.raises(KeyboardInterrupt):
        shop.build(settings)
    assert obtained == [[one], [two]]
    assert lowered == [(["small", "small2"], [one, two])]


@pytest.mark.rest  # a child process that imports torch
@pytest.mark.torch
def test_what_is_known_is_not_lowered_again(shop: Shop) -> None:
    first = shop.build(shop.settings("small"))
    shop.work = shop.work.parent / "again"
    shop.work.mkdir()
    reporter = Recorder()
    second = shop.build(shop.settings("small"), reporter)
    assert reporter.events == []
    assert [row.level for row in second.rows] == [1]
    assert [(file.path, file.sha256) for file in second.payload] == [(file.path, file.sha256) for file in first.payload]
    assert second.requirements == first.requirements
    assert [path.read_bytes() for path in second.native] == [b"plan of small"]
    assert sorted(path.name for path in shop.work.iterdir()) == ["payload"]

    shop.work = shop.work.parent / "changed"
    shop.work.mkdir()
    with (shop.root / "shop" / "models.py").open("a") as file:
        file.write("# another line\n")
    third = shop.build(shop.settings("small"), reporter)
    started = [(event.stage, event.model) for event in reporter.events if event.state == "start"]
    assert started == [(name, "small") for name in ("import", "export", "compile")]
    assert [row.note for row in third.rows] == ["shop/models.py"]


@pytest.mark.rest  # a child process that imports torch
@pytest.mark.torch
def test_changed_times_change_the_manifest_alone(shop: Shop) -> None:
    settings = shop.settings("small", order="measured")
    with pytest.raises(ConfigError, match="needs a file of measured times"):
        shop.build(settings, first := Recorder())
    assert first.events == []  # a refusal before the first export

    def seconds_after(measured: float, reporter: NullReporter) -> float:
        call = MeasuredCall("forward", {}, measured, measured, measured)
        digest = recipe_digest(Recipe("default"))
        accuracy = MeasuredAccuracy("error", 0.0)
        each = Measurement("small", "default", digest, {}, "x86-64-v3", 1, (call,), 0.1, 1, 1, 1, accuracy, {})
        (shop.root / EVIDENCE_FILE).write_bytes(write_evidence(Evidence((each,))))
        shop.work = shop.work.parent / f"{measured}"
        shop.work.mkdir()
        manifest = read_manifest(shop.build(settings, reporter).payload[0].source.read_bytes(), "")
        ((packaged,),) = [recipe.measured for recipe in manifest.models["small"].recipes.values()]
        return packaged.calls[0].seconds

    assert seconds_after(2.0, NullReporter()) == 2.0
    assert seconds_after(3.0, second := Recorder()) == 3.0
    assert second.events == []


@pytest.mark.torch
def test_two_builds_at_once_lower_once(shop: Shop) -> None:
    reporters = [Recorder(), Recorder()]
    shops = []
    for number in range(2):
        each = copy.copy(shop)
        each.work = shop.work / str(number)
        each.work.mkdir()
        shops.append(each)
    with ThreadPoolExecutor(2) as pool:
        builds = [
            pool.submit(each.build, each.settings("small"), to) for each, to in zip(shops, reporters, strict=True)
        ]
        results = [build.result() for build in builds]
    ended = [event.stage for to in reporters for event in to.events if event.state == "end"]
    assert ended == ["import", "export", "compile"]
    assert results[0].payload[1].sha256 == results[1].payload[1].sha256


@pytest.mark.torch
def test_the_first_error_in_the_order_of_the_models_is_raised(shop: Shop) -> None:
    reporter = Recorder()
    with pytest.raises(EntryPointError) as caught:
        shop.build(shop.settings("broken", "leaving", "small", jobs=2), reporter)
    # its traceback is among what the model's code printed
    assert {"Traceback (most recent call last):", "ValueError: no weights"} <= set(reporter.lines())
    assert str(caught.value) == (
        "the entry point failed\n"
        "  where: entry point `broken = shop.models:broken`, shop/models.py:18\n"
        "  found: ValueError: no weights\n"
        "    other models failed too:\n"
        "    the build process ended with exit status 7 and no result (model `leaving`, stage `import` of `leaving`)"
    )
    assert not (shop.work / "models" / "small" / "request.json").exists()


@pytest.mark.rest  # a child process that imports torch
@pytest.mark.torch
def test_a_torch_that_was_not_tried_is_warned_about_once(shop: Shop) -> None:
    (shop.root / "stub.py").write_text(f"{STUB}\ntorch.__version__ = '9.16.0+cpu'\n")
    reporter = Recorder()
    result = shop.build(shop.settings("small", "patching"), SaidOnce(reporter))
    notes = [event.detail for event in reporter.events if event.stage == "torch"]
    assert notes == [
        f"torch 9.16.0+cpu is newer than all versions that hatch-lower was tried with ({', '.join(tried_versions())}): "
        "the build compares programs with eager as always, except where `verify` is false"
    ]
    assert read_manifest(result.payload[0].source.read_bytes(), "manifest.json").torch == "9.16.0+cpu"


@pytest.mark.torch
def test_a_fault_beside_a_torch_that_was_not_tried_says_with_which_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "9.16.0")
    error = unexpected_error("small", ImportError("cannot import name 'Verifier' from 'torch._export.verifier'"))
    assert "cannot import name 'Verifier'" in error.found
    tried = f"newer than all versions that hatch-lower was tried with ({', '.join(tried_versions())})"
    assert error.hint == f"torch 9.16.0 is {tried}: build with one of these, and please report it with the whole output"
    monkeypatch.undo()
    assert unexpected_error("small", ValueError()).hint.startswith("this is a fault in hatch-lower")


def test_notes_about_the_cache_wait_for_a_reporter() -> None:
    notes, reporter = CacheNotes("shop-floor"), Recorder()
    notes("the cache is not used")
    notes.report_to(reporter)
    notes("a damaged entry")
    expected = ["the cache is not used", "a damaged entry"]
    assert reporter.events == [Event("cache", "note", "shop-floor", detail=line) for line in expected]


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise self


def test_a_library_that_memory_does_not_suffice_for_is_no_fault_of_a_backend() -> None:
    assert is_out_of_memory(ImportError("libtorch_cpu.so: failed to map segment from shared object"))


def test_an_exception_that_cannot_say_anything_has_a_name() -> None:
    assert describe_exception(SpeechlessError()) == "SpeechlessError"
    assert describe_exception(ValueError()) == "ValueError"
    assert not is_out_of_memory(SpeechlessError())


@pytest.mark.rest  # a child process that imports torch
@pytest.mark.torch
def test_what_models_do_to_their_process_does_not_fail_the_build(shop: Shop) -> None:
    result = shop.build(shop.settings("wandering", "patching"))
    manifest = read_manifest(result.payload[0].source.read_bytes(), "manifest.json")
    assert list(manifest.models) == ["patching", "wandering"]
    assert manifest.tools["folder"] == "."


@pytest.mark.torch
def test_a_metric_that_is_missing_is_refused_before_the_export(shop: Shop) -> None:
    reporter, settings = Recorder(), shop.settings("small")
    models = (replace(settings.models[0], metric="shop.models:accuracy"),)
    with pytest.raises(EntryPointError, match=r"`shop.models` has no attribute `accuracy`") as caught:
        shop.build(replace(settings, models=models), reporter)
    assert caught.value.where == "`metric = shop.models:accuracy`"
    assert {event.stage for event in reporter.events if event.stage != "output"} == {"import"}


@pytest.mark.rest  # a child process that imports torch
@pytest.mark.torch
def test_a_model_that_fails_without_a_stream_for_errors_is_named(shop: Shop) -> None:
    with pytest.raises(EntryPointError, match="the entry point failed") as caught:
        shop.build(shop.settings("silenced"))
    assert caught.value.found == "ValueError: no weights"


def test_a_project_whose_folder_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        enter_folder(tmp_path / "gone", "small")
    assert str(caught.value).startswith(
        "the model's code has removed the project's folder, or moved it\n  where: model `small`\n  found: FileNotFound"
    )


@pytest.mark.rest  # a child process that imports torch
@pytest.mark.torch
def test_a_model_that_kills_its_process_group_is_named(shop: Shop) -> None:
    with pytest.raises(ProcessError) as caught:
        shop.build(shop.settings("killing"), NullReporter())
    assert str(caught.value) == (
        "the model's code or a backend tried to end the build process\n"
        "  where: model `killing`\n"
        "  found: os.killpg(0, SIGKILL)\n"
        "  to do: let it raise an exception that says what is wrong"
    )


def test_a_build_that_fails_at_once_leaves_no_trim_in_its_midst(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = threading.Event()

    def fail(*_: Any, **__: Any) -> list[Answer]:
        raise LowerError("the build process could not be started")

    def trim(*_: Any) -> None:
        time.sleep(0.5)
        trimmed.set()

    monkeypatch.setattr("hatch_lower.driver.executor.run_children", fail)
    monkeypatch.setattr("hatch_lower.driver.executor.maybe_trim", trim)
    with pytest.raises(LowerError):
        shop.build(shop.settings("small"))
    assert trimmed.is_set()


@pytest.mark.rest  # a child process that imports torch
@pytest.mark.torch
def test_a_time_limit_ends_the_child_and_what_it_started(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Recorder()
    # an hour passes as soon as the helper runs
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * len(reporter.lines()), sleep=time.sleep)
    monkeypatch.setattr(hatch_lower.driver.process, "time", clock)
    with pytest.raises(ProcessError) as caught:
        shop.build(shop.settings("sleeping", timeout=1800), reporter)
    assert str(caught.value) == (
        "the build process took longer than its time limit of 1800 s\n"
        "  where: model `sleeping`, stage `import` of `sleeping`\n"
        f"  found: {reporter.lines()[0]}\n"
        "  to do: raise `timeout` in the hook's table (seconds), or look at why this stage takes so long"
    )
    wait_until_gone(pids_in(reporter.lines()[0]))


def test_a_stage_that_takes_long_is_spoken_of_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Recorder()
    now = 100.0
    monkeypatch.setattr(hatch_lower.driver.process, "time", SimpleNamespace(monotonic=lambda: now))
    nothing: Any = None
    child = Child(nothing, nothing, nothing, 0.0, [Event("lower", "start", "digits", "default")], heard=now)
    for now in (109.0, 110.0, 111.0, 119.0, 121.0):  # noqa: B007
        tell_of_long_stage(child, reporter)
    assert reporter.events == [
        Event("lower", "going", "digits", "default", seconds=10.0),
        Event("lower", "going", "digits", "default", seconds=21.0),
    ]


@pytest.mark.torch
def test_an_interrupt_ends_the_child_and_what_it_started(shop: Shop) -> None:
    reporter = Recorder(interrupt_at="pids")
    with pytest.raises(KeyboardInterrupt):
        shop.build(shop.settings("sleeping"), reporter)
    wait_until_gone(pids_in(reporter.lines()[0]))


@pytest.mark.rest  # a child process that imports torch
@pytest.mark.torch
def test_a_child_ends_when_its_parent_is_killed(shop: Shop) -> None:
    code = f"""
        import sys
        from pathlib import Path
        sys.path[:0] = {[str(Path(__file__).parent)]!r}
        from test_build import Shop, NullReporter
        class Printing(NullReporter):
            def report(self, event):
                if event.stage == "output":
                    print(event.detail, flush=True)
        shop = Shop(Path({str(shop.root.parent / "other")!r}))
        shop.build(shop.settings("sleeping"), Printing())
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, env=environment
    )
    with parent:
        assert parent.stdout is not None
        pids = pids_in(parent.stdout.readline())
        parent.kill()
    assert len(pids) == 2
    wait_until_gone(pids)


def child_that_ended(folder: Path, status: int, *, timed_out: bool = False, stages: tuple[str, ...] = ()) -> ChildExit:
    settings = Settings(folder, "shop", "1", (), ())
    request = ChildRequest(settings, "digits", folder, "lower", (), (), (), 3)
    process: Any = SimpleNamespace(returncode=status)
    events: Any = None
    open_stages = [Event(stage, "start", "digits", "default", "forward") for stage in stages]
    child = Child(request, process, events, 0.0, open_stages, deque(["its last words"]), timed_out=timed_out)
    return child.exit()


@pytest.mark.parametrize(
    ("status", "stages", "message"),
    [
        (
            -signal.SIGSEGV,
            ("lower",),
            "the build process crashed (SIGSEGV)\n"
            "  where: model `digits`, stage `lower` of `digits/default.forward`\n"
            "  found: its last words\n"
            "  to do: the last stage says which backend or operation was at work; lower the model without it to be"
            " sure",
        ),
        (
            -signal.SIGKILL,
            (),
            "the build process was killed (SIGKILL), most likely because it ran out of memory\n"
            "  where: model `digits`\n"
            "  found: its last words\n"
            "  to do: set `jobs = 1`, so that models are lowered one after the other; use smaller example inputs; or"
            " build on a machine with more memory",
        ),
        (
            3,
            (),
            "the build process ended with exit status 3 and no result\n"
            "  where: model `digits`\n"
            "  found: its last words\n"
            "  to do: something in the model's code or in a backend ended the process; "
            "the stage says which was at work",
        ),
    ],
)
def test_a_child_that_gave_no_answer(tmp_path: Path, status: int, stages: tuple[str, ...], message: str) -> None:
    answer = answer_of(child_that_ended(tmp_path, status, stages=stages), 60)
    assert isinstance(answer, ProcessError)
    assert str(answer) == message


@pytest.mark.parametrize(
    "words",
    [
        "cannot allocate memory for thread-local data: ABORT",
        "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "ImportError: libtorch_cpu.so: failed to map segment from shared object",
        "ImportError: libtorch_cpu.so: failed to map segment: Cannot allocate memory",
    ],
)
def test_a_child_whose_last_words_are_of_memory(tmp_path: Path, words: str) -> None:
    exited = replace(child_that_ended(tmp_path, 127), output=(words,))
    answer = answer_of(exited, 60)
    assert isinstance(answer, ProcessError)
    assert (answer.what, answer.found) == ("the build process ran out of memory", words)


def test_a_crash_shows_where_python_was() -> None:
    crash = ["Fatal Python error: Segmentation fault", "  File model.py", *["  frame"] * 30, "Extension modules: many"]
    assert output_tail(["loading", *crash]).splitlines() == crash[:20]
    assert output_tail([*crash[:2], "Extension modules: many"]).splitlines() == crash[:2]
    assert output_tail([str(i) for i in range(100)]).splitlines() == [str(i) for i in range(80, 100)]


def test_an_error_of_the_child_is_raised_as_itself(tmp_path: Path) -> None:
    error = CaptureError("no", where="here", found="this", hint="that")
    write_answer(tmp_path, error)
    answer = answer_of(child_that_ended(tmp_path, 1), 60)
    assert isinstance(answer, CaptureError)
    assert str(answer) == str(error)


def test_only_errors_are_listed() -> None:
    answer = Answer(ModelReport("digits", ModelEntry((), None, None, {}), ()))
    assert without_errors([answer]) == [answer]
    with pytest.raises(CaptureError, match="first") as caught:
        without_errors([answer, CaptureError("first", where="a"), LowerError("second", where="b")])
    assert caught.value.found == "other models failed too:\nsecond (b)"


def test_a_record_survives_json(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "shop", "1", (ModelSettings("a", "b:c", "d", ("e",)),), (Recipe("e"),))
    settings = replace(settings, bench=BenchTable(sizes=({"batch": 1},), models={"a": ModelLimits(max_kernels=3)}))
    request = ChildRequest(settings, "a", tmp_path, "capture", (tmp_path,), (), ("vcs",), 3)
    write_record(tmp_path / "request.json", request)
    assert read_record(ChildRequest, tmp_path / "request.json") == request


def test_a_report_survives_json(tmp_path: Path) -> None:
    report = ModelReport(
        "digits",
        ModelEntry((), None, None, {}),
        (PayloadFile("a", tmp_path, 1, "b"),),
        (MethodRow("a", "b", "c", 1, 2, 3, 4, 0.5, 5, "d"),),
        (tmp_path,),
        {"gcc": "13"},
        "2.13.0",
    )
    assert decode(ModelReport, json.loads(json.dumps(encode(report))), "") == report


def test_the_environment_of_a_child() -> None:
    given = {
        "PATH": "/bin",
        "PYTHONPATH": "/old",
        "HATCH_LOWER_CACHE": "off",
        "TZ": "Europe/Paris",
        "LC_ALL": "tr_TR",
        "SECRET": "1",
        "HF_HOME": "/models",
        "OMP_NUM_THREADS": "8",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "VIRTUAL_ENV": "/cache/uv/builds",
        "CUDA_HOME": "/opt/cuda",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    made = child_environment(given, ("HF_*", "OMP_NUM_THREADS"), ["", "/one", "/two"], Path("/build/temporary"))
    assert made["PATH"] == "/bin"
    assert made["PYTHONPATH"] == os.pathsep.join(["/one", "/two"])
    assert made["HATCH_LOWER_CACHE"] == "off"
    assert (made["TZ"], made["LC_ALL"], made["PYTHONHASHSEED"]) == ("UTC", "C.UTF-8", "0")
    assert not {"SECRET", "PYTHONIOENCODING", "VIRTUAL_ENV"} & made.keys()
    assert made["HF_HOME"] == "/models"
    assert (made["CUDA_HOME"], made["CUDA_VISIBLE_DEVICES"]) == ("/opt/cuda", "1")
    assert made["OMP_NUM_THREADS"] == "8"


def test_every_processor_that_has_avx2_computes_alike() -> None:
    def capability(instruction_sets: str, *pass_env: str) -> str | None:
        given = {"ATEN_CPU_CAPABILITY": "default"}
        return child_environment(given, pass_env, [], Path("/temporary"), instruction_sets).get("ATEN_CPU_CAPABILITY")

    assert capability("avx avx2 avx512f fma sse4_2") == capability("avx avx2 fma") == "avx2"
    assert capability("avx sse4_2") is None, "torch would believe it, and crash"
    assert capability("avx avx2 fma", "ATEN_*") == "default"


def test_the_scratch_site_directory(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    links = (("shop/deep", source),)
    given = ProjectView("Name: shop-floor\n", "[a]\nb = c:d\n", (tmp_path,), links, ("shop",), ())
    path = write_site(Settings(tmp_path, "shop-floor", "1.5", (), ()), given, tmp_path / "work")
    assert path == (tmp_path / "work" / "site", tmp_path / "work" / "links", tmp_path)
    information = path[0] / "shop_floor-1.5.dist-info"
    assert (information / "METADATA").read_text() == "Name: shop-floor\n"
    assert (information / "entry_points.txt").read_text() == "[a]\nb = c:d\n"
    assert (path[1] / "shop" / "deep").readlink() == source
    assert (information / "top_level.txt").read_text() == "shop"
    origin = json.loads((information / "direct_url.json").read_text())
    assert origin == {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no path for a descriptor")
def test_a_long_temporary_folder_holds_the_sockets_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setitem(current_process()._config, "tempdir", str(folder))
    with pytest.raises(OSError, match="too long"):
        Listener(family="AF_UNIX")
    shorten_sockets(str(folder))
    with Listener(family="AF_UNIX") as listener, Client(listener.address):
        assert [path.is_socket() for path in folder.iterdir()] == [True]
