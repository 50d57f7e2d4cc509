from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from click import Group
from click.testing import CliRunner, Result
from support.installed import update_entries

from hatch_lower import __version__
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.cli.inspect import (
    delegate_text,
    delegates_text,
    engines_text,
    installation_text,
    installed_sizes,
    undelegated_rows,
)
from hatch_lower.cli.output import count, page
from hatch_lower.config.schema import schema_text
from hatch_lower.errors import size_text
from hatch_lower.format.arguments import ConstantName, Symbol, TensorInput, Value
from hatch_lower.format.constants import Constant, DelegateEntry, Storage, TargetEntry
from hatch_lower.format.debug_map import DebugMap, DelegateDebug, MethodDebug, Origin, Undelegated, write_debug
from hatch_lower.format.graph import DelegateCall, Graph, OpCall, PythonCall
from hatch_lower.format.manifest import FileEntry, Manifest, MethodEntry, ModelEntry, RecipeEntry, write_manifest
from hatch_lower.format.plan import MethodPlan, Parameter, Plan, write_plan
from hatch_lower.format.tree import Container, Leaf
from hatch_lower.hatch.terminal import table_lines

IMAGE = TensorInput("float32", ("s0", 8), (8, 1))
PARAMETERS = (Parameter("image", "positional", Leaf()),)
SYMBOLS = {"s0": Symbol(1, 1024, "batch")}
STORAGES = (Storage("w", "float32", 8),)
CONSTANTS = {"weight": Constant(0, "float32", (8,), (1,), 0, False)}
TARGET = TargetEntry("Linux", "x86_64", "x86-64-v3")
BLOB = "digits/delegates/0123456789.so"

DELEGATED = Plan(
    STORAGES,
    CONSTANTS,
    (DelegateEntry("aoti", BLOB, ("weight",), {}, TARGET),),
    {
        "forward": MethodPlan(
            PARAMETERS,
            (IMAGE,),
            SYMBOLS,
            Graph(
                (0,),
                (
                    DelegateCall(0, (Value(0),), (IMAGE,), (IMAGE,), 1),
                    PythonCall("getitem", (Value(1), 0), 2),
                    OpCall("aten.cumsum.default", (Value(2), 0), {}, 3),
                ),
                (Value(3),),
            ),
            (),
            (),
            Container("dict", (Leaf(),), ("logits",)),
        )
    },
)
PORTABLE = Plan(
    STORAGES,
    CONSTANTS,
    (),
    {
        "forward": MethodPlan(
            PARAMETERS,
            (IMAGE,),
            SYMBOLS,
            Graph((0,), (OpCall("aten.mul.Tensor", (Value(0), ConstantName("weight")), {}, 1),), (Value(1),)),
            (),
            (),
            Container("dict", (Leaf(),), ("logits",)),
        )
    },
)
ORIGINS = {
    1: Origin("aten.mul.Tensor", "net.scale", "digits/model.py:7"),
    2: Origin("aten.relu.default", "net.act", "digits/model.py:8"),
    3: Origin("aten.cumsum.default", "", "digits/model.py:31"),
}
DELEGATED_DEBUG = MethodDebug(
    ORIGINS,
    {"0": (1, 2), "2": (3,), "10": (3,)},
    {"0": DelegateDebug("aoti", {"10": (2,), "9": (1, 2)})},
    (Undelegated("cumsum", "aten.cumsum.default", 3, "it has no C shim"),),
)
PORTABLE_DEBUG = MethodDebug(
    {1: ORIGINS[1]}, {"0": (1,)}, {}, (Undelegated("mul", "aten.mul.Tensor", 1, "not taken by any backend"),)
)


