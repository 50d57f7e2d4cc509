"""Whatever is written into the files that hatch-lower reads: our error, or what was there before. Nothing else.

Some hundred inputs of each kind, and four times as many with `--all`; a long run tries each byte position and more than
a million inputs in total.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import ALL, LONG
from support.exports import Workshop, settings_of
from support.hostile import MARKER, changed_bytes, changed_document, item_at, strings_in, time_limit, watched
from support.installed import update_entries
from support.loading import load_folder
from support.lowered import floats
from support.plans import (
    Doubling,
    c,
    call,
    constant,
    delegate_entry,
    executor_of,
    graph,
    method,
    op,
    parameter,
    plan_value,
    product,
    python,
    tensor_input,
    v,
)
from support.weights import COMMIT, checkpoint, write_outside

# imported here, so that no test sees it happen
from torch._dynamo import aot_compile, convert_frame
from torch.distributed.elastic.multiprocessing import errors as elastic_errors

from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.cache import reports
from hatch_lower.cache.directory import history_path
from hatch_lower.cache.entry import make_record
from hatch_lower.cache.remote.client import OutputFile, decode_action_result, encode_action_result
from hatch_lower.cache.remote.envelope import SharedEntry, read_envelope, reason_to_refuse_unsigned, write_envelope
from hatch_lower.cache.reports import read_report, report_value
from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.driver.explain import BuildHistory, ModelHistory, read_history, write_history
from hatch_lower.driver.inputs.record import RecordedInputs
from hatch_lower.errors import LowerError, ProgramError
from hatch_lower.events import NullReporter
from hatch_lower.exir.lowering.preprocess import wrong_field
from hatch_lower.exir.lowering.stored_results import read_stored_result
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.manifest import Manifest, read_manifest, write_manifest
from hatch_lower.format.plan import read_plan
from hatch_lower.format.record import MethodRecord, ModelReport
from hatch_lower.format.results import PayloadFile
from hatch_lower.pipeline.lower_model import lower_model, start_build
from hatch_lower.runtime.containers import Record
from hatch_lower.runtime.executor import compile_method, execute_plan
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.sources import hub_file, hub_path
from hatch_lower.runtime.torch_arrays import ARRAYS
from hatch_lower.runtime.writer import MethodWriter

pytestmark = [
    pytest.mark.torch,
    pytest.mark.more,
    pytest.mark.filterwarnings("ignore:model `net` runs its recipe:RuntimeWarning"),
]

SEEDS = 1500 if LONG else 24 if ALL else 6
BATCH = 100 if LONG else 25
"""How many inputs are made of one document."""

SOURCE = """
import torch
from torch.export import Dim
from hatch_lower.model import Method, Model

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return {"y": (x * self.weight).relu(), "n": self.count + x.shape[0]}

def export():
    method = Method((torch.ones(2, 3),), dynamic_shapes={"x": {0: Dim("batch", max=64)}})
    return Model(Net().eval(), {"forward": method})
