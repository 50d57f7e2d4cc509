"""`hatch-lower diff`: what it says of two wheels, folders and installed models, and of those that cannot be read."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.installed import update_entries
from support.wheels import tensors

from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.driver.diff.tensors import compare_numbers
from hatch_lower.format.arguments import ConstantName, TensorInput, Value
from hatch_lower.format.constants import Constant, DelegateEntry, Storage
from hatch_lower.format.debug_map import DebugMap, DelegateDebug, MethodDebug, Origin, write_debug
from hatch_lower.format.graph import DelegateCall, Graph, Instruction, OpCall, PythonCall
from hatch_lower.format.manifest import FileEntry, Manifest, MethodEntry, ModelEntry, RecipeEntry, write_manifest
from hatch_lower.format.plan import MethodPlan, Parameter, Plan, write_plan
from hatch_lower.format.tree import Leaf

ROW = TensorInput("float32", (2, 4), (4, 1))
CLAMP = ("aten.clamp.default", (-1.0, 6.0))


@dataclass(frozen=True)
class Example:
    """A distribution with one model: `forward` multiplies by `weight` in a delegate, then clamps."""

    version: str = "1.0"
    torch: str = "2.13.0"
    weights: Mapping[str, tuple[float, ...]] | None = None
    operation: tuple[str, tuple[float, ...]] = CLAMP
    delegated: bool = True
    blob: bytes = b"native code"
    methods: tuple[str, ...] = ("forward",)
    requirements: tuple[str, ...] = ("hatch-lower>=0.1",)
    line: int = 31
    model: str = "digits"

    def files(self) -> dict[str, bytes]:
        """Return a `_lowered` folder."""
        weights = self.weights or {"net.weight": (1.0, 2.0, 3.0, 4.0), "net.bias": (0.5,)}
        data = {name: struct.pack(f"<{len(values)}f", *values) for name, values in weights.items()}
        keys = {name: sha256_bytes(each) for name, each in data.items()}
        blob = f"{self.model}/delegates/{sha256_bytes(self.blob)}.so"
        delegates = (DelegateEntry("aoti", blob, ("net.weight",), {}, None),) if self.delegated else ()
        plan = Plan(
            tuple(Storage(keys[name], "float32", len(values)) for name, values in weights.items()),
            {
                name: Constant(at, "float32", (len(values),), (1,), 0, False)
                for at, (name, values) in enumerate(weights.items())
            },
            delegates,
            {
                name: MethodPlan((Parameter("image", "positional", Leaf()),), (ROW,), {}, self.graph(), (), (), Leaf())
                for name in self.methods
            },
        )
        handles = {1: Origin("aten.mul.Tensor", "net", "digits/model.py:30")}
        handles[2] = Origin(self.operation[0], "", f"digits/model.py:{self.line}")
        instructions = {"0": (1,), "2": (2,)} if self.delegated else {"0": (1,), "1": (2,)}
        called = {"0": DelegateDebug("aoti", {"0": (1,)})} if self.delegated else {}
        debug = DebugMap(dict.fromkeys(self.methods, MethodDebug(handles, instructions, called, ())))
        files = {
            f"{self.model}/default.json": write_plan(plan),
            f"{self.model}/default.debug.json": write_debug(debug),
            f"{self.model}/constants.safetensors": tensors(
                {keys[name]: ("F32", [len(values)], data[name]) for name, values in weights.items()}
            ),
        }
        files |= {blob: self.blob} if self.delegated else {}
        entries = {
            path: FileEntry(path, len(each), sha256_bytes(each), "0" * 64 if "constants" in path else "")
            for path, each in files.items()
        }
        recipe = RecipeEntry(
            entries[f"{self.model}/default.json"],
            entries[f"{self.model}/default.debug.json"],
            (entries[blob],) if self.delegated else (),
            ("aoti",) if self.delegated else (),
            self.requirements,
            None,
            dict.fromkeys(self.methods, MethodEntry(2, int(self.delegated), int(self.delegated))),
        )
        constants = entries[f"{self.model}/constants.safetensors"]
        model = ModelEntry(("default",), constants, None, {"default": recipe})
        manifest = Manifest("digits", self.version, "0.1.0", self.torch, {"g++": "12.2"}, {self.model: model})
        return {"manifest.json": write_manifest(manifest), **files}

    def graph(self) -> Graph:
        """Return what a method does."""
        name, arguments = self.operation
        if not self.delegated:
            calls: tuple[Instruction, ...] = (
                OpCall("aten.mul.Tensor", (Value(0), ConstantName("net.weight")), {}, 1),
                OpCall(name, (Value(1), *arguments), {}, 2),
            )
            return Graph((0,), calls, (Value(2),))
        calls = (
            DelegateCall(0, (Value(0),), (ROW,), (ROW,), 1),
            PythonCall("getitem", (Value(1), 0), 2),
            OpCall(name, (Value(2), *arguments), {}, 3),
        )
        return Graph((0,), calls, (Value(3),))


def write_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    requires: tuple[str, ...] = ("torch==2.13.*",),
    components: Mapping[str, str] | None = None,
    method: int = zipfile.ZIP_STORED,
) -> str:
    """Write a wheel with a `_lowered` folder, METADATA and an SBOM."""
    folder.mkdir(exist_ok=True)
    path = folder / "digits-1.0-py3-none-any.whl"
    metadata = "".join(
        ["Metadata-Version: 2.4\nName: digits\nVersion: 1.0\n", *(f"Requires-Dist: {text}\n" for text in requires)]
    )
    listed = [{"type": "library", "name": name, "version": text} for name, text in (components or {}).items()]
    sbom = json.dumps({"components": listed, "metadata": {"tools": {"components": []}}})
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(f"digits/_lowered/{name}", data)
        archive.writestr("digits-1.0.dist-info/METADATA", metadata)
        archive.writestr("digits-1.0.dist-info/sboms/hatch-lower.cdx.json", sbom)
        archive.writestr("digits-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in archive.namelist()))
    return str(path)


def diff(first: str | Path, second: str | Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["diff", str(first), str(second), *options])


def changes(tmp_path: Path, first: Example, second: Example) -> dict[str, Any]:
    """Return the changes of two wheels by their places; RECORD-like facts (sizes, digests of files) only as lines."""
    result = diff(
        write_wheel(tmp_path / "first", first.files()), write_wheel(tmp_path / "second", second.files()), "--json"
    )
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["equal"] else 1), result.output
    assert report["equal"] == (not report["changes"])
    return {"/".join(each["place"]): each for each in report["changes"]}


MODEL = "models/digits"
RECIPE = f"{MODEL}/recipes/default"


def test_equal_wheels_have_status_0(tmp_path: Path) -> None:
    first, second = (write_wheel(tmp_path / name, Example().files()) for name in ("first", "second"))
    result = diff(first, second)
    assert result.exit_code == 0, result.output
    assert result.output == f"- digits 1.0 ({first})\n+ digits 1.0 ({second})\nthe lowered models are equal\n"


def test_a_folder_is_compared_with_a_wheel(tmp_path: Path) -> None:
    files = Example().files()
    for name, data in files.items():
        path = tmp_path / "digits" / "_lowered" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    wheel = write_wheel(tmp_path / "wheel", files, requires=())
    assert diff(tmp_path / "digits", wheel).exit_code == 0


@pytest.mark.parametrize("name", ["digits", "digits:digits"])
def test_an_installed_package_is_compared_with_a_wheel(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path / "wheel", Example().files(), components={"torch": "1"})
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert diff(name, wheel).exit_code == 0
    other = write_wheel(tmp_path / "other", Example().files(), ("torch==2.14.*",), {"torch": "2"})
    report = json.loads(diff(name, other, "--json").stdout)
    assert [each["place"] for each in report["changes"]] == [["requirements", "torch"], ["components", "library torch"]]


def test_a_changed_weight_is_named_with_its_largest_change(tmp_path: Path) -> None:
    other = Example(weights={"net.weight": (1.0, 2.5, 3.0, 4.0), "net.bias": (0.5,)})
    found = changes(tmp_path, Example(), other)
    change = found[f"{MODEL}/tensors/net.weight"]
    assert change["lines"] == ["1 of 4 numbers differ, by up to 0.5, or 0.2 of their size"]
    assert (change["first"]["dtype"], change["first"]["shape"]) == ("float32", [4])
    assert [place for place in found if "tensors" in place] == [f"{MODEL}/tensors/net.weight"]
    assert set(found) == {
        f"{MODEL}/tensors/net.weight",
        f"{MODEL}/files/weights",
        f"{RECIPE}/files/plan",  # which names tensors by their digests
    }


def test_added_and_removed_tensors_are_named(tmp_path: Path) -> None:
    more = Example(weights={"net.weight": (1.0, 2.0, 3.0, 4.0), "net.scale": (0.5, 0.5)})
    found = changes(tmp_path, Example(), more)
    assert found[f"{MODEL}/tensors/net.bias"]["second"] is None
    assert found[f"{MODEL}/tensors/net.scale"]["first"] is None
    assert found[f"{MODEL}/tensors/net.scale"]["second"]["shape"] == [2]


def test_a_changed_operation_is_counted_and_placed(tmp_path: Path) -> None:
    found = changes(tmp_path, Example(), Example(operation=("aten.relu.default", ())))
    operations = f"{RECIPE}/methods/forward/operations"
    assert (found[f"{operations}/aten.clamp.default"]["first"], found[f"{operations}/aten.relu.default"]["second"]) == (
        1,
        1,
    )
    assert found[f"{RECIPE}/files/plan"]["lines"] == ["aten.clamp → aten.relu (digits/model.py:31)"]


def test_a_changed_argument_is_said_where_the_plan_runs_the_operation(tmp_path: Path) -> None:
    found = changes(tmp_path, Example(), Example(operation=("aten.clamp.default", (-1.0, 1.0))))
    assert found[f"{RECIPE}/files/plan"]["lines"] == ["aten.clamp argument 2 6.0 → 1.0 (digits/model.py:31)"]
    assert set(found) == {f"{RECIPE}/files/plan"}


def test_moved_lines_change_the_debug_map_alone(tmp_path: Path) -> None:
    assert set(changes(tmp_path, Example(), Example(line=99))) == {f"{RECIPE}/files/debug map"}


def test_an_added_method_is_named(tmp_path: Path) -> None:
    found = changes(tmp_path, Example(), Example(methods=("forward", "embed")))
    assert found[f"{MODEL}/methods/embed"]["second"]["signature"].startswith("embed(image:")
    assert found[f"{RECIPE}/methods/embed"]["second"]["operations"] == {
        "aten.mul.Tensor": 1,
        "aten.clamp.default": 1,
    }


def test_backends_and_the_delegated_share_are_compared(tmp_path: Path) -> None:
    found = changes(tmp_path, Example(), Example(delegated=False))
    assert (found[f"{RECIPE}/backends"]["first"], found[f"{RECIPE}/backends"]["second"]) == (["aoti"], [])
    share = found[f"{RECIPE}/methods/forward/share"]
    assert (share["first"], share["second"]) == (0.5, 0.0)
    assert found[f"{RECIPE}/files/delegate 0 (aoti)"]["second"] is None
    assert found[f"{RECIPE}/files/plan"]["lines"] == []  # the same operations, whoever runs them


def test_another_delegate_is_a_change_of_that_file(tmp_path: Path) -> None:
    found = changes(tmp_path, Example(), Example(blob=b"other native code"))
    change = found[f"{RECIPE}/files/delegate 0 (aoti)"]
    assert (change["first"]["size"], change["second"]["size"]) == (11, 17)


def test_tools_and_version_are_compared(tmp_path: Path) -> None:
    found = changes(tmp_path, Example(), Example(version="1.1", torch="2.13.1"))
    assert {place: (each["first"], each["second"]) for place, each in found.items()} == {
        "distribution/version": ("1.0", "1.1"),
        "tools/torch": ("2.13.0", "2.13.1"),
    }


def test_requirements_are_compared_by_what_they_are_of(tmp_path: Path) -> None:
    first = write_wheel(tmp_path / "first", Example().files(), ("torch==2.13.*", "numpy"))
    second = write_wheel(
        tmp_path / "second", Example(requirements=("hatch-lower>=0.2",)).files(), ("torch==2.14.*", "numpy")
    )
    report = json.loads(diff(first, second, "--json").stdout)
    assert [(each["place"], each["first"], each["second"]) for each in report["changes"]] == [
        (["requirements", "torch"], "==2.13.*", "==2.14.*"),
        (["models", "digits", "recipes", "default", "requirements", "hatch-lower"], ">=0.1", ">=0.2"),
    ]


def test_components_of_the_sbom_are_compared(tmp_path: Path) -> None:
    first = write_wheel(tmp_path / "first", Example().files(), components={"torch": "2.13.0", "numpy": "2.0"})
    second = write_wheel(tmp_path / "second", Example().files(), components={"torch": "2.13.1"})
    report = json.loads(diff(first, second, "--json").stdout)
    assert [(each["place"], each["first"], each["second"]) for each in report["changes"]] == [
        (["components", "library torch"], "2.13.0", "2.13.1"),
        (["components", "library numpy"], "2.0", None),
    ]


def test_single_models_are_compared_whatever_their_names_are(tmp_path: Path) -> None:
    found = changes(tmp_path, Example(), replace(Example(), model="letters"))
    assert (found["models/digits/name"]["first"], found["models/digits/name"]["second"]) == ("digits", "letters")
    assert not any(place.startswith("models/letters") for place in found)


def test_every_place_is_documented(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "diff.md").read_text().partition("| place | value |")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    words = [set(re.findall(r"`([^`]+)`", row)) for row in rows]
    second = Example(
        version="1.1",
        torch="2.13.1",
        weights={"net.weight": (1.0, 2.5, 3.0, 4.0), "net.scale": (0.5,)},
        operation=("aten.relu.default", ()),
        delegated=False,
        requirements=("hatch-lower>=0.2",),
        model="letters",
    )
    for place, change in changes(tmp_path, Example(), second).items():
        names = {"digits", "default", "forward", *(change["place"][-1:] if "/" in place else ())}
        fixed = set(change["place"]) - names
        assert any(fixed <= row for row in words), place


def test_people_read_headings_and_indented_changes(tmp_path: Path) -> None:
    first = write_wheel(tmp_path / "first", Example().files())
    other = Example(
        version="1.1",
        weights={"net.weight": (1.0, 2.5, 3.0, 4.0), "net.bias": (0.5,)},
        operation=("aten.relu.default", ()),
    )
    second = write_wheel(tmp_path / "second", other.files())
    result = diff(first, second)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[:2] == [f"- digits 1.0 ({first})", f"+ digits 1.1 ({second})"]
    assert lines[2:7] == [
        "distribution version: 1.0 → 1.1",
        "model digits",
        "  tensor net.weight: float32[4], other contents",
        "    1 of 4 numbers differ, by up to 0.5, or 0.2 of their size",
        lines[6],
    ]
    assert lines[6].startswith("  file weights: ")
    assert "  recipe default" in lines
    assert "    method forward" in lines
    assert "      operation aten.clamp.default: removed: 1" in lines


# what cannot be read, or was written by an enemy


def is_trouble(result: Result, text: str) -> None:
    """See that a comparison ended with status 2 and one message."""
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert text in result.stderr


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("member", sorted(Example().files()))
def test_a_damaged_file_is_trouble(tmp_path: Path, member: str, turned: bool) -> None:
    files = Example().files()
    files[member] = files[member][:-1] + bytes([files[member][-1] ^ 1])
    sides = write_wheel(tmp_path / "first", Example().files()), write_wheel(tmp_path / "second", files)
    is_trouble(diff(*(sides[::-1] if turned else sides)), "manifest")


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "missing"])
def test_a_wheel_that_cannot_be_read_is_trouble(tmp_path: Path, damage: str) -> None:
    wheel = write_wheel(tmp_path / "first", Example().files())
    other = tmp_path / "other.whl"
    if damage != "missing":
        data = Path(wheel).read_bytes()
        other.write_bytes({"empty": b"", "cut": data[:-40], "text": b"x" * 500}[damage])
    is_trouble(diff(wheel, other), "the wheel cannot be read")


def test_what_has_no_lowered_models_is_trouble(tmp_path: Path) -> None:
    is_trouble(diff(tmp_path, tmp_path), "there are no lowered models here")
    is_trouble(diff("nowhere-installed", "nowhere-installed"), "nowhere-installed")


def test_a_file_that_inflates_without_end_is_not_read(tmp_path: Path) -> None:
    files = Example().files()
    size = 80 << 20
    manifest = json.loads(files["manifest.json"])
    update_entries(manifest, "digits/constants.safetensors", bytes(size))
    bomb = tmp_path / "bomb.whl"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in (files | {"manifest.json": canonical_json(manifest)}).items():
            archive.writestr(f"digits/_lowered/{name}", bytes(size) if "constants" in name else data)
    assert bomb.stat().st_size < 1 << 20
    is_trouble(diff(bomb, bomb), f"{size} bytes, where at most 67108864 are read")


def test_a_member_whose_method_may_ask_for_much_memory_is_not_read(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "odd", Example().files(), method=zipfile.ZIP_LZMA)
    is_trouble(diff(wheel, wheel), "the compression method 14")


def test_compressed_files_are_compared_too(tmp_path: Path) -> None:
    other = Example(weights={"net.weight": (1.0, 2.5, 3.0, 4.0), "net.bias": (0.5,)})
    first = write_wheel(tmp_path / "first", Example().files(), method=zipfile.ZIP_DEFLATED)
    second = write_wheel(tmp_path / "second", other.files())
    assert "1 of 4 numbers differ" in diff(first, second).output


def test_a_stored_member_that_lies_elsewhere_is_trouble(tmp_path: Path) -> None:
    """Its place in the directory leads into another member, whose bytes are not what the manifest lists."""
    wheel = Path(write_wheel(tmp_path / "first", Example().files()))
    data = bytearray(wheel.read_bytes())
    name = b"digits/_lowered/digits/constants.safetensors"
    entry = data.rindex(name) - 46
    data[entry + 42 : entry + 46] = struct.pack("<I", 0)
    wheel.write_bytes(data)
    is_trouble(diff(wheel, wheel), "BadZipFile")


def test_a_terminal_obeys_nothing_that_a_wheel_says(tmp_path: Path) -> None:
    evil = "\x1b]0;pwned\x07\x9b31m\u202e\r\nmodel"
    other = Example(version=evil, torch=evil, requirements=(evil,), operation=(evil, ()), delegated=False)
    files = other.files()
    plan = json.loads(files["digits/default.json"])
    plan["methods"]["forward"]["graph"]["instructions"][1]["op"] = "aten.relu.default"
    manifest = json.loads(files["manifest.json"])
    files["digits/default.json"] = canonical_json(plan)
    update_entries(manifest, "digits/default.json", files["digits/default.json"])
    files["manifest.json"] = canonical_json(manifest)
    first = write_wheel(tmp_path / "first", Example().files(), components={"torch": "1"})
    second = write_wheel(tmp_path / "second", files, (evil,), {evil: evil})
    for options in ((), ("--json",)):
        result = diff(first, second, *options)
        assert result.exit_code == 1, result.output
        assert "\\u001b]0;pwned" in result.output
        assert result.output.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "sbom",
    [
        "[]",
        "{",
        '{"components": 1}',
        '{"components": [1], "metadata": {}}',
        "[" * 100_000,
        '{"metadata": {"tools": []}}',
    ],
)
def test_a_damaged_sbom_is_trouble(tmp_path: Path, sbom: str) -> None:
    wheel = write_wheel(tmp_path / "first", Example().files())
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            target.writestr(name, sbom if name.endswith(".cdx.json") else source.read(name))
    is_trouble(diff(wheel, other), "the SBOM cannot be read")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{}",
        b'{"KEY":1}',
        b'{"KEY":{"dtype":"F32","shape":[4],"data_offsets":[0,99999]}}',
        b'{"KEY":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}',
        b'{"KEY":{"dtype":7,"shape":[4],"data_offsets":[0,16]}}',
        b'{"KEY":{"dtype":"F99","shape":[4],"data_offsets":[0,16]}}',
    ],
)
def test_a_header_of_weights_that_lies_leaves_the_numbers_uncompared(tmp_path: Path, header: bytes) -> None:
    other = Example(weights={"net.weight": (1.0, 2.5, 3.0, 4.0), "net.bias": (0.5,)})
    files = other.files()
    key = sha256_bytes(struct.pack("<4f", 1.0, 2.5, 3.0, 4.0)).encode()
    text = header.replace(b"KEY", key)
    files["digits/constants.safetensors"] = struct.pack("<Q", len(text)) + text + bytes(16)
    manifest = json.loads(files["manifest.json"])
    update_entries(manifest, "digits/constants.safetensors", files["digits/constants.safetensors"])
    files["manifest.json"] = canonical_json(manifest)
    result = diff(write_wheel(tmp_path / "first", Example().files()), write_wheel(tmp_path / "second", files))
    assert result.exit_code == 1, result.output
    assert "tensor net.weight: float32[4], other contents" in result.output
    assert "numbers differ" not in result.output


# numbers


def of(code: str, *values: float) -> memoryview:
    return memoryview(struct.pack(f"<{len(values)}{code}", *values))


def test_numbers_of_several_pieces_are_all_compared() -> None:
    count = 3 << 18
    first, second = bytearray(count * 4), bytearray(count * 4)
    second[-4:] = of("f", 8.0)
    second[:4] = of("f", -2.0)
    change = compare_numbers("F32", memoryview(first), memoryview(second))
    assert (change.total, change.different, change.largest, change.relative) == (count, 2, 8.0, 1.0)
    assert change.sides() == ("0, 0", "-2, 8")


@pytest.mark.parametrize(
    ("dtype", "first", "second", "different", "largest"),
    [
        ("F32", of("f", float("nan"), 1), of("f", float("nan"), 1.5), 1, 0.5),
        ("F32", of("f", 0.0), of("f", -0.0), 0, 0.0),
        ("F32", of("f", float("inf")), of("f", 1), 1, float("inf")),
        ("F32", of("f", float("nan")), of("f", 1), 1, float("inf")),
        ("I64", of("q", 1 << 60), of("q", (1 << 60) + 1), 1, 0.0),
        ("U8", of("B", 1, 2), of("B", 1, 5), 1, 3.0),
        ("BOOL", of("B", 0), of("B", 1), 1, 1.0),
        ("C64", of("f", 1, 2), of("f", 1, 4), 1, 2.0),
        ("F16", of("e", 1, 2), of("e", 1, 4), 1, 2.0),
        ("F8_E4M3", memoryview(b"\0\1"), memoryview(b"\1\1"), 1, 2**-9),
        ("F4", memoryview(b"\0\1"), memoryview(b"\1\1"), 0, 0.0),
    ],
)
def test_numbers_of_every_kind(
    dtype: str, first: memoryview, second: memoryview, different: int, largest: float
) -> None:
    change = compare_numbers(dtype, first, second)
    assert (change.different, change.largest) == (different, largest)