def packaged_files() -> dict[str, bytes]:
    """Return a `_lowered` folder with one model, two recipes, one delegate."""
    files = {
        "digits/default.json": write_plan(DELEGATED),
        "digits/default.debug.json": write_debug(DebugMap({"forward": DELEGATED_DEBUG})),
        "digits/portable.json": write_plan(PORTABLE),
        "digits/portable.debug.json": write_debug(DebugMap({"forward": PORTABLE_DEBUG})),
        BLOB: b"native code",
        "digits/constants.safetensors": bytes(2048),
        "digits/check.safetensors": bytes(100),
    }
    entries = {
        path: FileEntry(path, len(data), sha256_bytes(data), "0" * 64 if "constants" in path else "")
        for path, data in files.items()
    }
    recipes = {
        "default": RecipeEntry(
            entries["digits/default.json"],
            entries["digits/default.debug.json"],
            (entries[BLOB],),
            ("aoti",),
            ("hatch-lower>=0.1", "torch==2.13.*"),
            TARGET,
            {"forward": MethodEntry(3, 2, 1)},
        ),
        "portable": RecipeEntry(
            entries["digits/portable.json"],
            entries["digits/portable.debug.json"],
            (),
            (),
            ("hatch-lower>=0.1",),
            None,
            {"forward": MethodEntry(1, 0, 0)},
        ),
    }
    model = ModelEntry(
        ("default", "portable"), entries["digits/constants.safetensors"], entries["digits/check.safetensors"], recipes
    )
    manifest = Manifest("digits", "1.0", "0.1.0", "2.13.0", {"g++": "12.2"}, {"digits": model})
    return {"manifest.json": write_manifest(manifest), **files}