"""
VALUE = torch.tensor([[1.0, -1.0, 1.0], [2.0, 2.0, 2.0]])
ANSWER = [[1.0, 0.0, 3.0], [2.0, 4.0, 6.0]]
RECIPES = ("default", "portable")

seeds = given(st.integers(0, 2**63))
many = settings(max_examples=SEEDS)


@dataclass(frozen=True)
class Package:
    """A `_lowered` folder as a build makes it, to be damaged and mended."""

    folder: Path
    files: Mapping[str, bytes]

    def load(self, recipe: str | None = None, verify: bool = False) -> LoadedModel:
        return load_folder(self.folder, "net", recipe, delegates={"reference": ReferenceDelegate}, verify=verify)

    def write(self, name: str, data: bytes, *, listed: bool = False) -> None:
        """Replace a file; `listed`: also its size and digest in the manifest."""
        (self.folder / name).write_bytes(data)
        if listed:
            value = json.loads(self.files["manifest.json"])
            update_entries(value, name, data)
            (self.folder / "manifest.json").write_bytes(canonical_json(value))

    def mend(self) -> None:
        for name, data in self.files.items():
            path = self.folder / name
            if path.is_symlink() or path.read_bytes() != data:
                path.unlink()
                path.write_bytes(data)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    shop = Workshop(tmp_path_factory.mktemp("shop"))
    work, folder = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("package") / "_lowered"
    used = settings_of()
    from importlib.metadata import EntryPoint

    with pytest.MonkeyPatch.context() as patch:
        declared = [EntryPoint("reference", "hatch_lower.backends.reference.compile:ReferenceBackend", "x")]
        patch.setattr("hatch_lower.exir.backend.registry.entry_points", lambda group: declared)
        store = Store(work, "off", pytest.fail)
        report = lower_model(*start_build(used, used.models[0], shop.capture(SOURCE), work, NullReporter(), store))
    for each in report.files:
        (folder / each.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(each.source, folder / each.path)
    manifest = Manifest("net", "1.0", "0.1.0", str(torch.__version__), {}, {"net": report.manifest})
    (folder / "manifest.json").write_bytes(write_manifest(manifest))
    files = {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    made = Package(folder, files)
    for recipe in RECIPES:  # imports what loading needs
        made.load(recipe, verify=True).debug_map("forward")
        check_answer(made.load(recipe))
    return made


@pytest.fixture(autouse=True)
def _mended(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "package" in request.fixturenames:
        request.getfixturevalue("package").mend()


def check_answer(model: LoadedModel) -> None:
    result = model(VALUE)
    assert result["y"].tolist() == ANSWER
    assert float(result["n"]) == 3


# each byte


NAMES = [
    "manifest.json",
    *(f"net/{recipe}{suffix}.json" for recipe in RECIPES for suffix in ("", ".debug")),
    "net/constants.safetensors",
    "net/check.safetensors",
    "delegate",
]


def damages(name: str, data: bytes) -> Iterator[bytes]:
    """Yield a file with each byte flipped, and cut off at each length; in CI at a sample of the places."""
    step = 1 if LONG else max(1, len(data) // (80 if ALL else 20))
    for index in range(len(name) % step, len(data), step):
        for mask in (1 << index % 8, 0x20, 0xFF) if LONG else (1 << index % 8,):
            yield data[:index] + bytes([data[index] ^ mask]) + data[index + 1 :]
    for end in range(0, len(data), step):
        yield data[:end]


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_or_missing_byte_gives_our_error_or_the_right_answer(package: Package, name: str) -> None:
    if name == "delegate":
        (name,) = (each for each in package.files if "/delegates/" in each)
    data = package.files[name]
    count = refused = 0
    for index, damaged in enumerate(damages(name, data)):
        package.write(name, damaged)
        for recipe in RECIPES if LONG else (RECIPES[index % 2],):
            for verify in (True, False) if LONG else (index % 3 == 0,):
                count += 1
                try:
                    model = package.load(recipe, verify)
                    if not verify and name.endswith(".safetensors"):
                        continue  # contents of tensors are compared only when asked
                    check_answer(model)
                    model.debug_map("forward")
                except LowerError:
                    refused += 1
    assert refused > count // 4


# documents


def judge(read: Callable[[bytes], object], documents: Iterator[bytes], *expected: type[Exception]) -> None:
    """Read documents; nothing but the expected errors may come out, and nothing may be run or opened elsewhere."""
    for data in documents:
        with time_limit(20), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                read(data)
            except expected:
                pass
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error}; from {data[:3000]!r}") from error


def load_watched(package: Package, name: str, recipe: str | None = None) -> Callable[[bytes], object]:
    """Return what replaces a file, loads, and looks at what was opened, compiled and run."""
    roots = (os.path.realpath(package.folder), *map(os.path.realpath, {sys.prefix, sys.base_prefix, *sys.path[1:]}))

    def read(data: bytes) -> None:
        package.write(name, data, listed=name != "manifest.json")
        with watched() as watch:
            try:
                package.load(recipe).debug_map("forward")
            finally:
                assert watch.forbidden == []
                outside = [each for each in watch.opened if not each.startswith((*roots, "/proc/cpuinfo"))]
                assert outside == []
                assert [each for each in watch.sources if "marker" in each] == []

    return read


def changed(document: bytes, seed: int) -> Iterator[bytes]:
    value, random = json.loads(document), Random(seed)
    return (changed_document(value, random) for _ in range(BATCH))


@pytest.mark.parametrize("name", ["manifest.json", "net/default.json", "net/portable.json", "net/portable.debug.json"])
def test_packaged_documents(package: Package, name: str) -> None:
    read = load_watched(package, name, "portable" if "portable" in name else None)

    @settings(max_examples=SEEDS // 3 if LONG and name != "manifest.json" else SEEDS)
    @seeds
    def check(seed: int) -> None:
        judge(read, changed(package.files[name], seed), LowerError)

    check()


ROW = tensor_input(4)
BATCHED = tensor_input("s0", 4)
SCALED = graph(2, [op("aten.mul.Tensor", v(0), v(1), out=2)], v(2))
RICH = plan_value(
    {
        "forward": method(
            [BATCHED, ROW, {"kind": "literal", "value": 2.5}, {"kind": "symbol", "expr": "s1"}],
            [
                op("aten.sym_size.int", v(0), 0, out=4),
                python("mul", v(4), 2, out=5),
                op("aten.full.default", [v(5), 4], 1.5, out=6, dtype={"dtype": "float32"}),
                op("aten.add.Tensor", v(6), c("w"), out=7, alpha=2),
                {"kind": "cond", "predicate": True, "true": SCALED, "false": SCALED, "args": [v(1), v(1)], "out": 8},
                python("getitem", v(8), 0, out=9),
                {
                    "kind": "while",
                    "condition": graph(1, [python("lt", v(0), 3, out=1)], v(1)),
                    "body": graph(1, [python("add", v(0), 1, out=1)], v(1)),
                    "args": [0],
                    "extra": [],
                    "out": 10,
                },
                {"kind": "map", "body": SCALED, "args": [v(0)], "extra": [v(1)], "out": 11},
                call(0, [v(6)], [tensor_input(product(2, "s0"), 4)], 12),
            ],
            v(7),
            v(9),
            v(12),
            parameters=[
                parameter("x0", {"dict": [["image", "*"], [3, {"tuple": ["*", None]}]]}),
                parameter("x1", {"namedtuple": "collections:Pair", "fields": ["a"], "children": ["*"]}),
                parameter("x2", kind="keyword"),
            ],
            symbols={"s0": {"min": 1, "max": 8, "name": "batch"}, "s1": {"min": 0, "max": None, "name": "s1"}},
            tree={
                "object": "collections:OrderedDict",
                "keys": ["a", "b", "c"],
                "children": ["*", "*", {"list": ["*"]}],
            },
            mutations=[["w", v(1)]],
            input_mutations=[[1, v(1)]],
        ),
    },
    storages=[("w", "float32", 8)],
    constants={"w": constant(0, 4, mutable=True), "half": constant(0, 2, 2, stride=[1, 0], offset=3)},
    delegates=[delegate_entry("doubling", "w", "half", info={"a": [1, {"b": None}]})],
)


@many
@seeds
def test_plans_with_everything_in_them(seed: int) -> None:
    def read(data: bytes) -> None:
        with watched() as watch:
            try:
                plan = read_plan(data, "plan")
                spans = [torch.zeros(min(each.length, 99), dtype=getattr(torch, each.dtype)) for each in plan.storages]
                execute_plan(plan, spans, {"doubling": Doubling}, Path("/nowhere"))
            finally:
                assert watch.forbidden == []
                outside = [each for each in watch.opened if not each.startswith("/nowhere")]
                assert outside == []
                assert [each for each in watch.sources if "marker" in each] == []

    read(canonical_json(RICH))
    random = Random(seed)
    judge(read, (changed_document(RICH, random) for _ in range(BATCH)), LowerError)


@pytest.mark.parametrize("name", ["manifest.json", "net/default.json", "net/default.debug.json"])
def test_the_commands_show_a_changed_document_or_one_error(package: Package, tmp_path: Path, name: str) -> None:
    from click.testing import CliRunner

    from hatch_lower.cli.entry import main

    wheel = tmp_path / "net-1.0-py3-none-any.whl"
    shown = 0

    def read(data: bytes) -> None:
        nonlocal shown
        package.write(name, data, listed=name != "manifest.json")
        with ZipFile(wheel, "w") as archive:
            for each in package.files:
                archive.write(package.folder / each, f"net/_lowered/{each}")
        for command in (["inspect"], ["inspect", "--json"], ["inspect", "--debug", "forward"]):
            done = CliRunner().invoke(main, [command[0], str(wheel), *command[1:]])
            assert isinstance(done.exception, SystemExit | None), (command, done.exception)
            assert (done.exit_code, done.stderr == "") in ((0, True), (1, False))
            assert done.output.replace("\n", "").isprintable()
            shown += done.exit_code == 0

    read(package.files[name])
    assert shown == 3

    @settings(max_examples=SEEDS // 4, deadline=None)
    @seeds
    def check(seed: int) -> None:
        judge(read, changed(package.files[name], seed), LowerError)

    check()
    assert shown > 3


def test_no_text_of_a_file_gets_into_code(package: Package) -> None:
    """Each text, as a key and as a value, becomes Python code, or an identifier with nothing to do."""
    plans = {name: package.files[name] for name in package.files if name in ("net/default.json", "net/portable.json")}
    compiled = 0
    for document in (*plans.values(), canonical_json(RICH)):
        for marker in (MARKER, "zq7marker"):
            value = json.loads(document)
            for path, is_key in strings_in(value):
                changed = json.loads(document)
                holder, key = item_at(changed, path[:-1]), path[-1]
                if is_key:
                    holder[marker] = holder.pop(key)
                else:
                    holder[key] = marker
                # the names of parameters are identifiers in the code too; they are checked when they are read
                is_parameter = marker.isidentifier() and "parameters" in path and key == "name"
                try:
                    plan = read_plan(canonical_json(changed), "plan")
                    same, empty = [None] * len(plan.delegates), ["refuse"] * len(plan.delegates)
                    writers = [MethodWriter(plan, each, ARRAYS, same, empty, is_locked=False) for each in plan.methods]
                    sources = [compile_method(writer).source for writer in writers]
                except LowerError:
                    continue
                compiled += 1
                assert is_parameter or not any("marker" in each for each in sources), path
    assert compiled > 20


RECORDED = RecordedInputs(
    files={"project/a.py": "0" * 64},
    absent=("project/b.py",),
    looks={"project": "folder"},
    times={"project/c.py": "1700000000000000000"},
    listings={"project": "1" * 64},
    importable={"project": "2" * 64},
    modules={"json": "python"},
    distributions={"torch": "2.13.0 abc"},
    environment={"HF_HOME": "set"},
    tools={"g++": "3" * 64},
    globs={"*.bin": "4" * 64},
    unknown=("a socket",),
)


@many
@seeds
def test_recorded_inputs(seed: int) -> None:
    def read(data: bytes) -> None:
        value = encode(decode(RecordedInputs, json.loads(data), ""))
        assert encode(decode(RecordedInputs, value, "")) == value

    judge(read, changed(canonical_json(encode(RECORDED)), seed), ValueError, RecursionError, ProgramError)


KEY = "a" * 64


@many
@seeds
def test_records_of_the_cache(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    said: list[str] = []
    store = Store(tmp_path_factory.getbasetemp() / "hostile-store", "on", said.append)
    store.put(KEY, {"kind": "report"}, {"a": [1, 2.5, "b"], "b": {"c": None}}, [b"blob"])
    path = store.record_path(KEY)
    record = path.read_bytes()
    value = json.loads(record)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        found = store.find(KEY)
        assert found is None or found == value["value"]

    for data in changed(record, seed):
        judge(read, iter([data]))
        # the same, under a digest that fits
        try:
            forged = json.loads(data)
            signed = make_record(KEY, forged["components"], forged["value"], forged["blobs"])
            path.write_bytes(canonical_json({**forged, **signed}))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        with watched() as watch:
            store.find(KEY)
        assert all(each.startswith(os.path.realpath(store.directory)) for each in watch.opened)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_records_that_nest_as_deeply_as_can_be_read(tmp_path: Path, opening: str) -> None:
    store = Store(tmp_path, "on", lambda line: None)
    path = store.record_path(KEY)
    path.parent.mkdir(parents=True)
    closing = "]" if opening == "[" else "}"
    history = history_path(tmp_path, tmp_path)
    history.parent.mkdir()
    for depth in range(sys.getrecursionlimit() // 4, sys.getrecursionlimit() + 20, 1 if LONG else 7):
        deep = opening * depth + "1" + closing * depth
        path.write_text(f'{{"blobs":[],"components":{{}},"value":{deep},"digest":"{KEY}"}}')
        assert store.find(KEY) is None
        history.write_text(f'{{"schema":1,"build":{{"name":"a","version":{deep},"models":{{}}}}}}')
        read_history(tmp_path, tmp_path)


METHOD = MethodRecord("0" * 64, "1" * 64, "2" * 64, {"w": "3" * 64}, "4" * 64)
HISTORY = BuildHistory(
    "digits",
    "1.0",
    {
        "digits": ModelHistory(
            2,
            ("a.py",),
            (),
            {"forward": ("weights",)},
            {"forward": METHOD},
            {"torch": "2.13"},
            (),
            manifest={},
        )
    },
)


@many
@seeds
def test_histories(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "hostile-history"
    write_history(folder, folder, HISTORY)
    path = history_path(folder, folder)
    document = path.read_bytes()
    assert read_history(folder, folder) == HISTORY

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_history(folder, folder)

    judge(read, changed(document, seed))
    write_history(folder, folder, HISTORY)


@dataclass(frozen=True)
class Stored:
    """A report in a store, as a shared cache may bring it."""

    store: Store
    value: Any


@pytest.fixture(scope="module")
def stored(package: Package, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    store = Store(tmp_path_factory.mktemp("reports"), "on", pytest.fail)
    files = tuple(
        PayloadFile(name, package.folder / name, len(data), sha256_bytes(data))
        for name, data in package.files.items()
        if name != "manifest.json"
    )
    manifest = read_manifest(package.files["manifest.json"], "manifest").models["net"]
    value = report_value(store, ModelReport("net", manifest, files, methods={"forward": METHOD}))
    return Stored(store, value)


def test_reports_of_a_shared_cache(stored: Stored) -> None:
    def read(data: bytes) -> None:
        report = read_report(stored.store, json.loads(data))
        if report is not None:
            for each in report.files:
                assert each.path.startswith(f"{report.model}/")
                assert ".." not in each.path.split("/")
                assert each.source.is_relative_to(stored.store.directory)

    read(canonical_json(stored.value))

    @many
    @seeds
    def check(seed: int) -> None:
        # what is no JSON does not get here: the record around it has a digest
        documents = (each for each in changed(canonical_json(stored.value), seed) if is_object(each))
        judge(read, documents)

    check()


def is_object(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


BLOB, DATA = b"blob", b"data"
PARTITION = {
    "blob": sha256_bytes(BLOB),
    "data": {
        "buffers": [sha256_bytes(DATA)],
        "program": [["w", {"buffer": 0, "alignment": 16, "layout": None}]],
        "external": [["t", [["x", {"buffer": 0, "alignment": 16, "layout": None}]]]],
    },
    "debug_handle_map": [[0, [1, 2]]],
    "delegate_info_meta": None,
    "suffix": "bin",
    "requirements": ["torch"],
    "target": None,
    "info": {"a": [1]},
}


def test_unsigned_partitions_of_a_shared_cache(tmp_path: Path) -> None:
    """What is believed can be read as a backend's result, whatever the server says."""
    store = Store(tmp_path, "on", pytest.fail)
    read_back = 0

    def read(data: bytes) -> None:
        nonlocal read_back
        value = json.loads(data)
        if reason_to_refuse_unsigned(value) == "":
            store.put(KEY, {}, value, [BLOB, DATA])
            result = read_stored_result(store, value)
            assert result is None or wrong_field(result) is None
            read_back += result is not None

    @many
    @seeds
    def check(seed: int) -> None:
        # what cannot be read as JSON, or written again, does not get here: an envelope is around it
        judge(read, changed(canonical_json(PARTITION), seed), ValueError, RecursionError)

    check()
    read(canonical_json(PARTITION))
    assert read_back > 1


