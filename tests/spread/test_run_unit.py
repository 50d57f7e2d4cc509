"""What a worker does with a request, whatever it is, and what the build makes of the answer."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest
from support.processes import is_running, wait_for

from hatch_lower.cache.entry import Keep, Record
from hatch_lower.cache.locks import held_folder
from hatch_lower.cache.remote.signing import new_key_pair
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver.context import BuildContext, build_context
from hatch_lower.driver.protocol import Answer
from hatch_lower.driver.spread import spread
from hatch_lower.driver.spread.protocol import (
    Entries,
    Lack,
    UnitAnswer,
    UnitRequest,
    WrongAnswerError,
    read_entries,
    read_unit_answer,
    unit_entry,
    write_entries,
    write_unit_answer,
    write_unit_request,
)
from hatch_lower.driver.spread.run_unit import PREFIX, Workplace, open_workplace, run_unit
from hatch_lower.driver.spread.snapshot import Snapshot, take_snapshot
from hatch_lower.driver.spread.spread import failed_unit_error, requests_of, take_answer
from hatch_lower.driver.units import Unit, find_units, recipe_units
from hatch_lower.errors import CacheError, EntryPointError
from hatch_lower.events import NullReporter
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.record import ModelReport
from hatch_lower.hatch.outside import open_project

pytestmark = pytest.mark.processes

KEY, OTHER = "ab" * 32, "cd" * 32
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "shop"
version = "1"
dependencies = ["hatch-lower", "torch"]
[project.entry-points."hatch_lower.models"]
broken = "shop.models:broken"
reading = "shop.models:reading"
sleeping = "shop.models:sleeping"
[tool.hatch.build.targets.wheel.hooks.lower]
backends = ["null"]
pass-env = ["SHOP_*"]
"""
MODELS = """
import os, subprocess, time
from pathlib import Path


def broken():
    print("environment", sorted(name for name in os.environ if "SHOP" in name or "KEY" in name or "TOKEN" in name))
    print("values", os.environ.get("SHOP_COLOUR"), os.path.basename(os.environ["HOME"]), os.getcwd())
    raise ValueError(f"no weights in {os.getcwd()}/shop")


def reading():
    Path("weights/small.pt").read_bytes()


def sleeping():
    helper = subprocess.Popen(["sleep", "600"])
    Path(os.environ["SHOP_PIDS"]).write_text(f"{os.getpid()} {helper.pid}")
    time.sleep(600)
"""