def write_wheel(path: Path, files: Mapping[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"digits/_lowered/{name}", data)
    return str(path)


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    return write_wheel(tmp_path / "digits-1.0-py3-none-any.whl", packaged_files())


def run(*args: str, **environment: str) -> Result:
    return CliRunner().invoke(main, args, env=environment)


def test_an_interrupted_command_has_the_status_that_shells_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("hatch_lower.config.schema.schema_text", interrupt)
    result = CliRunner().invoke(main, ["schema"])
    assert (result.exit_code, result.stderr) == (130, "\nhatch-lower: interrupted\n")


def test_the_package_is_the_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "hatch_lower", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: python -m hatch_lower [OPTIONS] COMMAND [ARGS]...")


def test_the_list_of_commands_says_what_each_does_in_whole_sentences() -> None:
    cache = main.commands["cache"]
    assert isinstance(cache, Group)
    for group in (main, cache):
        width = 72 - max(map(len, group.commands))  # in a terminal of 80 columns
        told = [command.get_short_help_str(width) for command in group.commands.values()]
        assert [text for text in told if not text or text.endswith("...")] == []


def test_inspect_shows_what_a_wheel_holds(wheel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hatch-lower": 500, "torch": 600 << 20, "numpy": 50 << 20}
    monkeypatch.setattr("hatch_lower.cli.inspect.installed_size", lambda name: sizes.get(name, 1 << 20))
    monkeypatch.setattr(
        "hatch_lower.config.requirements.importlib.metadata.requires",
        lambda name: ["numpy", "sympy", "jinja2"] if name == "torch" else [],
    )
    result = run("inspect", wheel)
    assert result.exit_code == 0, result.output
    assert result.output == EXPECTED


EXPECTED = """\
digits 1.0
  in          digits-1.0-py3-none-any.whl: digits/_lowered
  built with  hatch-lower 0.1.0, torch 2.13.0, g++ 12.2

model digits
  weights     2.00 KiB in 1 tensor, shared by all recipes
  check data  100 B

  forward(image: float32[batch, 8]) -> {'logits': tensor}
      batch from 1 to 1024

  recipe    backends  runs on                      size  requires
  default   aoti      Linux x86_64, x86-64-v3  1.55 KiB  hatch-lower>=0.1, torch==2.13.*
  portable  none      any machine                 933 B  hatch-lower>=0.1

  recipe    needs torch  installation
  default   yes          652 MiB (torch 600 MiB, numpy 50.0 MiB, jinja2 1.00 MiB, 2 more 1.00 MiB)
  portable  no           500 B (hatch-lower 500 B)

  recipe    method   nodes  delegated  delegates
  default   forward      3          2  aoti 11 B (01234567)
  portable  forward      1          0  none

  recipe    method   not delegated  op                   first at            why
  default   forward              1  aten.cumsum.default  digits/model.py:31  it has no C shim
  portable  forward              1  all                                      not taken by any backend
"""


def test_inspect_as_json_has_every_number(wheel: str) -> None:
    (report,) = json.loads(run("inspect", wheel, "--json").output)
    model = report["models"]["digits"]
    assert report["tools"] == {"hatch-lower": "0.1.0", "torch": "2.13.0", "g++": "12.2"}
    assert model["order"] == ["default", "portable"]
    assert model["constants"] == {"size": 2048, "tensors": 1}
    assert model["methods"]["forward"] == {
        "signature": "forward(image: float32[batch, 8]); batch from 1 to 1024",
        "inputs": {"image": "float32[batch, 8]"},
        "symbols": {"batch": {"min": 1, "max": 1024}},
        "outputs": "{'logits': tensor}",
    }
    recipe = model["recipes"]["default"]
    assert recipe["target"] == {"system": "Linux", "machine": "x86_64", "isa": "x86-64-v3"}
    assert recipe["requirements"] == ["hatch-lower>=0.1", "torch==2.13.*"]
    assert (recipe["torch"], model["recipes"]["portable"]["torch"]) == (True, False)
    assert recipe["installation"].keys() > {"hatch-lower", "packaging", "torch", "sympy"}
    assert recipe["installation"]["torch"] == max(recipe["installation"].values()) > 100_000_000
    assert recipe["methods"]["forward"] == {
        "nodes": 3,
        "delegated": 2,
        "partitions": 1,
        "delegates": [{"backend": "aoti", "file": BLOB, "size": 11, "constants": 1, "data": {}, "calls": 1}],
        "undelegated": [
            {
                "node": "cumsum",
                "op": "aten.cumsum.default",
                "module": "",
                "source": "digits/model.py:31",
                "reason": "it has no C shim",
            }
        ],
        "left_out": [],
    }


def test_inspect_shows_measured_times_and_the_order_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hatch_lower.runtime.load_order.levels_here", lambda _: ("x86-64-v3",))
    files = packaged_files()
    manifest = json.loads(files["manifest.json"])
    for recipe, seconds in (("default", 0.0123456), ("portable", 2e-5)):
        calls = [{"method": "forward", "sizes": {"batch": 32}, "seconds": seconds}]
        manifest["models"]["digits"]["recipes"][recipe]["measured"] = [
            {"level": "x86-64-v3", "threads": 2, "calls": calls}
        ]
    path = write_wheel(tmp_path / "digits-1.0.whl", {**files, "manifest.json": canonical_json(manifest)})
    lines = run("inspect", path).output.splitlines()
    start = lines.index("  measured on  threads  call                 recipe       ms")
    assert lines[start + 1 : start + 5] == [
        "  x86-64-v3          2  forward, batch = 32  default   12.35",
        "  x86-64-v3          2  forward, batch = 32  portable   0.02",
        "  order on this machine: portable, default",
        "",
    ]
    (report,) = json.loads(run("inspect", path, "--json").output)
    model = report["models"]["digits"]
    assert (model["order"], model["order_here"]) == (["default", "portable"], ["portable", "default"])
    assert model["recipes"]["portable"]["measured"] == [{"level": "x86-64-v3", "threads": 2, "calls": calls}]


def test_inspect_shows_what_a_build_left_out(tmp_path: Path) -> None:
    files = packaged_files()
    manifest = json.loads(files["manifest.json"])
    method = manifest["models"]["digits"]["recipes"]["default"]["methods"]["forward"]
    handle = next(handle for handle, origin in DELEGATED_DEBUG.handles.items() if "cumsum" in origin.op)
    reason = "left out: the backend computed wrong numbers in this build"
    method["left_out"] = [{"place": 7, "backend": "aoti", "handle": handle, "reason": reason}]
    path = write_wheel(tmp_path / "digits-1.0.whl", {**files, "manifest.json": canonical_json(manifest)})
    rows = [
        "  recipe   method   left out of  op                   at                  why",
        "  default  forward  aoti         aten.cumsum.default  digits/model.py:31  the backend computed wrong numbers"
        " in this build",
    ]
    assert run("inspect", path).output.splitlines()[-2:] == rows
    (report,) = json.loads(run("inspect", path, "--json").output)
    shown = report["models"]["digits"]["recipes"]["default"]["methods"]["forward"]["left_out"]
    known = {"op": "aten.cumsum.default", "module": "", "source": "digits/model.py:31"}
    assert shown == [{**known, "backend": "aoti", "place": 7, "reason": reason}]


def test_an_installation_that_is_not_here_has_no_size() -> None:
    sizes = installed_sizes(["hatch-lower>=0.1", "never-published>=2"])
    assert sizes["never-published"] is None
    assert sizes["packaging"] == sum(path.stat().st_size for path in installed_files("packaging"))
    assert installation_text(sizes) == "unknown: never-published not installed here"


def installed_files(name: str) -> list[Path]:
    paths = [Path(str(file.locate())) for file in importlib.metadata.files(name) or ()]
    return [path for path in paths if path.suffix != ".pyc"]


def test_a_delegate_with_named_data() -> None:
    data = {name: {"file": f"digits/data/{name[0]}.bin", "size": 3000} for name in ("a", "again", "b")}
    report = {"backend": "tables", "file": BLOB, "size": 11, "constants": 0, "data": data, "calls": 2}
    assert delegate_text(report) == "tables 11 B (01234567, 2 calls) with 5.86 KiB of named data"


def test_a_delegate_is_named_by_its_digest() -> None:
    delegate = {"backend": "aoti", "file": "net/delegates/sha256_89abcdef01.so", "size": 2048, "data": {}, "calls": 1}
    assert delegate_text(delegate) == "aoti 2.00 KiB (89abcdef)"
    assert delegates_text([delegate] * 5) == f"{', '.join(['aoti 2.00 KiB (89abcdef)'] * 3)}, 2 more of 4.00 KiB"
    assert delegates_text([]) == "none"


def test_reasons_that_differ_in_names_and_numbers_alone_are_one_row() -> None:
    told = [("add", "`add_1` has the type int64"), ("mul", "`mul_3` has the type int64"), ("mul", "`m` is float64")]
    told += [(op, f"`{op}` is not known") for op in ("a", "b", "c", "d", "d")]
    nodes = [
        {"node": "n", "op": op, "module": "", "source": f"net.py:{at}", "reason": why}
        for at, (op, why) in enumerate(told)
    ]
    assert list(undelegated_rows("default", {"forward": {"delegated": 1, "undelegated": nodes}})) == [
        ("default", "forward", "2", "add, mul", "net.py:0", "`add_1` has the type int64 (and alike)"),
        ("default", "forward", "1", "mul", "net.py:2", "`m` is float64"),
        ("default", "forward", "5", "a, b, c and 1 more", "net.py:3", "`a` is not known (and alike)"),
    ]


def test_inspect_reads_a_folder_as_it_reads_a_wheel(wheel: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (report,) = json.loads(run("inspect", wheel, "--json").output)
    for folder in (tmp_path / "site", tmp_path / "site" / "digits" / "_lowered"):
        (again,) = json.loads(run("inspect", str(folder), "--json").output)
        assert {**again, "place": ""} == {**report, "place": ""}


def install(wheel: str, site: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        record = [f"{each},," for each in archive.namelist()]
    information = site / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "RECORD").write_text("\n".join(record) + "\n")


@pytest.mark.parametrize("name", ["digits", "Digit_Models", "digit-models:digits"])
def test_inspect_finds_an_installed_model_or_distribution(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(wheel, tmp_path / "site", "digit_models")
    monkeypatch.syspath_prepend(tmp_path / "site")
    (report,) = json.loads(run("inspect", name, "--json").output)
    assert list(report["models"]) == ["digits"]
    assert report["place"] == str(tmp_path / "site" / "digits" / "_lowered")


def test_an_unknown_name_lists_what_is_installed(wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(wheel, tmp_path / "site", "digit_models")
    monkeypatch.syspath_prepend(tmp_path / "site")
    result = run("inspect", "digit")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: there is no installed model `digit`\n  found: did you mean `digits`? known: "
    )


def test_a_model_that_runs_eagerly_is_not_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_wheel(
        tmp_path / "eager.whl", {"eager.json": b'{"schema":1,"models":{"digits":"digits.model:export"}}'}
    )
    install(source, tmp_path / "site", "digit_models")
    monkeypatch.syspath_prepend(tmp_path / "site")
    result = run("inspect", "digit-models:digits")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: the model `digits` is installed to run eagerly and is not lowered\n"
        "  where: the editable install of `digit_models`\n"
        '  to do: install the project editable with `editable = "lower"`, or not editable\n',
    )


def test_debug_shows_every_instruction_and_delegate_id(wheel: str) -> None:
    result = run("inspect", wheel, "--debug", "forward")
    assert result.exit_code == 0, result.output
    assert result.output == EXPECTED_DEBUG


EXPECTED_DEBUG = """\
digits.forward, recipe default

instruction  op                   module     source
0  delegate of `aoti`
   9
             aten.mul.Tensor      net.scale  digits/model.py:7
             aten.relu.default    net.act    digits/model.py:8
   10
             aten.relu.default    net.act    digits/model.py:8
2, 10        aten.cumsum.default             digits/model.py:31
"""


def test_debug_tells_together_what_follows_each_other_and_comes_from_the_same(tmp_path: Path) -> None:
    relu = Origin("aten.relu.default", "act", "net.py:1")
    handles = dict.fromkeys(range(9), relu) | {9: Origin("aten.mul.Tensor", "", "net.py:2")}
    delegate = DelegateDebug("aoti", {"a": (1,), "b": (2,), "c": (9,)})
    method = MethodDebug(
        handles, {"0": (1, 2, 9), **{str(i): (i, i) for i in range(3, 7)}, "7": (9,)}, {"0": delegate}, ()
    )
    files = relisted(
        packaged_files(), "digits/default.debug.json", write_debug(DebugMap({"forward": method, "embed": method}))
    )
    assert run("inspect", write_wheel(tmp_path / "net.whl", files), "--debug", "embed").output.splitlines()[2:] == [
        "instruction  op                           module  source",
        "0  delegate of `aoti`",
        "   a, b",
        "             aten.relu.default            act     net.py:1",
        "   c",
        "             aten.mul.Tensor                      net.py:2",
        "3 … 6 (4)    aten.relu.default (2 times)  act     net.py:1",
        "7            aten.mul.Tensor                      net.py:2",
    ]


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (["cumsum"], {"2": [], "10": []}),
        (["aten.mul"], {"0": ["9"]}),
        (["model.py:8"], {"0": ["9", "10"]}),
        (["digits/model.py"], {"0": ["9", "10"], "2": [], "10": []}),
        (["aoti"], {"0": ["9", "10"]}),
        (["aoti", "mul"], {"0": ["9"]}),
        (["del.py"], None),
        (["model.py:3"], None),
    ],
)
def test_debug_shows_the_instructions_that_match(
    wheel: str, texts: list[str], left: dict[str, list[str]] | None
) -> None:
    result = run("inspect", wheel, "--debug", "forward", "--json", *(f"--match={text}" for text in texts))
    if left is None:
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: no instruction matches\n")
    else:
        rows = json.loads(result.output)["instructions"]
        assert {row["instruction"]: [each["id"] for each in row.get("map", [])] for row in rows} == left


def test_what_is_longer_than_the_terminal_goes_through_its_pager(monkeypatch: pytest.MonkeyPatch) -> None:
    paged: list[str] = []
    monkeypatch.setattr("click.echo_via_pager", paged.append)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("LINES", "3")
    page(["a", "b"])
    assert paged == []
    page(["a", "b\x1b", "c"])
    assert paged == ["a\nb\\u001b\nc"]


def test_debug_as_json(wheel: str) -> None:
    report = json.loads(run("inspect", wheel, "--debug", "forward", "--recipe", "portable", "--json").output)
    origin = {"op": "aten.mul.Tensor", "module": "net.scale", "source": "digits/model.py:7"}
    assert report == {
        "model": "digits",
        "recipe": "portable",
        "method": "forward",
        "instructions": [{"instruction": "0", "origins": [origin]}],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["backward"],
            "error: the model `digits` has no such method\n  found: did you mean `forward`? known: `forward`\n",
        ),
        (
            ["forward", "--recipe", "portabel"],
            "error: there is no such recipe\n  where: model `digits`\n"
            "  found: did you mean `portable`? known: `default`, `portable`\n",
        ),
        (
            ["forward", "--model", "digit"],
            "error: there is no such model\n  where: digits-1.0-py3-none-any.whl: digits/_lowered\n"
            "  found: did you mean `digits`? known: `digits`\n  to do: select a model with `--model`\n",
        ),
    ],
)
def test_debug_suggests_the_nearest_name(wheel: str, options: list[str], message: str) -> None:
    result = run("inspect", wheel, "--debug", *options)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)