@pytest.mark.parametrize(
    "path", ["net/../../evil.py", "../net/evil.py", "/evil.py", "other/evil.py", "net", "net/a\\..\\b", 1]
)
def test_a_report_whose_files_would_lie_elsewhere_in_the_wheel(stored: Stored, path: Any) -> None:
    value = json.loads(canonical_json(stored.value))
    assert read_report(stored.store, value) is not None
    assert reports.read_model_result(stored.store, value) is not None
    value["files"][0]["path"] = path
    assert read_report(stored.store, value) is None
    assert reports.read_model_result(stored.store, value) is None


ENTRY = SharedEntry(KEY, {"a": [1, 2.5]}, {"kind": "partition"}, (("b" * 64, 5),), False)
SIGNATURE = {"key": "0123456789abcdef", "ed25519": "AAAA"}


@many
@seeds
def test_envelopes_of_a_shared_cache(seed: int) -> None:
    document = json.loads(write_envelope(ENTRY, None)) | {"signature": SIGNATURE}

    def read(data: bytes) -> None:
        entry, _ = read_envelope(data)
        again, _ = read_envelope(write_envelope(entry, None))
        assert again == entry

    # the client takes both of these for a miss
    judge(read, changed(canonical_json(document), seed), ValueError, RecursionError)


