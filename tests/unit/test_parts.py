"""Parts of units: asked for where more than one is missing, made in a child process, and found by their keys."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from support.exports import write_folder
from support.kept_events import Events
from torch.export import ExportedProgram

from hatch_lower.build.protocol import Asking
from hatch_lower.build.spread.asking import BODY, DATA, Asker, PartBody, PartsNeededError, read_asked
from hatch_lower.build.spread.part_child import make_part
from hatch_lower.build.spread.parts import asking, read_lacks, run_part
from hatch_lower.build.spread.protocol import LacksError, Need, NeedsError, UnitRequest, attach
from hatch_lower.build.spread.workplace import Workplace, open_workplace
from hatch_lower.cache.outbox import read_outbox
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import BackendError, ProcessError
from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.format.codec import decode, write_record

pytestmark = pytest.mark.torch


class Halves(torch.nn.Module):
    """Two partitions if the sum is not taken, and a third that is equal to the first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = (x.sin() + 1).sum(0)
        second = (first.cos() * 2).sum(0)
        return second


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return to_edge(torch.export.export(Halves(), (torch.ones(3, 4),), strict=False))


def by_kind(node: torch.fx.Node) -> str | None:
    name = str(node.target)
    if "sin" in name or "add" in name:
        return "first"
    return "second" if "cos" in name or "mul" in name else None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache", "on", pytest.fail)


def asked(folder: Path, program: ExportedProgram, store: Store, partitioner: Any, *before: str) -> Sequence[Need]:
    notes: list[str] = []
    with pytest.raises(PartsNeededError):
        lower_methods(
            {"a": program, "b": program},
            {"a": partitioner, "b": partitioner},
            store=store,
            ask=Asker(folder, before, 60, notes.append),
        )
    assert not notes
    return read_asked(folder)[0]


def test_what_is_missing_is_asked_for_once_and_nothing_is_lowered(
    program: ExportedProgram, store: Store, tmp_path: Path
) -> None:
    needs = asked(tmp_path / "asked", program, store, TagBy(by_kind, "reference"))
    assert len(needs) == 2  # the second method's are equal
    assert not store.directory.exists()
    assert all("partition" in need.name and "`reference`" in need.name for need in needs)
    assert [sha256_bytes(data) for data in read_asked(tmp_path / "asked")[1]] == [need.blob for need in needs]


def test_one_part_alone_is_made_where_it_is(program: ExportedProgram, store: Store, tmp_path: Path) -> None:
    ask = Asker(tmp_path / "asked", (), 60, pytest.fail)
    lowered = lower_methods({"a": program}, {"a": TagBy(everything, "reference")}, store=store, ask=ask)["a"]
    assert (lowered.partitions, lowered.reused) == (1, 0)
    assert read_asked(tmp_path / "asked") == ((), [])


def test_what_was_asked_for_in_vain_is_made(program: ExportedProgram, store: Store, tmp_path: Path) -> None:
    needs = asked(tmp_path / "asked", program, store, TagBy(by_kind, "reference"))
    ask = Asker(tmp_path / "again", [need.key for need in needs], 60, pytest.fail)
    lowered = lower_methods({"a": program}, {"a": TagBy(by_kind, "reference")}, store=store, ask=ask)["a"]
    assert (lowered.partitions, lowered.reused) == (2, 0)