def test_a_damaged_wheel_is_one_message(tmp_path: Path) -> None:
    files = packaged_files()
    files["digits/default.json"] = files["digits/default.json"][:-9]
    result = run("inspect", write_wheel(tmp_path / "damaged.whl", files))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "error: a packaged program file is not the one that the manifest lists\n"
        "  where: damaged.whl: digits/_lowered/digits/default.json\n"
    )


def test_a_wheel_without_a_listed_file_is_one_message(tmp_path: Path) -> None:
    files = packaged_files()
    del files["digits/default.json"]
    result = run("inspect", write_wheel(tmp_path / "incomplete.whl", files))
    assert result.exit_code == 1
    assert "error: a packaged program file cannot be read\n" in result.stderr
    assert "\n  where: incomplete.whl: digits/_lowered/digits/default.json\n" in result.stderr


def relisted(files: Mapping[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    """Return a folder with another file, which the manifest lists with its size and digest."""
    manifest = json.loads(files["manifest.json"])
    update_entries(manifest, name, data)
    return {**files, name: data, "manifest.json": canonical_json(manifest)}


@pytest.mark.parametrize(
    "command", [["inspect"], ["inspect", "--json"], ["inspect", "--debug", "forward"], ["inspect", "--debug", "none"]]
)
def test_a_terminal_obeys_nothing_that_a_wheel_says(tmp_path: Path, command: list[str]) -> None:
    evil = "\x1b]0;pwned\x07\x9b31m\u202e\r\nmodel"
    files = packaged_files()
    method = MethodDebug({1: Origin(evil, evil, evil)}, {"0": (1,)}, {}, (Undelegated("n", evil, 1, evil),))
    debug = DebugMap({"forward": method, evil: method})
    files = relisted(files, "digits/default.debug.json", write_debug(debug))
    manifest = json.loads(files["manifest.json"])
    manifest["version"] = evil
    manifest["models"]["digits"]["recipes"]["default"]["requirements"] = [evil]
    files["manifest.json"] = canonical_json(manifest)
    result = run(command[0], write_wheel(tmp_path / "evil.whl", files), *command[1:])
    assert "\\u001b]0;pwned" in result.output
    assert result.output.replace("\n", "").isprintable()
    assert not any(line.startswith("model") and line != "model digits" for line in result.output.splitlines()[1:])


def test_json_says_what_a_wheel_says_though_nothing_obeys_it(tmp_path: Path) -> None:
    files = packaged_files()
    manifest = json.loads(files["manifest.json"])
    manifest["version"] = "1\x9b\U000e0041é"
    files["manifest.json"] = canonical_json(manifest)
    result = run("inspect", "--json", write_wheel(tmp_path / "digits.whl", files))
    assert "é" in result.output
    assert "\\u009b\\udb40\\udc41" in result.output
    assert json.loads(result.output)[0]["version"] == manifest["version"]


@pytest.mark.parametrize("member", ["manifest.json", "digits/default.json", "digits/default.debug.json"])
def test_a_document_that_inflates_without_end_is_not_read(tmp_path: Path, member: str) -> None:
    files = packaged_files()
    wheel = tmp_path / "bomb.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            if name != member:
                archive.writestr(f"digits/_lowered/{name}", data)
        with archive.open(f"digits/_lowered/{member}", "w") as file:
            for _ in range(80):
                file.write(bytes(1 << 20))
    assert wheel.stat().st_size < 1 << 20
    result = run("inspect", str(wheel))
    assert result.exit_code == 1
    assert f"where: bomb.whl: digits/_lowered/{member}\n" in result.stderr
    assert "found: ValueError: 83886080 bytes, where at most 67108864 are read\n" in result.stderr


def test_a_member_whose_method_may_ask_for_much_memory_is_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.whl", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("digits/_lowered/manifest.json", packaged_files()["manifest.json"])
    result = run("inspect", str(tmp_path / "odd.whl"))
    assert result.exit_code == 1
    assert "found: NotImplementedError: the compression method 14\n" in result.stderr


def test_a_plan_with_other_methods_than_the_manifest_is_one_message(tmp_path: Path) -> None:
    files = packaged_files()
    plan = json.loads(files["digits/default.json"])
    plan["methods"]["embed"] = plan["methods"].pop("forward")
    files = relisted(files, "digits/default.json", canonical_json(plan))
    result = run("inspect", write_wheel(tmp_path / "other.whl", files))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "found: the methods `embed`, where the manifest says `forward`\n" in result.stderr


def test_a_debug_map_that_nests_without_end_is_one_message(tmp_path: Path) -> None:
    files = relisted(packaged_files(), "digits/default.debug.json", b"[" * 100_000)
    result = run("inspect", write_wheel(tmp_path / "deep.whl", files), "--debug", "forward")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: a packaged program file is damaged\n" in result.stderr


def test_a_bare_word_is_a_name_whatever_lies_here(wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, here = tmp_path / "site", tmp_path / "here"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    information = site / "digits-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.4\nName: digits\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[hatch_lower.models]\ndigits = digits:export\n")
    (information / "RECORD").write_text("digits/_lowered/manifest.json,,\n")
    (here / "digits").mkdir(parents=True)
    (here / "other").mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(here)
    for command in (["inspect", "digits"], ["inspect", "digits", "--debug", "forward"], ["check", "digits"]):
        shown = run(*command).output
        assert "digits" in shown
        assert str(here) not in shown
        assert "there are no lowered models" not in shown
    for path in ("./digits", f"digits{os.sep}", str(here / "digits"), "."):
        assert "there are no lowered models here" in run("inspect", path).stderr
    unknown = run("check", "other").stderr
    assert unknown.startswith("error: there is no installed model `other`\n")
    assert unknown.endswith("to do: to open the file or folder of this name, write `./other`\n")


def test_what_is_no_wheel_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "broken.whl").write_bytes(b"not a zip file")
    result = run("inspect", str(tmp_path / "broken.whl"))
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: the wheel cannot be read\n  where: {tmp_path / 'broken.whl'}\n  found: File is not a zip file\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "--only", "digits/*"], "`--only` belongs to `--format dot` and `--format model-explorer`."),
        (["report", "--format", "dot", "--check"], "`--check` belongs to `--format html`."),
        (
            ["report", "--format", "model-explorer", "--against", "other", "--times", "pyproject.toml"],
            "`--against` and `--times` belong to `--format html`.",
        ),
        (["inspect", "--sbom", "--debug", "forward"], "`--sbom` and `--debug` exclude each other."),
    ],
)
def test_options_without_an_effect_are_refused(wheel: str, words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, [*words, wheel])
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_wheel_without_models_says_how_to_get_them(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "plain.whl", "w") as archive:
        archive.writestr("plain/__init__.py", "")
    result = run("inspect", str(tmp_path / "plain.whl"))
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: there are no lowered models here\n  where: {tmp_path / 'plain.whl'}\n"
        "  found: no `_lowered/manifest.json`\n"
        "  to do: build the wheel with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS\n"
    )