def refuse(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process and those that it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache of the worker"))


@pytest.fixture
def shop(tmp_path: Path) -> BuildContext:
    """A build of a project whose models fail, each in a way of its own."""
    root = tmp_path / "shop"
    for name, text in {
        "pyproject.toml": PYPROJECT,
        ".gitignore": "*.pt\n",
        "shop/__init__.py": "",
        "shop/models.py": MODELS,
        "weights/small.pt": "weights",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / ".git").mkdir()
    project = open_project(root)
    work = tmp_path / "work"
    work.mkdir()
    store = Store(tmp_path / "cache" / "v1", "on", refuse)
    return replace(build_context(project.settings, project.view, work, store, NullReporter()), files=project.files)


class Asked(NamedTuple):
    request: UnitRequest
    snapshot: Snapshot


def asked_of(context: BuildContext, model: str) -> Asked:
    snapshot = take_snapshot(context.settings, context.view, context.files())
    (request,) = requests_of(context, [unit_of(context, model)], snapshot)
    return Asked(request, snapshot)


def unit_of(context: BuildContext, model: str) -> Unit:
    return next(unit for unit in recipe_units(find_units(context, shared=False)) if unit.model == model)


def answered(asked: Asked, data: bytes) -> UnitAnswer:
    return read_unit_answer(data, asked.request)[0]


def run(asked: Asked, request: UnitRequest | None = None, snapshot: bytes | None = None) -> UnitAnswer:
    sent = asked.snapshot.data if snapshot is None else snapshot
    return answered(asked, run_unit(write_unit_request(request or asked.request), sent))


def test_a_worker_that_is_something_else_refuses_and_says_what_it_is(shop: BuildContext, temporary: Path) -> None:
    asked = asked_of(shop, "broken")
    wanted = {**asked.request.facts, "torch": "2.99.0", "openvino": "99"}
    answer = run(asked, replace(asked.request, facts=wanted))
    assert answer.outcome == "refused"
    assert [(lack.what, lack.wanted) for lack in answer.lacks] == [("openvino", "99"), ("torch", "2.99.0")]
    assert answer.lacks[1].found == asked.request.facts["torch"]
    assert not list(temporary.iterdir())


def test_a_worker_without_a_compiler_refuses_a_recipe_that_compiles(
    shop: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = tuple(
        replace(recipe, backends=(replace(recipe.backends[0], name="aoti"),)) for recipe in shop.settings.recipes
    )
    context = replace(shop, settings=replace(shop.settings, recipes=recipes))
    asked = asked_of(context, "broken")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    answer = run(asked)
    assert answer.outcome == "refused"
    assert answer.lacks[0].text().startswith("has no C++ compiler, where g++")


def test_a_worker_without_a_key_that_is_believed_refuses_before_it_works(
    shop: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = new_key_pair(), new_key_pair()
    cache = replace(shop.settings.cache, public_keys=(own.public,))
    asked = asked_of(replace(shop, settings=replace(shop.settings, cache=cache)), "broken")
    assert asked.request.signers == (own.key_id,)

    def refusal() -> str:
        answer = run(asked)
        assert answer.outcome == "refused"
        return answer.lacks[0].text()

    assert refusal() == f"has no key for signatures, where {own.key_id} is wanted"
    monkeypatch.setenv("HATCH_LOWER_SIGNING_KEY", other.private)
    assert refusal() == f"has key for signatures {other.key_id}, where {own.key_id} is wanted"
    monkeypatch.setenv("HATCH_LOWER_SIGNING_KEY", "no key")
    assert refusal().startswith("the key for signatures: the Ed25519 key is malformed")
    monkeypatch.setenv("HATCH_LOWER_SIGNING_KEY", own.private)
    assert run(asked, replace(asked.request, body={})).lacks[0].text().startswith("the request and its snapshot")


def test_what_a_worker_has_signed_is_taken(shop: BuildContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_recipe(asked: UnitRequest, snapshot: bytes, place: Workplace) -> None:
        place.store.put(KEY, {}, "made", [b"native code"])
        place.outbox.write_text(f"{KEY} made\n")

    own = new_key_pair()
    cache = replace(shop.settings.cache, public_keys=(own.public,))
    context = replace(shop, settings=replace(shop.settings, cache=cache))
    monkeypatch.setattr("hatch_lower.driver.spread.run_unit.make_recipe", make_recipe)
    monkeypatch.setenv("HATCH_LOWER_SIGNING_KEY", own.private)
    asked = asked_of(context, "broken")
    answer, entries = read_unit_answer(run_unit(write_unit_request(asked.request), asked.snapshot.data), asked.request)
    assert take_answer(context, answer, entries) == (KEY,)


def test_weights_that_a_worker_does_not_reach_are_no_failure_of_the_model(shop: BuildContext, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    models = tuple(replace(model, weights=(weights.as_uri(),)) for model in shop.settings.models)
    answer = run(asked_of(replace(shop, settings=replace(shop.settings, models=models)), "broken"))
    assert answer.outcome == "refused"
    assert answer.lacks[0].text().startswith(f"weights at {weights.as_uri()}: a file of weights cannot be read")


def test_another_snapshot_than_was_sent_is_refused(shop: BuildContext) -> None:
    asked = asked_of(shop, "broken")
    for snapshot in (b"", bytes(len(asked.snapshot.data))):
        answer = run(asked, snapshot=snapshot)
        assert answer.outcome == "refused"
        text = "the request and its snapshot: the snapshot has other contents than were sent"
        assert answer.lacks[0].text() == text


@pytest.mark.parametrize("data", [b"", b"no archive", b"\0" * 512])
def test_a_snapshot_that_is_none_is_refused(shop: BuildContext, temporary: Path, data: bytes) -> None:
    asked = asked_of(shop, "broken")
    answer = run(asked, replace(asked.request, snapshot=sha256_bytes(data)), data)
    if data == b"\0" * 512:  # the end of an archive without files
        assert answer.outcome in ("refused", "failed")
    else:
        assert answer.outcome == "refused"
        assert answer.lacks[0].text().startswith("the request and its snapshot: no archive")
    assert not list(temporary.iterdir())


def test_a_body_that_is_none_is_refused(shop: BuildContext) -> None:
    asked = asked_of(shop, "broken")
    answer = run(asked, replace(asked.request, body={"project": {}}))
    assert answer.outcome == "refused"
    assert "the request and its snapshot" in answer.lacks[0].text()


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_snapshot_for_which_there_is_no_room_is_refused(shop: BuildContext, temporary: Path) -> None:
    (shop.settings.root / "shop" / "large.bin").write_bytes(bytes(1 << 20))
    asked = asked_of(shop, "broken")
    with ProcessPoolExecutor(1, get_context("spawn"), limit_files, (1 << 16,)) as pool:
        data = pool.submit(run_unit, write_unit_request(asked.request), asked.snapshot.data).result()
    answer = answered(asked, data)
    assert answer.outcome == "refused"
    assert answer.lacks[0].text() == "room for 1.01 MiB of files: File too large"
    assert not list(temporary.iterdir())


def test_an_answer_brings_what_the_build_cannot_get_elsewhere(
    shop: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = "ef" * 32

    def make_recipe(asked: UnitRequest, snapshot: bytes, place: Workplace) -> None:
        for key in (KEY, OTHER, sent):
            place.store.put(key, {}, "made", [key.encode()])
        place.outbox.write_text(f"{KEY} made\n{sent} sent\n")

    monkeypatch.setattr("hatch_lower.driver.spread.run_unit.make_recipe", make_recipe)
    asked = asked_of(shop, "broken")
    for bring_all, brought in ((True, {KEY, sent}), (False, {KEY})):
        request = replace(asked.request, bring_all=bring_all)
        answer, entries = read_unit_answer(run_unit(write_unit_request(request), asked.snapshot.data), request)
        assert answer.entries == tuple(sorted([KEY, sent]))
        assert entries.entries.keys() == brought


def test_a_unit_that_could_not_be_kept_is_not_made(shop: BuildContext, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ModelReport("broken", ModelEntry((), None, None, {}), files=(), torch="2.13.0")

    def make_units(context: BuildContext, *arguments: object) -> list[Answer]:
        return [Answer(report, recipes={"default": KEY})]

    monkeypatch.setattr("hatch_lower.driver.spread.run_unit.make_units", make_units)
    answer = run(asked_of(shop, "broken"))
    assert answer.outcome == "refused"
    assert answer.lacks[0].text() == "room for the results: the unit's store could not be written"


def test_a_worker_without_a_folder_for_temporary_files_refuses(
    shop: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_of(shop, "broken")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    answer = run(asked)
    assert answer.outcome == "refused"
    assert answer.lacks[0].text().startswith("the folder of a unit: No such file or directory")


def test_a_request_of_another_version_is_refused_if_it_says_who_asks(shop: BuildContext) -> None:
    asked = asked_of(shop, "broken")
    fields = {**json.loads(write_unit_request(asked.request)), "later": 1}
    answer = answered(asked, run_unit(json.dumps(fields).encode(), b""))
    assert answer.outcome == "refused"
    assert "does not: the request: unknown key `later`" in answer.lacks[0].text()
    for data in (b"", b"{}", b"[]", b"no JSON", b'{"name": 1, "key": 2, "secret": "x"}'):
        with pytest.raises(WrongAnswerError):
            answered(asked, run_unit(data, b""))


def test_a_failing_model_s_error_and_log_arrive_without_the_worker_s_paths(
    shop: BuildContext, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_COLOUR", "green")
    monkeypatch.setenv("OTHER_TOKEN", "of the build")
    asked = asked_of(build_again(shop), "broken")
    assert dict(asked.request.environment) == {"SHOP_COLOUR": "green"}
    # the worker is elsewhere, and has secrets of its own
    monkeypatch.setenv("SHOP_COLOUR", "red")
    monkeypatch.setenv("SHOP_OTHER", "of the worker")
    monkeypatch.setenv("HATCH_LOWER_REMOTE_TOKEN", "of the worker")
    monkeypatch.setenv("HATCH_LOWER_SIGNING_KEY", new_key_pair().private)
    monkeypatch.setenv("HOME", str(tmp_path / "home of the worker"))
    monkeypatch.setenv("HATCH_LOWER_CACHE", "frozen")
    answer = run(asked)
    assert answer.outcome == "failed"
    said = [line.partition(": ")[2] for line in answer.log if "broken: " in line]
    assert said[:2] == ["environment ['SHOP_COLOUR']", "values green home of the worker project"]
    error = failed_unit_error(asked.snapshot, answer, shop.settings.root)
    assert isinstance(error, EntryPointError)
    assert error.found == "ValueError: no weights in shop"
    assert error.where.endswith(f"shop/models.py:9, on the worker {answer.worker}")
    assert str(temporary) not in str(answer)
    assert not list(temporary.iterdir())


def build_again(context: BuildContext) -> BuildContext:
    again = build_context(context.settings, context.view, context.work, context.store, context.reporter)
    return replace(again, files=context.files)


def test_a_file_that_was_not_sent_is_named_with_the_setting(shop: BuildContext) -> None:
    asked = asked_of(shop, "reading")
    answer = run(asked)
    assert answer.outcome == "failed"
    error = failed_unit_error(asked.snapshot, answer, shop.settings.root)
    assert "'weights/small.pt'" in error.found
    assert error.hint == (
        "`weights/small.pt` is not sent to workers, for it is in no distribution of the project:"
        " name it in `inputs` of the build hook `lower`"
    )


class Sleeping:
    """A unit that never ends by itself."""

    def __init__(self, context: BuildContext, note: Path) -> None:
        self.asked = asked_of(build_again(context), "sleeping")
        self._note = note

    def processes(self) -> list[int]:
        """Return the process that exports and the one that it has started; none before they are there."""
        pids = self._note.read_text().split() if self._note.exists() else []
        return [int(pid) for pid in pids] if len(pids) == 2 else []

    def run(self, still_wanted: Callable[[], bool]) -> UnitAnswer:
        data = run_unit(write_unit_request(self.asked.request), self.asked.snapshot.data, still_wanted=still_wanted)
        return answered(self.asked, data)

    def await_end(self) -> None:
        wait_for(lambda: not any(map(is_running, self.processes())), "the processes to end")


@pytest.fixture
def sleeping(shop: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sleeping:
    monkeypatch.setenv("SHOP_PIDS", str(tmp_path / "pids"))
    return Sleeping(shop, tmp_path / "pids")


def test_a_unit_that_nobody_wants_any_more_is_ended_with_all_that_it_started(
    sleeping: Sleeping, temporary: Path
) -> None:
    seen: list[float] = []

    def still_wanted() -> bool:
        if not seen and sleeping.processes():
            seen.append(time.monotonic())
        return not seen

    answer = sleeping.run(still_wanted)
    assert time.monotonic() - seen[0] < 5
    assert answer.error is not None
    assert answer.error["what"] == "the unit was cancelled"
    sleeping.await_end()
    assert not list(temporary.iterdir())


def test_a_unit_that_is_killed_alone_says_so(sleeping: Sleeping, temporary: Path) -> None:
    killed: list[int] = []

    def kill() -> bool:
        if not killed and sleeping.processes():
            killed.append(sleeping.processes()[0])
            os.kill(killed[0], signal.SIGKILL)
        return True

    answer = sleeping.run(kill)
    assert killed
    assert answer.outcome == "killed"
    assert answer.error is not None
    assert "(SIGKILL)" in answer.error["what"]
    assert not list(temporary.iterdir())


def test_what_a_killed_worker_has_started_ends_with_it(sleeping: Sleeping, temporary: Path) -> None:
    asked = sleeping.asked
    worker = get_context("spawn").Process(
        target=run_unit, args=(write_unit_request(asked.request), asked.snapshot.data)
    )
    worker.start()
    wait_for(sleeping.processes, "the model's code")
    worker.kill()
    worker.join()
    sleeping.await_end()
    assert list(temporary.glob(f"{PREFIX}*"))
    with held_folder(PREFIX) as folder:
        assert list(temporary.glob(f"{PREFIX}*")) == [folder]


def test_what_a_killed_worker_has_left_goes_with_the_next_unit(temporary: Path) -> None:
    code = f"from hatch_lower.cache.locks import *\nwith held_folder('{PREFIX}') as f: print(f, flush=True); input()"
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    left = Path(worker.stdout.readline().strip())
    assert left.parent == temporary
    with held_folder(PREFIX) as folder:
        assert sorted(temporary.iterdir()) == sorted([left, folder]), "a running worker keeps its own"
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    with held_folder(PREFIX) as folder:
        assert list(temporary.iterdir()) == [folder]
    assert not list(temporary.glob(f"{PREFIX}*"))


def test_variables_of_each_machine_itself_are_not_sent(
    shop: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HATCH_LOWER_SIGNING_KEY", "HATCH_LOWER_REMOTE_TOKEN", "SHOP_COLOUR", "TMPDIR"):
        monkeypatch.setenv(name, "of the build")
    everything = replace(shop, settings=replace(shop.settings, pass_env=("*",)))
    request = asked_of(build_again(everything), "broken").request
    assert request.environment["SHOP_COLOUR"] == "of the build"
    own = {"PATH", "HOME", "TMPDIR", "PYTHONPATH"} | {name for name in os.environ if name.startswith("HATCH_LOWER")}
    assert not own & request.environment.keys()
    # nor are they taken by a worker
    monkeypatch.setenv("PATH", "of the worker")
    hostile = replace(request, environment={"PATH": "of the build", "LD_PRELOAD_X": "1", "HATCH_LOWER_CACHE": "off"})
    (tmp_path / "unit").mkdir()
    place = open_workplace(tmp_path / "unit", hostile, NullReporter(), lambda: None)
    assert place.environment["PATH"] == "of the worker"
    assert place.environment["HATCH_LOWER_CACHE"] == "on"
    assert place.environment["LD_PRELOAD_X"] == "1"


def test_variables_of_an_instruction_set_level_are_sent(shop: BuildContext, tmp_path: Path) -> None:
    for_vnni = Recipe("vnni", (BackendChoice("aoti", {"isa": "x86-64-v4-vnni"}),))
    settings = replace(shop.settings, recipes=(*shop.settings.recipes, for_vnni))
    request = asked_of(build_again(replace(shop, settings=settings)), "broken").request
    (tmp_path / "unit").mkdir()
    place = open_workplace(tmp_path / "unit", request, NullReporter(), lambda: None)
    assert place.environment["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_VNNI"


class Server:
    """A shared cache that a worker sends to; it may lose what it has."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.offered: list[str] = []

    def fetch(self, key: str, keep: Keep) -> Record | None:
        return self.entries.fetch(key, keep)

    def offer(self, key: str, record: Record, blobs: object) -> bool:
        self.offered.append(key)
        return True


def bundle(folder: Path, *keys: str) -> Entries:
    store = Store(folder, "on", refuse)
    entries = []
    for key in keys:
        store.put(key, {"kind": "recipe"}, {"of": key}, [b"blob"])
        entry = unit_entry(store, key)
        assert entry is not None
        entries.append(entry)
    return read_entries(write_entries(entries))


MADE = UnitAnswer("a/b", KEY, "host:1", "made", entries=(KEY, OTHER))


def test_entries_go_into_the_build_s_store_and_on_to_its_shared_cache(shop: BuildContext, tmp_path: Path) -> None:
    server = Server(bundle(tmp_path / "server"))
    context = replace(shop, store=replace(shop.store, remote=server))
    assert take_answer(context, MADE, bundle(tmp_path / "worker", KEY, OTHER)) == (KEY, OTHER)
    assert shop.store.find(OTHER) == {"of": OTHER}
    assert server.offered == [KEY, OTHER]
    assert take_answer(context, MADE, bundle(tmp_path / "worker", KEY)) == (), "what is there is not taken again"


def test_what_the_worker_has_sent_is_got_from_the_shared_cache(shop: BuildContext, tmp_path: Path) -> None:
    server = Server(bundle(tmp_path / "server", OTHER))
    context = replace(shop, store=replace(shop.store, remote=server))
    assert take_answer(context, MADE, bundle(tmp_path / "worker", KEY)) == (KEY, OTHER)
    lost = replace(context, store=replace(shop.store, directory=tmp_path / "b", remote=Server(bundle(tmp_path / "c"))))
    with pytest.raises(WrongAnswerError, match="the shared cache does not have it"):
        take_answer(lost, MADE, bundle(tmp_path / "worker", KEY))
    with pytest.raises(WrongAnswerError, match="the shared cache does not have it"):
        take_answer(replace(lost, store=Store(tmp_path / "d", "on", refuse)), MADE, bundle(tmp_path / "worker", OTHER))


def test_an_unsigned_entry_is_refused_where_the_project_has_public_keys(
    shop: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = replace(shop.settings.cache, public_keys=("A" * 43 + "=",))
    context = replace(shop, settings=replace(shop.settings, cache=cache))
    answer = replace(MADE, entries=(KEY,))
    with pytest.raises(WrongAnswerError, match="is not taken: the entry is not trusted, and is not signed"):
        take_answer(context, answer, bundle(tmp_path / "worker", KEY))
    unsigned = replace(context, environment={**context.environment, "HATCH_LOWER_PUBLIC_KEYS": "any"})
    assert take_answer(unsigned, answer, bundle(tmp_path / "worker", KEY)) == (KEY,)


def test_a_store_that_cannot_be_written_is_the_build_s_own_error(shop: BuildContext, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "v1", "on", lambda line: None)
    with pytest.raises(CacheError, match="the results of a worker cannot be kept"):
        take_answer(replace(shop, store=store), MADE, bundle(tmp_path / "worker", KEY, OTHER))


def test_a_missing_word_about_a_failure_is_an_error_too(shop: BuildContext) -> None:
    asked = asked_of(shop, "broken")
    answer = UnitAnswer(asked.request.name, asked.request.key, "host:1", "refused", lacks=(Lack("x", "", "y"),))
    assert answered(asked, write_unit_answer(answer, (), asked.request.secret)) == answer
    assert "without a word" in str(failed_unit_error(asked.snapshot, answer, shop.settings.root))


def test_requests_of_many_models_are_not_larger_and_ask_once_what_a_worker_must_be(
    shop: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[object] = []
    wanted = spread.facts_wanted

    def count(backends: Iterable[str]) -> tuple[str, ...]:
        asked_for.append(backends)
        return wanted(backends)

    monkeypatch.setattr(spread, "facts_wanted", count)
    (model, *_), many = shop.settings.models, range(50)
    models = [replace(model, name=f"{model.name}{number}") for number in many]
    units = [replace(unit_of(shop, model.name), model=each.name) for each in models]
    context = replace(shop, settings=replace(shop.settings, models=tuple(models)))
    snapshot = take_snapshot(shop.settings, shop.view, shop.files())
    sizes = {
        len(write_unit_request(request)) - 3 * len(request.name) for request in requests_of(context, units, snapshot)
    }
    (alone,) = requests_of(shop, [unit_of(shop, model.name)], snapshot)
    assert max(sizes) < 1.1 * len(write_unit_request(alone))
    assert len(asked_for) == 2, "once for each call"