def test_what_is_not_portable_is_lowered_here_with_a_reason(store: Store, tmp_path: Path) -> None:
    with torch.library._scoped_library("parts_test", "FRAGMENT") as library:
        for name in ("one", "two"):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x: x * 2, "CompositeExplicitAutograd")

        class Net(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> Any:
                return torch.ops.parts_test.two(torch.ops.parts_test.one(x).sum(0))

        edge = to_edge(torch.export.export(Net(), (torch.ones(2, 2),), strict=False))
        notes: list[str] = []
        partitioner = TagBy(lambda node: str(node.target) if "parts_test" in str(node.target) else None, "null")
        lower_methods({"a": edge}, {"a": partitioner}, store=store, ask=Asker(tmp_path, (), 60, notes.append))
    operator = "the operator `parts_test.{}.default`, which is not torch's own"
    here = "a partition of `a` for `null` is lowered with its recipe: it has "
    assert notes == [here + operator.format("one"), here + operator.format("two")]


class Together(BackendDetails):
    """Lowers all partitions in one call."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Any) -> PreprocessResult:
        raise NotImplementedError

    @classmethod
    def preprocess_multimethod(cls, edge_programs: Any, compile_specs: Any) -> dict[str, list[PreprocessResult]]:
        return {method: [PreprocessResult(b"all") for _ in programs] for method, programs in edge_programs.items()}


def test_partitions_that_are_lowered_together_stay_together(
    program: ExportedProgram, store: Store, tmp_path: Path
) -> None:
    notes: list[str] = []
    partitioner = TagBy(by_kind, "Together")
    lower_methods({"a": program}, {"a": partitioner}, store=store, ask=Asker(tmp_path, (), 60, notes.append))
    reason = "it has a backend that lowers all partitions together"
    assert notes == [f"a partition of `a` for `Together` is lowered with its recipe: {reason}"]


# made by a worker


def part_request(need: Need, data: bytes, **changed: Any) -> UnitRequest:
    body = {**need.body, **changed}
    return UnitRequest(need.name, "part", need.key, "0" * 64, {}, {}, body, (attach("part", data),))


def made(folder: Path, need: Need, data: bytes, given: Mapping[str, bytes] = {}, **changed: Any) -> Workplace:
    folder.mkdir()
    request = part_request(need, data, **changed)
    place = open_workplace(folder, request, Events(), lambda: None)
    run_part(request, {"part": data, **given}, place)
    return place


@pytest.fixture(scope="module")
def parts(program: ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Need, bytes]]:
    folder = tmp_path_factory.mktemp("asked")
    store = Store(folder / "cache", "on", pytest.fail)
    asked(folder / "asked", program, store, TagBy(by_kind, "reference"))
    return list(zip(*read_asked(folder / "asked"), strict=True))


def kept(place: Workplace, key: str, store: Store) -> None:
    record = place.store.find_record(key)
    assert record is not None
    blobs = [place.store.read_blob(blob) or b"" for blob in record["blobs"]]
    store.put(key, record["components"], record["value"], blobs)


def test_parts_that_workers_made_are_found_by_the_unit_that_asked(
    parts: list[tuple[Need, bytes]], program: ExportedProgram, store: Store, tmp_path: Path
) -> None:
    partitioners = {"a": TagBy(by_kind, "reference")}
    alone = lower_methods({"a": program}, partitioners, store=Store(tmp_path / "alone", "on", pytest.fail))
    for number, (need, data) in enumerate(parts):
        place = made(tmp_path / f"unit{number}", need, data)
        assert read_outbox(place.outbox) == {need.key: "made"}
        kept(place, need.key, store)
    again = lower_methods({"a": program}, partitioners, store=store, ask=Asker(tmp_path / "again", (), 60, pytest.fail))
    assert (again["a"].partitions, again["a"].reused) == (2, 2)
    blobs, expected = (
        [module.processed_bytes for module in get_lowered_backend_modules(lowered["a"].program.graph_module)]
        for lowered in (again, alone)
    )
    assert blobs == expected


def make_here(folder: Path, need: Need, data: bytes, store: Store, ask: Asker | None = None, **changed: Any) -> None:
    """Make a part in this process, as a worker's child process does."""
    folder.mkdir()
    write_record(folder / BODY, decode(PartBody, {**need.body, **changed}, "the body"))
    (folder / DATA).write_bytes(data)
    make_part(need.name, folder, store, ask)


def differences(folder: Path, need: Need, data: bytes, **changed: Any) -> dict[str, tuple[str, str]]:
    """Return what this machine lacks for a part, as its child process would say."""
    store = Store(folder / "cache", "on", pytest.fail)
    with pytest.raises(ProcessError, match="this machine makes something else of it"):
        make_here(folder, need, data, store, **changed)
    assert not store.directory.exists()
    return {lack.what: (lack.wanted, lack.found) for lack in read_lacks(folder)}


def test_a_machine_that_would_make_something_else_says_what_differs(
    parts: list[tuple[Need, bytes]], tmp_path: Path
) -> None:
    (need, data), (_, other) = parts
    key: Any = need.body["key"]
    changed = {**key, "torch": "2.99.0", "fingerprint": [["code", "x"], ["g++", "15.2"]]}
    code = dict(key["fingerprint"])["code"]
    assert differences(tmp_path / "tools", need, data, key=changed) == {
        "torch": ("2.99.0", torch.__version__),
        "`code`": ("x", code),
        "`g++`": ("15.2", ""),
    }
    assert differences(tmp_path / "other", need, other).keys() == {"graph"}
    (text,) = differences(tmp_path / "cut", need, data[:-2]).values()
    assert text[1].startswith("no partition: JSONDecodeError")
    (text,) = differences(tmp_path / "nobody", need, data, backend="nobody").values()
    assert text[1].startswith("there is no backend `nobody`")


def test_a_worker_refuses_what_its_child_process_refuses(parts: list[tuple[Need, bytes]], tmp_path: Path) -> None:
    need, _ = parts[0]
    with pytest.raises(LacksError, match="a partition as it came"):
        made(tmp_path / "unit", need, b"")


BACKEND = """
import os

from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.steps import Step


class Stepping(BackendDetails):
    weight_free = True

    @staticmethod
    def preprocess(edge_program, compile_specs):
        if os.environ.get("STEPPING") == "crashes":
            os.abort()
        raise AssertionError("it was to ask for its steps")

    @classmethod
    def preprocess_in_steps(cls, programs, specs, find_steps):
        if "STEPPING" in os.environ:
            return cls.preprocess_many(programs, specs)
        steps = [cls.step_of(name, "text of " + name, []) for name in ("one", "two")]
        found = find_steps(steps, specs[0])
        return [PreprocessResult(b" ".join(data or b"made here" for data in found)) for _ in programs]

    @classmethod
    def step_of(cls, name, text, compile_specs):
        return Step(name, text, {"tool": os.environ.get("TOOL", "1.0")})

    @classmethod
    def run_step(cls, step, compile_specs):
        return step.text.upper().encode()
"""


@pytest.fixture
def stepping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: ExportedProgram) -> Iterator[tuple[Need, bytes]]:
    """Install a backend whose work has two steps; return one of two partitions for it."""
    site = tmp_path / "site"
    write_folder(
        site,
        {
            "stepping.py": BACKEND.encode(),
            "stepping-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: stepping\nVersion: 1.0\n",
            "stepping-1.0.dist-info/entry_points.txt": b"[hatch_lower.backends]\nstepping = stepping:Stepping\n",
        },
    )
    monkeypatch.syspath_prepend(site)
    store = Store(tmp_path / "nothing", "on", pytest.fail)
    asked(tmp_path / "asked", program, store, TagBy(by_kind, "stepping"))
    needs, data = read_asked(tmp_path / "asked")
    yield needs[0], data[0]
    sys.modules.pop("stepping")
    gc.collect()