@pytest.mark.torch
def test_inspect_without_a_name_says_which_recipes_can_run_here(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(wheel, tmp_path / "site", "digits")
    eager = write_wheel(tmp_path / "eager.whl", {"eager.json": b'{"schema":1,"models":{"tiny":"tiny:export"}}'})
    install(eager, tmp_path / "other", "tiny")
    damaged = write_wheel(tmp_path / "damaged.whl", {"manifest.json": b"{}"})
    install(damaged, tmp_path / "third", "zebra")
    for site in ("site", "other", "third"):
        monkeypatch.syspath_prepend(tmp_path / site)
    monkeypatch.setattr("hatch_lower.runtime.selection.unsupported_reason", lambda target: "the CPU is too old")
    monkeypatch.setattr("hatch_lower.runtime.selection.requirement_reason", lambda text, where: None)
    assert run("inspect").output.splitlines() == [
        "model   distribution  version  recipe    backends  runs here",
        "digits  digits        1.0      default   aoti      no: the CPU is too old",
        "                               portable            yes",
        "tiny    tiny          1.0      eager               yes",
        "        zebra         1.0                          no: a packaged program file is damaged",
    ]
    listed = json.loads(run("inspect", "--json").output)
    assert [each["model"] for each in listed] == ["digits", "tiny", ""]
    assert listed[0]["recipes"][1] == {"recipe": "portable", "backends": [], "reason": None}


def test_schema_prints_what_is_checked_in() -> None:
    assert run("schema").output == schema_text()


def test_the_commands_page_shows_each_option_without_click_internals() -> None:
    markdown = pytest.importorskip("markdown", reason="mkdocs is not installed")
    pytest.importorskip("mkdocs_click", reason="mkdocs-click is not installed")
    page = markdown.markdown(
        (Path(__file__).parents[2] / "docs" / "commands.md").read_text(), extensions=["attr_list", "mkdocs-click"]
    )
    assert "--against-rev REV" in page
    assert "UNSET" not in page
    assert "Sentinel" not in page


def test_version() -> None:
    assert run("--version").output == f"hatch-lower, version {__version__}\n"


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    rows = [("name", "note", "size"), ("a", "", "1"), ("longer", "", "10")]
    assert list(table_lines(rows, indent=1, right=[2])) == [" name    size", " a          1", " longer    10"]
    assert list(table_lines(rows[:1])) == [""]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (2048, "2.00 KiB"), (51200, "50.0 KiB"), (500 << 20, "500 MiB")],
)
def test_sizes_are_short(size: int, text: str) -> None:
    assert size_text(size) == text


def test_counts_have_their_noun() -> None:
    assert [count(1, "node"), count(2, "node"), count(0, "entry", "entries")] == ["1 node", "2 nodes", "0 entries"]


def test_a_command_does_not_show_what_torch_says_of_a_missing_numpy(recwarn: pytest.WarningsRecorder) -> None:
    @main.command("warns", hidden=True)
    def warns() -> None:
        warnings.warn("Failed to initialize NumPy: No module named 'numpy'", UserWarning, stacklevel=1)
        warnings.warn("another one", UserWarning, stacklevel=1)

    try:
        assert run("warns").exit_code == 0
    finally:
        del main.commands["warns"]
    assert [str(warning.message) for warning in recwarn] == ["another one"]


@pytest.mark.parametrize(
    ("backends", "precision", "text"),
    [(["aoti"], "float32", "aoti"), (["aoti"], "int8", "aoti, int8"), ([], "bfloat16", "none, bfloat16")],
)
def test_a_precision_is_shown_beside_the_backends(backends: list[str], precision: str, text: str) -> None:
    assert engines_text({"backends": backends, "precision": precision}) == text