@many
@seeds
def test_action_results_of_a_shared_cache(seed: int) -> None:
    message = encode_action_result([OutputFile("envelope", "c" * 64, 1000), OutputFile("blobs/x", "d" * 64, 0)])

    def read(data: bytes) -> None:
        files = decode_action_result(data)
        assert decode_action_result(encode_action_result(files)) == files

    random = Random(seed)
    judge(read, (changed_bytes(message, random) for _ in range(BATCH)), ValueError)


@pytest.mark.parametrize("where", ["constants", "delegate"])
def test_headers_of_safetensors(package: Package, where: str) -> None:
    name = "net/constants.safetensors"
    if where == "delegate":
        (name,) = (each for each in package.files if "/delegates/" in each)
    data = package.files[name]
    begin = 8 + int.from_bytes(data[:8], "little")
    header = data[begin:] if where == "delegate" else data
    text = header[8 : 8 + int.from_bytes(header[:8], "little")]

    def documents(seed: int) -> Iterator[bytes]:
        for each in changed(text, seed):
            made = len(each).to_bytes(8, "little") + each + header[8 + len(text) :]
            yield data[:begin] + made if where == "delegate" else made

    def read(damaged: bytes) -> None:
        package.write(name, damaged, listed=True)
        if where == "constants":
            value = json.loads((package.folder / "manifest.json").read_bytes())
            length = 8 + int.from_bytes(damaged[:8], "little")
            value["models"]["net"]["constants"]["header_sha256"] = sha256_bytes(damaged[:length])
            (package.folder / "manifest.json").write_bytes(canonical_json(value))
        package.load("portable" if where == "constants" else "default")

    @settings(max_examples=SEEDS // 2)
    @seeds
    def check(seed: int) -> None:
        judge(read, documents(seed), LowerError)

    check()


# weights outside


CHECKPOINT = checkpoint({"weight": floats(1, 2, 3, 4), "bias": floats(10, 20, 30, 40)})
HUB_URL = f"hf://org/name@{COMMIT}/folder/model.safetensors"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a `_lowered` folder with a model whose weights are in the cache of huggingface's hub."""
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HATCH_LOWER_FETCH", raising=False)
    path = hub_path(hub_file(HUB_URL))
    path.parent.mkdir(parents=True)
    path.write_bytes(CHECKPOINT.data)
    return write_outside(tmp_path / "_lowered", {HUB_URL: CHECKPOINT})


def load_outside(folder: Path, weights: bytes, verify: bool) -> None:
    """Load a model with another `weights.json`, and look at what was opened; where all is compared, at the answer."""
    (folder / "digits" / "weights.json").write_bytes(weights)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    update_entries(manifest, "digits/weights.json", weights)
    (folder / "manifest.json").write_bytes(canonical_json(manifest))
    with watched() as watch:
        try:
            answer = load_folder(folder, "digits", verify=verify)(torch.zeros(4)).tolist()
        finally:
            assert watch.forbidden == []
            own = (os.path.realpath(folder), os.path.realpath(folder.parent / "hub"), str(folder.parent / "weights"))
            assert [each for each in watch.opened if not os.path.normpath(each).startswith(own)] == []
    assert answer == [11, 22, 33, 44] or not verify


@pytest.mark.parametrize("verify", [True, False])
def test_places_of_weights_outside(outside: Path, verify: bool) -> None:
    document = (outside / "digits" / "weights.json").read_bytes()
    load_outside(outside, document, verify)

    @settings(max_examples=SEEDS // 2, deadline=None)
    @seeds
    def check(seed: int) -> None:
        judge(lambda data: load_outside(outside, data, verify), changed(document, seed), LowerError)

    check()


@pytest.mark.parametrize("path", ["{elsewhere}", "{up}", "a/../{up}", "x?/../{up}"])
def test_a_file_of_the_hub_that_is_not_in_its_cache(outside: Path, path: str) -> None:
    elsewhere = outside.parent / "elsewhere"
    elsewhere.write_bytes(CHECKPOINT.data)
    for folder in ("x?", "a"):
        (hub_path(hub_file(HUB_URL)).parent.parent / folder).mkdir()
    document = json.loads((outside / "digits" / "weights.json").read_bytes())
    path = path.format(elsewhere=elsewhere, up="../../../../elsewhere")
    url = f"hf://org/name@{COMMIT}/{path}"
    assert hub_path(hub_file(url)).read_bytes() == CHECKPOINT.data
    document["sources"][0]["url"] = url
    with pytest.raises(ProgramError, match="instead of a URL of weights"):
        load_outside(outside, canonical_json(document), verify=False)


# what was found once


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "utf-8-sig"])
@pytest.mark.parametrize("name", ["manifest.json", "net/portable.json", "net/portable.debug.json"])
def test_json_is_utf_8(package: Package, name: str, encoding: str) -> None:
    """Python's own reader guesses the encoding of bytes, and imports a codec for it."""
    package.write(name, package.files[name].decode().encode(encoding), listed=name != "manifest.json")
    with pytest.raises(LowerError):
        package.load("portable").debug_map("forward")