def test_a_part_asks_for_its_steps_and_is_made_of_them(
    stepping: tuple[Need, bytes], store: Store, tmp_path: Path
) -> None:
    with pytest.raises(PartsNeededError):
        make_here(tmp_path / "first", *stepping, store, Asker(tmp_path / "steps", (), 60, pytest.fail))
    steps = list(zip(*read_asked(tmp_path / "steps"), strict=True))
    assert [part.name.split()[0] for part, _ in steps] == ["one", "two"]
    assert [text for _, text in steps] == [b"text of one", b"text of two"]
    for number, (part, text) in enumerate(steps):
        make_here(tmp_path / f"step{number}", part, text, store)
        assert store.find(part.key) is not None
    make_here(tmp_path / "second", *stepping, store, Asker(tmp_path / "again", (), 60, pytest.fail))
    assert store.read_blob(store.find(stepping[0].key)["blob"]) == b"TEXT OF ONE TEXT OF TWO"


def test_a_step_that_would_be_another_one_here_is_refused(
    stepping: tuple[Need, bytes], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PartsNeededError):
        make_here(tmp_path / "first", *stepping, store, Asker(tmp_path / "steps", (), 60, pytest.fail))
    (step, *_), (text, *_) = read_asked(tmp_path / "steps")
    assert differences(tmp_path / "text", step, b"another text").keys() == {"text"}
    monkeypatch.setenv("TOOL", "2.0")
    assert differences(tmp_path / "tool", step, text) == {"`tool`": ("1.0", "2.0")}


