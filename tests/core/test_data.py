"""Named data from a backend to its delegate: packaged once, listed, checked at load, mapped."""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from support.loading import load_folder
from support.lowered import write_lowered
from support.plans import constant, delegate_entry, plan_of, plan_value
from support.tables import TableDelegate
from torch.export import ExportedProgram

from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import BackendError, ProgramError
from hatch_lower.exir._serialize._named_data_store import NamedDataStoreOutput
from hatch_lower.exir._serialize.data_serializer import DataEntry
from hatch_lower.exir.backend.backend_api import lower_methods, to_backend
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.graph.tensors import span_bytes
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.tensor_layout import TensorLayout
from hatch_lower.format.codec import decode
from hatch_lower.format.constants import Constant, DataFile, DataLayout
from hatch_lower.format.manifest import FileEntry, Manifest, MethodEntry, ModelEntry, RecipeEntry, write_manifest
from hatch_lower.format.plan import read_plan, write_plan
from hatch_lower.pipeline.emit.delegates import bytes_in_own_layout, names_in_constants
from hatch_lower.pipeline.emit.emit import EmittedProgram, MethodToEmit, emit_program
from hatch_lower.pipeline.lower_model import constants_text
from hatch_lower.pipeline.package import Packager
from hatch_lower.runtime.delegates import Place
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.mapped import data_places, map_data

pytestmark = pytest.mark.torch


class Tables(torch.nn.Module):
    def __init__(self, scale: float = 2.0, shift: float = 1.0) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((4,), scale))
        self.shift = torch.nn.Parameter(torch.full((4,), shift))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift


class Scaled(torch.nn.Module):
    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.scale = tables.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * self.scale) * self.scale


def lower(module: torch.nn.Module, options: Mapping[str, bytes] | None = None) -> ExportedProgram:
    """Lower products and sums for tables; everything between two sines is one partition."""
    with torch.no_grad():
        program = to_edge(torch.export.export(module, (torch.ones(4),), strict=False))
    seen: list[str] = []

    def between_sines(node: torch.fx.Node) -> str | None:
        if str(node.target).startswith("aten.sin"):
            seen.append(node.name)
            return None
        return f"tag {len(seen)}"

    return to_backend(program, TagBy(between_sines, "TableBackend", options))


def emit(**programs: ExportedProgram) -> EmittedProgram:
    return emit_program("digits", {name: MethodToEmit(name, each, ("x",)) for name, each in programs.items()})


def package(folder: Path, emitted: EmittedProgram) -> Path:
    """Write a whole `_lowered` folder."""
    packager = Packager(folder, "digits", Store(folder / "cache", "off", pytest.fail))
    files = packager.write_program("default", emitted)
    methods = {name: MethodEntry(nodes=1, delegated=1, partitions=1) for name in emitted.plan.methods}
    recipe = RecipeEntry(files.plan, files.debug, files.delegates, ("TableBackend",), (), None, methods)
    storages = packager.write_storages(emitted.storages, names_in_constants([(emitted.plan, emitted.storages)]))
    models = {"digits": ModelEntry(("default",), storages, None, {"default": recipe})}
    manifest = write_manifest(Manifest("digits", "1.0", "0.1.0", "2.13.0", {}, models))
    (folder / "manifest.json").write_bytes(manifest)
    return folder


def load(folder: Path, **options: Any) -> LoadedModel:
    return load_folder(folder, "digits", delegates={"TableBackend": TableDelegate}, **options)


def delegates_of(model: LoadedModel) -> list[TableDelegate]:
    return model._runnable._delegates  # type: ignore[attr-defined, no-any-return]


def data_paths(folder: Path) -> list[Path]:
    return sorted((folder / "digits" / "data").iterdir())


def test_methods_share_one_copy_of_equal_data(tmp_path: Path) -> None:
    tables = Tables()
    emitted = emit(forward=lower(tables), scaled=lower(Scaled(tables)))
    contents = {name: bytes(span_bytes(getattr(tables, name))) for name in ("scale", "shift")}
    digests = {name: sha256_bytes(content) for name, content in contents.items()}
    assert emitted.data == {digests[name]: content for name, content in contents.items()}
    assert [len(each.data) for each in emitted.plan.delegates] == [2, 1]
    assert emitted.plan.delegates[1].data == {
        f"table {digests['scale'][:16]}": DataFile(
            f"digits/data/{digests['scale']}.blob", 16, 16, DataLayout("float32", (4,), (0,))
        )
    }
    assert read_plan(write_plan(emitted.plan), "plan") == emitted.plan
    folder = package(tmp_path, emitted)
    assert [path.name for path in data_paths(folder)] == sorted(f"{each}.blob" for each in digests.values())
    (recipe,) = json.loads((folder / "manifest.json").read_bytes())["models"]["digits"]["recipes"].values()
    listed = {each["path"]: each for each in recipe["delegates"]}
    for digest in digests.values():
        path = f"digits/data/{digest}.blob"
        assert listed[path] == {"path": path, "size": 16, "sha256": digest}
    model = load(folder)
    for x in (torch.randn(4), torch.randn(4)):
        torch.testing.assert_close(model(x), tables(x).detach())
        torch.testing.assert_close(model.scaled(x), Scaled(tables)(x).detach())