@pytest.mark.parametrize(
    ("instruction", "found"),
    [
        (op("aten.from_file.default", "/etc/passwd", False, 4, out=1), "aten.from_file.default"),
        (python("getitem", 5, 0, out=1), "an item of 5"),
    ],
)
def test_instructions_that_no_build_writes(instruction: Any, found: str) -> None:
    with pytest.raises(ProgramError) as caught:
        executor_of(plan_value(forward=method([ROW], [instruction], v(1))))
    assert caught.value.found == found


def test_sizes_of_what_is_no_tensor() -> None:
    """`5.size(0)` is no Python."""
    executor_of(plan_value(forward=method([ROW], [op("aten.sym_size.int", 5, 0, out=1)], v(1))))


def test_a_parameter_that_python_cannot_assign_to() -> None:
    with pytest.raises(ProgramError, match="'__debug__' instead of an identifier"):
        executor_of(plan_value(forward=method([ROW], [], v(0), parameters=[parameter("__debug__")])))


def test_powers_that_take_forever() -> None:
    size: Any = "s0"
    for _ in range(3):
        size = {"op": "pow", "args": [size, 64]}
    product = {"op": "pow", "args": [{"op": "mul", "args": ["s0"] * 65}, 2]}
    for shape in (size, product):
        entry = {**tensor_input(4), "shape": [shape], "stride": [1]}
        with pytest.raises(ProgramError, match="a power of a power beyond 64"):
            executor_of(plan_value(forward=method([entry], [], v(0), symbols={"s0": {"min": 1, "max": 9}})))