def test_a_step_that_is_missing_alone_is_made_with_its_part(
    stepping: tuple[Need, bytes], store: Store, tmp_path: Path
) -> None:
    with pytest.raises(PartsNeededError):
        make_here(tmp_path / "first", *stepping, store, Asker(tmp_path / "steps", (), 60, pytest.fail))
    (step, *_), (text, *_) = read_asked(tmp_path / "steps")
    make_here(tmp_path / "step", step, text, store)
    make_here(tmp_path / "second", *stepping, store, Asker(tmp_path / "again", (), 60, pytest.fail))
    assert store.read_blob(store.find(stepping[0].key)["blob"]) == b"TEXT OF ONE made here"


def test_what_a_child_process_has_asked_for_is_what_the_unit_needs(
    parts: list[tuple[Need, bytes]], tmp_path: Path
) -> None:
    place = open_workplace(tmp_path, part_request(*parts[0]), Events(), lambda: None)
    with asking({}, place) as may_ask:
        assert may_ask is None
    key = bytes.fromhex(parts[0][0].key)

    def ask() -> None:
        with asking({"asked": key}, place) as may_ask:
            assert may_ask == Asking(tmp_path / "asked", (key.hex(),))
            Asker(may_ask.folder, (), 60, pytest.fail)._ask(parts)

    with pytest.raises(NeedsError) as caught:
        ask()
    assert list(zip(caught.value.needs, caught.value.beside, strict=True)) == parts
    other = replace(place, folder=tmp_path / "other")
    with pytest.raises(ProcessError, match="something else"), asking({"asked": b""}, other):
        raise ProcessError("something else")


def test_a_backend_that_crashes_does_not_take_the_worker_with_it(stepping: tuple[Need, bytes], tmp_path: Path) -> None:
    request = replace(part_request(*stepping), environment={"STEPPING": "crashes"})
    place = open_workplace(tmp_path, request, Events(), lambda: None)
    with pytest.raises(ProcessError, match=r"the build process crashed \(SIGABRT\)"):
        run_part(request, {"part": stepping[1]}, place)


def test_a_part_has_the_time_that_a_model_of_its_build_has(parts: list[tuple[Need, bytes]], tmp_path: Path) -> None:
    need, data = parts[0]
    assert need.body["timeout"] == 60
    with pytest.raises(ProcessError, match="longer than its time limit of 1 s"):
        made(tmp_path / "unit", need, data, timeout=1)


def test_an_error_of_a_backend_names_the_part(stepping: tuple[Need, bytes], store: Store, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="the backend `stepping` failed") as caught:
        make_here(tmp_path / "part", *stepping, store)
    assert caught.value.where == stepping[0].name
    assert "it was to ask for its steps" in caught.value.found