def test_a_delegate_finds_the_data_of_the_whole_program_mapped_read_only(tmp_path: Path) -> None:
    model = load(package(tmp_path, emit(forward=lower(Tables()), other=lower(Tables(3.0, 4.0)))))
    first, second = delegates_of(model)
    assert first.blob.data == second.blob.data
    assert len(first.blob.data) == 4
    assert set(first.blob.layouts) == set(first.blob.data)
    for view in first.blob.data.values():
        assert isinstance(view.obj, mmap.mmap)
        assert view.readonly
        assert view.nbytes == 16
    with pytest.raises(TypeError):
        first.blob.data["new"] = memoryview(b"")  # type: ignore[index]


def test_a_mapping_lives_as_long_as_what_is_made_of_it(tmp_path: Path) -> None:
    folder = package(tmp_path, emit(forward=lower(Tables())))
    model = load(folder)
    (delegate,) = delegates_of(model)
    for path in data_paths(folder):
        path.unlink()
    (twin,) = delegates_of(model.clone())
    assert twin is delegate
    del model, twin
    assert torch.equal(delegate.run([torch.ones(4)])[0], torch.full((4,), 3.0))


def test_data_of_external_files_is_found_by_name_too(tmp_path: Path) -> None:
    folder = package(tmp_path, emit(forward=lower(Tables(), {"tag": b"weights"})))
    assert torch.equal(load(folder)(torch.ones(4)), torch.full((4,), 3.0))


def test_empty_data(tmp_path: Path) -> None:
    plan = plan_of(plan_value({}, delegates=[delegate_entry("tables", data={"none": DATA_FILE})]))
    (tmp_path / "digits" / "data").mkdir(parents=True)
    (tmp_path / "digits" / "data" / "none.blob").touch()
    assert dict(map_data(data_places(plan, tmp_path, ()))) == {"none": memoryview(b"")}


# in the constants file


IN_CONSTANTS = {"tag": b"constants"}


def test_data_in_the_constants_file_lies_where_the_weights_of_others_do(tmp_path: Path) -> None:
    tables = Tables()
    program = to_edge(torch.export.export(tables, (torch.ones(4),), strict=False))
    emitted = emit(forward=lower(tables, IN_CONSTANTS), plain=program)
    assert [storage.dtype for storage in emitted.plan.storages] == ["float32", "float32"]
    (entry,) = emitted.plan.delegates
    assert {named.storage for named in entry.named.values()} == {0, 1}
    assert not entry.data
    folder = package(tmp_path, emitted)
    assert sorted(path.name for path in (folder / "digits").glob("const*")) == ["constants.ptd"]
    model = load(folder, verify=True)
    x = torch.randn(4)
    assert torch.equal(model(x), model.plain(x))
    (delegate,) = delegates_of(model)
    for name, view in delegate.blob.data.items():
        path, offset, length = delegate.blob.data_places[name]
        assert view == path.read_bytes()[offset : offset + length]
        assert view.readonly


def test_bytes_without_a_layout_are_counted_as_laid_out_by_the_backend() -> None:
    plain = emit(forward=lower(Tables(), {**IN_CONSTANTS, "plain": b""})).plan
    assert [(storage.dtype, storage.length) for storage in plain.storages] == [("uint8", 16)] * 2
    assert bytes_in_own_layout([plain, plain]) == {"TableBackend": 32}
    assert bytes_in_own_layout([emit(forward=lower(Tables(), IN_CONSTANTS)).plan]) == {}


def test_bytes_that_are_a_constant_of_the_model_are_not_counted_for_a_backend() -> None:
    plan = emit(forward=lower(Scaled(Tables()), {**IN_CONSTANTS, "plain": b""})).plan
    assert bytes_in_own_layout([plan]) == {"TableBackend": 16}
    used = replace(plan, constants={"bytes": decode(Constant, constant(0, 16, dtype="uint8"), "plan")})
    assert bytes_in_own_layout([used]) == {}