@pytest.mark.parametrize("library", ["torch", "NumPy"])
def test_a_constant_of_more_elements_than_there_are(library: str) -> None:
    huge = constant(0, 2**40, 2**40, stride=[0, 0])
    span = torch.zeros(1) if library == "torch" else np.zeros(4, np.uint8)
    value = plan_value(forward=method([ROW], [], v(0)), storages=[("w", "float32", 1)], constants={"w": huge})
    with pytest.raises(ProgramError, match=f"refused by {library}"):
        executor_of(value, span, arrays=library.lower())


def returned(tree: Any, *leaves: Any) -> Any:
    """Return what a method that returns its input, or some literals, makes of them."""
    value = plan_value(forward=method([ROW], [], *(leaves or (v(0),)), tree=tree))
    with watched() as watch:
        found = executor_of(value).methods["forward"](torch.ones(4))
    imported = [each for each in watch.forbidden if each.startswith("import")]
    assert imported == []
    return found


@pytest.mark.parametrize("owner", ["", "gift", "torch", "hatch-lower", "../gift"])
@pytest.mark.parametrize("module", ["antigravity", "this", "gift.evil", "gift", "unittest.__main__"])
def test_a_class_imports_nothing_but_what_a_distribution_has_installed(
    module: str, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the standard library, nor what lies beside the folder where its parent is on the path."""
    (tmp_path / "gift").mkdir()
    for name in ("__init__", "evil"):
        (tmp_path / "gift" / f"{name}.py").write_text("print('evil')\nclass Class(dict): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(module, None)
    source = {"distribution": owner} if owner else {}
    assert dict(returned({"object": f"{module}:Class", "keys": ["a"], "children": ["*"], **source}))["a"].sum() == 4
    assert module not in sys.modules
    assert capsys.readouterr().out == ""


def object_tree(type_name: str, **children: Any) -> dict[str, Any]:
    return {
        "object": type_name,
        "distribution": "torch",
        "keys": list(children),
        "children": list(children.values()),
    }


def test_a_class_of_torch_that_imports_what_it_is_told_is_a_mapping() -> None:
    """`AOTCompiledFunction` runs `importlib.import_module` on what its fields' fields hold."""
    plain = dict.fromkeys(("bytecode", "pycode", "used_globals", "closure", "argdefs"))
    sources = {"dict": [["m", "*"]]}
    environment = object_tree(f"{convert_frame.__name__}:GraphRuntimeEnv", **plain, import_sources=sources)
    names = ("signature", "guard_manager", "guards_state", "backend_id", "compiled_fn", "original_code")
    names += ("source_info", "device_type", "backend_name")
    artifacts = object_tree(f"{aot_compile.__name__}:CompileArtifacts", **dict.fromkeys(names), runtime_env=environment)
    with suppress(TypeError):  # it did so before it noticed that the rest does not fit
        found = returned(object_tree(f"{aot_compile.__name__}:AOTCompiledFunction", _artifacts=artifacts), "this")
        assert type(found) is Record
    assert "this" not in sys.modules


def test_a_class_of_torch_that_opens_a_file_is_a_mapping(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"message": "secret"}')
    fields = {name: {"tuple": []} for name in ("local_rank", "pid", "exitcode")}
    tree = object_tree(f"{elastic_errors.__name__}:ProcessFailure", **fields, error_file="*")
    assert "secret" not in repr(dict(returned(tree, str(secret)))).replace(str(secret), "")


@pytest.mark.parametrize("marker", ["python_version ~= 'x'", "os_name ~= 'a'"])
def test_a_requirement_that_cannot_be_decided(package: Package, marker: str) -> None:
    value = json.loads(package.files["manifest.json"])
    value["models"]["net"]["recipes"]["portable"]["requirements"] = [f"torch; {marker}"]
    package.write("manifest.json", canonical_json(value))
    with pytest.raises(ProgramError) as caught:
        package.load("portable")
    assert caught.value.found.startswith(f"the requirement {f'torch; {marker}'!r}: ")


# places


OUTSIDE = ["../outside.bin", "net/../../outside.bin", "/etc/hostname", "net//x", "./x", "C:/x", "net\\x", "~/x\0"]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("field", ["plan", "debug", "delegates", "constants", "check"])
def test_a_path_in_a_manifest_that_leaves_its_folder(package: Package, field: str, path: str) -> None:
    value = json.loads(package.files["manifest.json"])
    model = value["models"]["net"]
    entry = model[field] if field in model else model["recipes"]["default"][field]
    (entry[0] if isinstance(entry, list) else entry)["path"] = path
    package.write("manifest.json", canonical_json(value))
    with watched() as watch, pytest.raises(ProgramError):
        package.load()
    assert [each for each in watch.opened if not each.startswith(os.path.realpath(package.folder))] == []


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("field", ["file", "data"])
def test_a_path_in_a_plan_that_leaves_its_folder(package: Package, field: str, path: str) -> None:
    value = json.loads(package.files["net/default.json"])
    if field == "file":
        value["delegates"][0]["file"] = path
    else:
        value["delegates"][0]["data"] = {"x": {"file": path, "size": 4, "alignment": 4, "layout": None}}
    package.write("net/default.json", canonical_json(value), listed=True)
    with watched() as watch, pytest.raises(ProgramError):
        package.load("default")
    assert [each for each in watch.opened if not each.startswith(os.path.realpath(package.folder))] == []


def test_links_out_of_the_folder(package: Package, tmp_path: Path) -> None:
    for name in package.files:
        if name == "manifest.json":
            continue
        outside = tmp_path / "outside"
        outside.write_bytes(package.files[name])
        (package.folder / name).unlink()
        (package.folder / name).symlink_to(outside)
        with pytest.raises(ProgramError, match="a link out of the folder"):
            package.load()
        package.mend()


def test_a_folder_that_is_a_link_out_of_the_folder(package: Package, tmp_path: Path) -> None:
    copy = tmp_path / "_lowered"
    shutil.copytree(package.folder, copy)
    (copy / "net/delegates").rename(tmp_path / "elsewhere")
    (copy / "net/delegates").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProgramError, match="a link out of the folder"):
        Package(copy, package.files).load()


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
@pytest.mark.parametrize("place", [".", "net", "net/delegates", "file"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_delegates_that_every_user_may_replace(package: Package, tmp_path: Path, place: str, mode: int) -> None:
    copy = tmp_path / "_lowered"
    shutil.copytree(package.folder, copy)
    (name,) = (each for each in package.files if "/delegates/" in each)
    open_to_all = copy / (name if place == "file" else place)
    open_to_all.chmod(mode)
    shared = Package(copy, package.files)
    with pytest.raises(ProgramError) as caught:
        shared.load("default")
    assert caught.value.what == "native code is not loaded from a file or folder that every user may write"
    assert caught.value.where == str(open_to_all)
    check_answer(shared.load("portable"))  # it holds no code
    open_to_all.chmod(0o755)
    check_answer(shared.load("default"))