def test_the_build_says_how_many_bytes_only_one_backend_reads() -> None:
    file = FileEntry("net/constants.ptd", 1234567, "0" * 64)
    assert constants_text(file, {}, None) == "1,234,567 bytes"
    assert constants_text(None, {}, None) == "none"
    assert constants_text(file, {"executorch": 2048}, None) == (
        "1,234,567 bytes; 2,048 only for `executorch`, which has a layout of its own"
    )


def test_damaged_data_in_the_constants_file_is_compared_on_demand(tmp_path: Path) -> None:
    folder = package(tmp_path, emit(forward=lower(Tables(), IN_CONSTANTS)))
    path = folder / "digits" / "constants.ptd"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    load(folder)
    with pytest.raises(ProgramError, match="another sha256"):
        load(folder, verify=True)
    content[60] ^= 1  # in what says where ExecuTorch finds a name
    path.write_bytes(content)
    with pytest.raises(ProgramError, match="a header with another sha256 than the manifest says"):
        load(folder)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_constants_file_is_executorchs_own_format(tmp_path: Path) -> None:
    serialize = pytest.importorskip("executorch.extension.flat_tensor.serialize.serialize")
    folder = package(tmp_path, emit(forward=lower(Tables(), IN_CONSTANTS)))
    data = (folder / "digits" / "constants.ptd").read_bytes()
    payload = serialize.FlatTensorSerializer().deserialize(data)
    (entry,) = read_plan((folder / "digits" / "default.json").read_bytes(), "plan").delegates
    assert payload.named_data.keys() == entry.named.keys()
    for name, found in payload.named_data.items():
        assert payload.buffers[found.buffer_index] == load_view(folder, name)
        assert (list(found.tensor_layout.sizes), found.tensor_layout.scalar_type.name) == ([4], "FLOAT")


def load_view(folder: Path, name: str) -> memoryview:
    (delegate,) = delegates_of(load(folder))
    return delegate.blob.data[name]


def test_one_name_for_two_contents_in_two_recipes_is_refused() -> None:
    emitted = [emit(forward=lower(Scaled(Tables(scale)), {**IN_CONSTANTS, "name": b"w"})) for scale in (1.0, 2.0)]
    with pytest.raises(BackendError) as caught:
        names_in_constants((each.plan, each.storages) for each in emitted)
    assert str(caught.value) == (
        "the same name stands for different weights in two recipes\n  where: backend `TableBackend`, named data `w`\n"
        "  to do: name weights by their contents: a model has a single constants file"
    )


def test_one_name_for_the_same_bytes_in_two_forms_is_taken() -> None:
    forms: tuple[dict[str, bytes], ...] = ({}, {"plain": b""})
    lowered = [lower(Scaled(Tables()), {**IN_CONSTANTS, "name": b"w", **form}) for form in forms]
    together = emit(forward=lowered[0], other=lowered[1])
    assert {named.storage for entry in together.plan.delegates for named in entry.named.values()} == {0}
    apart = [emit(forward=each) for each in lowered]
    assert names_in_constants((each.plan, each.storages) for each in apart).keys() == {"w"}


def test_an_alignment_that_the_constants_file_does_not_have_is_refused() -> None:
    with pytest.raises(BackendError) as caught:
        emit(forward=lower(Scaled(Tables()), {**IN_CONSTANTS, "name": b"table", "alignment": b"32"}))
    assert "found: 32 bytes\n  to do: ask for a power of two up to 16" in str(caught.value)


def test_a_file_that_ends_before_its_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "constants.ptd"
    path.write_bytes(bytes(20))
    with pytest.raises(ProgramError, match="20 bytes, where data end at 24"):
        map_data({"w": Place(path, 8, 16)})


def test_a_plan_that_names_other_storages_is_refused() -> None:
    value = json.loads(write_plan(emit(forward=lower(Scaled(Tables()), {**IN_CONSTANTS, "name": b"w"})).plan))
    named = value["delegates"][0]["named"]["w"]

    def refuse(found: str) -> None:
        with pytest.raises(ProgramError, match=found):
            read_plan(json.dumps(value).encode(), "plan")

    for change, found in (
        ({"storage": 1}, "the name 'w' for storage 1 of 1"),
        ({"layout": {"dtype": "float32", "sizes": [3], "dim_order": [0]}}, "16 bytes for 'w' in another layout"),
    ):
        value["delegates"][0]["named"]["w"] = named | change
        refuse(found)
    value["delegates"][0]["named"]["w"] = named
    value["storages"].append({**value["storages"][0], "key": "0" * 64})
    value["delegates"].append(value["delegates"][0])
    for change in (
        {"storage": 1},
        {"layout": {"dtype": "float32", "sizes": [2, 2], "dim_order": [0, 1]}},
    ):
        value["delegates"][1] = {**value["delegates"][0], "named": {"w": named | change}}
        refuse("the name 'w', which stands for different data in another delegate")
    value["delegates"][1] = {**value["delegates"][0], "named": {}, "data": {"w": DATA_FILE}}
    refuse("the name 'w', which stands for different data in another delegate")
    del value["delegates"][1]
    value["constants"]["state"] = constant(0, 4, mutable=True)
    refuse("the name 'w' for a constant that the model changes")


DATA_FILE = {"file": "digits/data/none.blob", "size": 0, "alignment": 1, "layout": None}


def test_without_flatbuffers_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(BackendError, match="needs the package `flatbuffers`, which is not installed"):
        package(tmp_path, emit(forward=lower(Tables(), IN_CONSTANTS)))


# what cannot be packaged


def test_one_name_for_two_contents_is_refused() -> None:
    with pytest.raises(BackendError) as caught:
        emit(
            forward=lower(Scaled(Tables(1.0)), {"name": b"table"}),
            other=lower(Scaled(Tables(2.0)), {"name": b"table"}),
        )
    assert str(caught.value) == (
        "Duplicate key table with different data\n"
        "  where: named data `table`\n"
        "  found: 16 bytes, then 16 different bytes\n"
        "  to do: name data by its content, or by the constant that it comes from"
    )


def test_one_name_for_a_tensor_and_for_bytes_is_refused() -> None:
    tables = Tables()
    with pytest.raises(BackendError) as caught:
        emit(
            forward=lower(Scaled(tables), {"name": b"table"}),
            other=lower(Scaled(tables), {"name": b"table", "plain": b""}),
        )
    assert caught.value.what == "two partitions disagree on the layout or tag of named data"
    assert caught.value.where == "backend `TableBackend`, named data `table`"
    assert caught.value.hint == "give equal data the same layout and tag in all partitions, or different names"


def test_an_alignment_that_a_mapping_does_not_have_is_refused() -> None:
    with pytest.raises(BackendError) as caught:
        emit(forward=lower(Scaled(Tables()), {"name": b"table", "alignment": b"48"}))
    assert str(caught.value) == (
        "named data asks for an alignment that a mapped file does not have\n"
        "  where: backend `TableBackend`, named data `table`\n  found: 48 bytes\n"
        "  to do: ask for a power of two up to 4096"
    )


class OddData(BackendDetails):
    """Returns named data that an option describes."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Any) -> PreprocessResult:
        layouts = {
            "dtype": TensorLayout("float31", (1,), (0,)),
            "size": TensorLayout("float32", (3,), (0,)),
            "order": TensorLayout("float32", (1,), (1,)),
        }
        (spec,) = compile_specs
        if spec.key == "kind":
            return PreprocessResult(data_store_output={"weights": b""})
        name = "" if spec.key == "name" else "table"
        entry = DataEntry(0, 1, layouts.get(spec.key))
        return PreprocessResult(data_store_output=NamedDataStoreOutput([b"1234"], {name: entry}, {}))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "kind",
            "a backend returned an invalid value as named data beside its blob\n"
            "  where: backend `OddData`, `PreprocessResult.data_store_output`\n  found: dict\n"
            "  to do: return `NamedDataStore.get_named_data_store_output()`",
        ),
        ("name", "named data needs a name\n  where: backend `OddData`\n  found: ''\n  to do: give a name without NUL"),
        *(
            (
                option,
                "the layout of named data does not fit the size\n"
                "  where: backend `OddData`, named data `table`\n"
                f"  found: DataLayout(dtype='{dtype}', sizes=({size},), dim_order=({order},)) for 4 bytes\n"
                "  to do: use torch's name of the dtype, `float32`, and each dimension once",
            )
            for option, dtype, size, order in [
                ("dtype", "float31", 1, 0),
                ("size", "float32", 3, 0),
                ("order", "float32", 1, 1),
            ]
        ),
    ],
)
def test_data_that_cannot_be_packaged(option: str, message: str) -> None:
    program = to_edge(torch.export.export(Scaled(Tables()), (torch.ones(4),), strict=False))
    lowered = to_backend(program, TagBy(everything, "OddData", {option: b""}))
    with pytest.raises(BackendError) as caught:
        emit(forward=lowered)
    assert str(caught.value) == message


# damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


NOT_LISTED = "a packaged program file is not the one that the manifest lists"
DAMAGE = {
    "missing": (Path.unlink, "a packaged program file is missing", ""),
    "truncated": (lambda path: path.write_bytes(b"123"), NOT_LISTED, "3 bytes, where the manifest says 16"),
    "flipped": (flip, NOT_LISTED, "another sha256 than the manifest says"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("options", [{"plain": b""}, {}], ids=["bytes", "tensors"])
def test_damaged_data_is_refused_at_load(kind: str, options: dict[str, bytes], tmp_path: Path) -> None:
    """The contents of tensors are compared on demand, as those of the constants are; other data always."""
    folder = package(tmp_path, emit(forward=lower(Tables(), options)))
    load(folder, verify=True)
    path = data_paths(folder)[-1]
    damage, what, found = DAMAGE[kind]
    damage(path)
    with pytest.raises(ProgramError) as caught:
        load(folder, verify=kind == "flipped" and not options)
    assert (caught.value.what, caught.value.where, caught.value.found) == (what, str(path), found)


def test_every_flipped_or_missing_byte_is_refused(tmp_path: Path) -> None:
    folder = package(tmp_path, emit(forward=lower(Tables(), {"plain": b""})))
    for path in data_paths(folder):
        content = path.read_bytes()
        for index in range(len(content)):
            for damaged in (content[:index], content[:index] + bytes([content[index] ^ 4]) + content[index + 1 :]):
                path.write_bytes(damaged)
                with pytest.raises(ProgramError):
                    load(folder)
        path.write_bytes(content)
    load(folder)


def test_data_that_is_gone_when_it_is_mapped(tmp_path: Path) -> None:
    plan = emit(forward=lower(Scaled(Tables()))).plan
    with pytest.raises(ProgramError) as caught:
        map_data(data_places(plan, tmp_path, ()))
    assert caught.value.what == "the named data of a delegate cannot be used"
    assert caught.value.found.startswith("[Errno 2] ")
    (file,) = {each.file for entry in plan.delegates for each in entry.data.values()}
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(b"123")
    with pytest.raises(ProgramError) as caught:
        map_data(data_places(plan, tmp_path, ()))
    assert str(caught.value) == (
        f"the named data of a delegate cannot be used\n  where: {tmp_path / file}\n  found: 3 bytes instead of 16\n"
        "  to do: install the distribution again; if that does not help, build its wheel again"
    )


def test_data_that_the_manifest_lacks(tmp_path: Path) -> None:
    folder = package(tmp_path, emit(forward=lower(Tables())))
    manifest = json.loads((folder / "manifest.json").read_bytes())
    recipe = manifest["models"]["digits"]["recipes"]["default"]
    recipe["delegates"] = [each for each in recipe["delegates"] if "/data/" not in each["path"]]
    write_lowered(folder, manifest["models"])
    with pytest.raises(ProgramError, match=r"the delegate's file 'digits/data/\w+\.blob', which the manifest lacks"):
        load(folder)


# the cache


def test_named_data_is_cached_with_the_result(tmp_path: Path) -> None:
    program = to_edge(torch.export.export(Tables(), (torch.ones(4),), strict=False))

    def build(mode: str, options: Mapping[str, bytes]) -> tuple[Any, int]:
        store = Store(tmp_path, mode, pytest.fail)
        partitioner = TagBy(everything, "TableBackend", options)
        lowered = lower_methods({"m": program}, {"m": partitioner}, store=store)["m"]
        (module,) = get_lowered_backend_modules(lowered.program.graph_module)
        return module.named_data_store_output, lowered.reused

    for chosen in ({"tag": b"weights"}, {}):
        made, reused = build("on", chosen)
        assert reused == 0
        found, reused = build("frozen", chosen)
        assert reused == 1
        assert found == made
        assert len(found.buffers) == 2
        assert (len(found.pte_data), len(found.external_data)) == ((0, 1) if chosen else (2, 0))


def test_a_damaged_buffer_in_the_cache_is_made_again(tmp_path: Path) -> None:
    tables = Tables()
    program = to_edge(torch.export.export(tables, (torch.ones(4),), strict=False))
    warnings: list[str] = []
    reused = []
    digest = sha256_bytes(bytes(span_bytes(tables.shift)))
    for _ in range(2):
        store = Store(tmp_path, "on", warnings.append)
        lowered = lower_methods({"m": program}, {"m": TagBy(everything, "TableBackend")}, store=store)
        reused.append(lowered["m"].reused)
        flip(store.blob_path(digest))
    assert reused == [0, 0]
    assert len(warnings) == 1
