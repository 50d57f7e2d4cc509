"""`hatch-lower check`: packaged inputs are run, and what comes out is compared with what eager returned."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from support.exports import Workshop, packaged, packaged_report, settings_of, write_folder, write_wheel
from support.installed import update_entries
from support.kept_events import Events
from support.lowered import install
from support.quantized import mlp, quantized
from support.without_torch import run_without_torch

from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.config.settings import Recipe
from hatch_lower.errors import UnavailableError
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.emit.constants import constants_bytes
from hatch_lower.runtime.check import check_packaged_model, mark_name
from hatch_lower.runtime.files import open_folder
from hatch_lower.runtime.leaves import stored_arrays
from hatch_lower.runtime.mapped import ConstantsFile
from hatch_lower.runtime.numbers import QUANTIZED_MARK, Tolerance
from hatch_lower.runtime.torch_arrays import ARRAYS

pytestmark = pytest.mark.torch

CHECK = "net/check.safetensors"

KINDS = """\
import torch
from hatch_lower import Method, Model


class Kinds(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, pair, table, *, half, wide, mask):
        table.mul_(2)
        self.count.add_(1)
        return pair[0] / pair[1]["by"], (half * 3, [wide * 2, ~mask]), table.sum(0), self.count.clone()

    def sized(self, x, n):
        return x.sum() * n

    def literal(self, x, flag):
        return x + 1 if flag else x


def export():
    zeros = torch.tensor([0.0, 1.0, -1.0])
    wide = torch.tensor([[1 + 2j, 3j]], dtype=torch.complex128)
    half = torch.tensor([0.1, 3.0], dtype=torch.bfloat16)
    forward = Method(
        ((zeros, {"by": zeros * 0}), torch.arange(6.0).reshape(2, 3).t()),
        {"mask": torch.tensor([True, False]), "wide": wide, "half": half},
    )
    number = torch.export.Dim("n", min=2, max=64)
    dynamic = {"x": None, "n": torch.export.Dim.DYNAMIC}
    return Model(Kinds().eval(), {
        "forward": forward,
        "sized": Method((torch.ones(3), 5), dynamic_shapes=dynamic),
        "literal": Method((torch.ones(2), True)),
    })
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def net(shop: Workshop) -> Mapping[str, bytes]:
    return packaged(shop)


@pytest.fixture(scope="module")
def kinds(shop: Workshop) -> Mapping[str, bytes]:
    return packaged(shop, KINDS)


def with_manifest(files: Mapping[str, bytes], change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    """Return the files with another manifest; `change` is given the model's entry."""
    manifest = json.loads(files["manifest.json"])
    change(manifest["models"]["net"])
    return {**files, "manifest.json": canonical_json(manifest)}


def with_check(files: Mapping[str, bytes], data: bytes) -> dict[str, bytes]:
    """Return the files with other check data, and a manifest that lists it."""

    def change(model: dict[str, Any]) -> None:
        model["check"] |= {"size": len(data), "sha256": sha256_bytes(data)}

    return with_manifest({**files, CHECK: data}, change)


def with_asset(files: Mapping[str, bytes], data: bytes) -> dict[str, bytes]:
    """Return the files with one that the project packages for the model."""

    def change(model: dict[str, Any]) -> None:
        model["assets"] = {"labels.txt": {"path": "net/assets/labels.txt", "size": 4, "sha256": sha256_bytes(b"1 2\n")}}

    return with_manifest({**files, "net/assets/labels.txt": data}, change)


def edited(files: Mapping[str, bytes], folder: Path, changes: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files with other tensors in the check data, by name; `None` leaves one out."""
    path = folder / "check.safetensors"
    path.write_bytes(files[CHECK])
    tensors = stored_arrays(ConstantsFile(path, "check"), "check", ARRAYS)
    for key, change in changes.items():
        assert key in tensors
        if change is None:
            del tensors[key]
        else:
            tensors[key] = change(tensors[key].clone())
    return with_check(files, constants_bytes(tensors))


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, args)])


def rows_of(*args: str | Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run(*args, "--json").stdout)
    return rows


def outcome(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["recipe"], row["method"], row["status"]) for row in rows]


ALL_RIGHT = [
    ("default", "embed", "ok"),
    ("default", "forward", "ok"),
    ("portable", "embed", "ok"),
    ("portable", "forward", "ok"),
]


def test_assets_of_a_wheel_are_unpacked_and_compared(net: Mapping[str, bytes], tmp_path: Path) -> None:
    whole = run(write_wheel(tmp_path / "whole.whl", with_asset(net, b"1 2\n")))
    assert whole.exit_code == 0, whole.output
    damaged = run(write_wheel(tmp_path / "damaged.whl", with_asset(net, b"1 3\n")))
    assert damaged.exit_code == 1
    assert "net/assets/labels.txt" in damaged.output


def test_a_right_model_passes_in_a_folder_and_in_a_wheel(net: Mapping[str, bytes], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "net" / "_lowered", net)
    wheel = write_wheel(tmp_path / "net-1.0-py3-none-any.whl", net)
    for name in (folder, tmp_path, wheel):
        done = run(name)
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.endswith("\n4 methods compared, 0 faults\n")
        rows = rows_of(name)
        assert sorted(outcome(rows)) == ALL_RIGHT
        assert all(row["largest_error"] < 1e-6 and row["detail"] == "" for row in rows)
        assert rows[0]["tolerance"] == asdict(Tolerance())


def test_an_installed_model_passes(net: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "net" / "_lowered", net)
    install(tmp_path, "net")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("net", "net:net"):
        assert sorted(outcome(rows_of(name))) == ALL_RIGHT


def test_one_recipe_of_one_model(net: Mapping[str, bytes], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, net)
    rows = rows_of(folder, "--model", "net", "--recipe", "portable")
    assert sorted(outcome(rows)) == ALL_RIGHT[2:]


def test_every_kind_of_input_and_output(kinds: Mapping[str, bytes], tmp_path: Path) -> None:
    """NaN, bool, complex128, bfloat16, containers, an input changed in place in its strides, state, literals."""
    folder = write_folder(tmp_path, kinds)
    rows = rows_of(folder)
    assert sorted(outcome(rows)) == [
        (recipe, method, "skipped" if method == "sized" else "ok")
        for recipe in ("default", "portable")
        for method in ("forward", "literal", "sized")
    ]
    forward = next(row for row in rows if row["method"] == "forward")
    wide = Tolerance().widened(["bfloat16"])
    assert wide.rtol > 300 * Tolerance().rtol
    assert forward["tolerance"] == asdict(wide)
    sized = next(row for row in rows if row["method"] == "sized")
    assert sized["detail"] == "its input 2 is an integer, which is not packaged"


# prints the status and the rows of each check
CHECKED = """
    import json
    import warnings
    from click.testing import CliRunner
    from hatch_lower.cli.entry import main

    warnings.simplefilter("error")
    done = [CliRunner().invoke(main, ["check", "--json", *words.split(" ")]) for words in sys.argv[1:]]
    print(json.dumps([(each.exit_code, json.loads(each.stdout)) for each in done]))
"""

NEEDED = "it cannot run here: it needs torch, which is not installed:"

VIEWS = """\
import torch
from hatch_lower import Method, Model


class Views(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 3))

    def forward(self, pair, *, half, wide, mask):
        before = self.seen.clone()
        self.seen.copy_(pair[0])
        return pair[0].reshape(3, 2), {"half": half[1:], "wide": wide.t()}, [mask.view(2, 1), pair[1].clone()], before


def export():
    wide = torch.tensor([[1 + 2j, 3j]], dtype=torch.complex128)
    first = torch.tensor([[0.0, float("inf")], [1.0, float("nan")], [-1.0, -float("inf")]]).t()
    return Model(Views().eval(), {
        "forward": Method(
            ((first, torch.tensor(7)),),
            {"half": torch.arange(4.0).bfloat16(), "wide": wide, "mask": torch.tensor([True, False])},
        ),
    })
"""


def test_without_torch_recipes_that_need_none_are_compared(shop: Workshop, tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    files = packaged(shop, VIEWS)
    changes = [{}, {"forward/output/1": lambda half: half + 9}, {"forward/output/5": lambda before: before + 1}]
    folders = [
        write_folder(tmp_path / str(number), edited(files, tmp_path, change)) for number, change in enumerate(changes)
    ]
    found = json.loads(run_without_torch(CHECKED, *folders))
    assert [status for status, _ in found] == [0, 1, 1]
    for _, rows in found:
        assert rows[0]["detail"] == f"{NEEDED} the delegate `reference`"
    right, off, kept = (rows[1] for _, rows in found)
    assert (right["recipe"], right["method"], right["status"], right["detail"]) == ("portable", "forward", "ok", "")
    assert (right["largest_error"], right["tolerance"]["rtol"]) == (0.0, Tolerance().rtol)
    assert '`output[1]["half"]`: largest absolute error 9' in off["detail"]
    assert "`output[3]`: largest absolute error 1" in kept["detail"]


def test_without_torch_and_numpy_nothing_is_called_damaged(
    net: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hatch_lower.runtime.arrays.is_library_installed", lambda library: False)
    done = run(write_folder(tmp_path, net))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "neither torch nor NumPy" in done.stderr


def test_without_torch_recipes_that_need_it_are_skipped(net: Mapping[str, bytes], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, net)
    skipped, asked = json.loads(run_without_torch(CHECKED, folder, f"{folder} --recipe portable"))
    assert skipped[0] == 3
    assert [(row["recipe"], row["status"], row["detail"]) for row in skipped[1]] == [
        ("default", "skipped", f"{NEEDED} the delegate `reference`"),
        ("portable", "skipped", f"{NEEDED} `aten.linear.default`"),
    ]
    assert asked[0] == 1
    assert [(row["status"], row["detail"]) for row in asked[1]] == [("fails", f"{NEEDED} `aten.linear.default`")]


@pytest.mark.parametrize(
    ("source", "method", "output", "change", "detail", "largest"),
    [
        (
            "net",
            "forward",
            0,
            lambda tensor: tensor.index_put((torch.tensor(1), torch.tensor(2)), tensor[1, 2] + 0.5),
            '`output["out"]`: largest absolute error 0.5, largest relative error 0.072 '
            "(allowed: atol 1e-05, rtol 0.0001); 1 of 12 values are wrong",
            0.5,
        ),
        (
            "net",
            "forward",
            1,
            lambda tensor: tensor + 1,
            '`output["count"]`: largest absolute error 1, largest relative error 0.5 '
            "(allowed: atol 1e-05, rtol 0.0001); 1 of 1 values are wrong",
            1.0,
        ),
        (
            "net",
            "embed",
            0,
            lambda tensor: tensor * float("nan"),
            "`output`: largest absolute error inf, largest relative error inf (allowed: atol 1e-05, rtol 0.0001);"
            " 3 of 3 values are wrong",
            "inf",
        ),
        ("net", "embed", 0, lambda tensor: tensor[:2], "`output`: float32[3] instead of float32[2]", 0.0),
        ("net", "embed", 0, lambda tensor: tensor.double(), "`output`: float32[3] instead of float64[3]", 0.0),
        ("kinds", "forward", 3, torch.logical_not, "`output[1][1][1]`: 2 of 2 values are different", None),
        ("kinds", "forward", 5, lambda tensor: tensor + 2, "`output[3]`: 1 of 1 values are different", None),
    ],
)
def test_an_output_that_differs(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    source: str,
    method: str,
    output: int,
    change: Callable[[torch.Tensor], torch.Tensor],
    detail: str,
    largest: Any,
) -> None:
    files = edited(request.getfixturevalue(source), tmp_path, {f"{method}/output/{output}": change})
    folder = write_folder(tmp_path / "files", files)
    rows = [row for row in rows_of(folder) if row["method"] == method]
    assert [(row["recipe"], row["status"], row["detail"]) for row in rows] == [
        (recipe, "differs", detail) for recipe in ("default", "portable")
    ]
    if largest is not None:
        assert rows[0]["largest_error"] == pytest.approx(largest)
    if largest:  # a number that differs, and not the dtype or shape
        assert detail.split("`")[1] in rows[0]["outputs"]
        assert max(each["largest_error"] for each in rows[0]["outputs"].values()) == pytest.approx(largest)
    done = run(folder)
    assert done.exit_code == 1
    assert f"\nnet, default, {method}: {detail}\n" in done.stdout
    assert done.stdout.endswith("compared, 2 faults\n")


def test_a_difference_that_the_tolerance_allows(net: Mapping[str, bytes], tmp_path: Path) -> None:
    files = edited(net, tmp_path, {"embed/output/0": lambda tensor: tensor + 0.01})
    folder = write_folder(tmp_path / "files", files)
    assert run(folder).exit_code == 1
    assert run(folder, "--atol", "0.1").exit_code == 0
    assert rows_of(folder, "--atol", "0.1")[0]["tolerance"] == asdict(Tolerance(atol=0.1))
    assert max(row["largest_error"] for row in rows_of(folder, "--atol", "0.1")) == pytest.approx(0.01, rel=1e-3)
    metrics = next(row for row in rows_of(folder) if row["method"] == "embed")["outputs"]["output"]
    assert metrics["largest_error"] == pytest.approx(0.01, rel=1e-3)
    assert (metrics["argmax"], metrics["snr"] > 20, 0.99 < metrics["cosine"] < 1) == (1.0, True, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "`` is not a number of at least 0"),
        ("-1", "`-1` is not a number of at least 0"),
        ("float16=1e-2", "`float16=1e-2` is not a number of at least 0"),
        ("nan", "`nan` is not a number of at least 0"),
    ],
)
def test_a_tolerance_is_a_number(given: str, said: str) -> None:
    result = CliRunner().invoke(main, ["check", "nothing", "--rtol", given])
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", "").split())


def test_an_output_that_is_not_packaged(net: Mapping[str, bytes], tmp_path: Path) -> None:
    files = edited(net, tmp_path, {"forward/output/1": None})
    (row,) = [each for each in check_rows(tmp_path / "files", files, "portable") if each.method == "forward"]
    assert (row.status, row.detail) == ("differs", '`output["count"]`: float32[] instead of no tensor')


def test_inputs_that_are_not_packaged(net: Mapping[str, bytes], tmp_path: Path) -> None:
    files = edited(net, tmp_path, {"forward/input/0": None, "embed/output/0": None})
    rows = check_rows(tmp_path / "files", files, "portable")
    assert {(row.method, row.status, row.detail) for row in rows} == {
        ("forward", "skipped", "its input 1 is not packaged"),
        ("embed", "skipped", "no packaged check inputs"),
    }


def test_inputs_that_the_method_refuses(net: Mapping[str, bytes], tmp_path: Path) -> None:
    files = edited(net, tmp_path, {"embed/input/0": lambda tensor: tensor.double()})
    (row,) = [each for each in check_rows(tmp_path / "files", files, "portable") if each.method == "embed"]
    assert row.status == "fails"
    assert "float64" in row.detail


def check_rows(folder: Path, files: Mapping[str, bytes], recipe: str | None = None) -> list[Any]:
    return list(check_packaged_model(open_folder(write_folder(folder, files)), "net", recipe))


def test_a_model_without_check_inputs(shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    folder = write_folder(tmp_path, packaged(shop, settings=settings_of(check=False)))
    done = run(folder)
    assert done.exit_code == 3
    assert {(row["status"], row["detail"]) for row in rows_of(folder)} == {("skipped", "no packaged check inputs")}
    assert done.stdout.endswith(
        "\n0 methods compared, 0 faults\n"
        "not a success: no recipe ran, or the wheel has no check data (`check-megabytes`)\n"
    )


@pytest.mark.parametrize("member", ["net/constants.safetensors", CHECK, "net/default.debug.json", "net/portable.json"])
def test_a_damaged_file(net: Mapping[str, bytes], tmp_path: Path, member: str) -> None:
    damaged = {**net, member: net[member][:-1] + bytes([net[member][-1] ^ 1])}
    folder = write_folder(tmp_path / "net" / "_lowered", damaged)
    wheel = write_wheel(tmp_path / "net-1.0-py3-none-any.whl", damaged)
    for name, place in ((folder, f"{folder}"), (wheel, "net-1.0-py3-none-any.whl: net/_lowered")):
        (row,) = rows_of(name)
        assert (row["model"], row["recipe"], row["status"]) == ("net", "", "damaged")
        assert row["detail"].startswith(
            f"a packaged program file is not the one that the manifest lists\n  where: {place}/{member}\n"
            "  found: another sha256 than the manifest says\n"
        )
        assert run(name).exit_code == 1


def test_a_wheel_that_lacks_a_file(net: Mapping[str, bytes], tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "net.whl", {path: data for path, data in net.items() if path != CHECK})
    done = run(wheel)
    assert done.exit_code == 1
    text = "\nnet: a packaged program file is missing\n  where: net.whl: net/_lowered/net/check.safetensors\n"
    assert text in done.stdout


def test_a_member_that_inflates_beyond_the_manifest_is_not_unpacked(
    net: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path / "net.whl", {**net, "net/constants.safetensors": bytes(1 << 16)})
    done = run(wheel)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "where: net.whl: net/_lowered/net/constants.safetensors\n  found: 65536 bytes, where the" in done.stderr
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    done = run(write_wheel(tmp_path / "net.whl", net))
    assert done.exit_code == 1
    assert "error: there is no space to unpack the wheel's lowered models\n" in done.stderr


def test_check_data_that_is_none(net: Mapping[str, bytes], tmp_path: Path) -> None:
    for position, (data, found) in enumerate(
        [
            (b"", "a safetensors header that does not fit into 0 bytes"),
            (b"\xff" * 64, "a safetensors header that does not fit into 64 bytes"),
            (header({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}), "the dtype 'F4'"),
            (header({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}}), "1 bytes for 2 elements of uint8"),
            (
                header({"a": {"dtype": "U8", "shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}}),
                "impossible sizes",
            ),
        ]
    ):
        (row,) = check_rows(tmp_path / str(position), with_check(net, data))
        assert row.status == "damaged"
        assert found in row.detail


def header(entries: Mapping[str, Any]) -> bytes:
    text = canonical_json(entries)
    return len(text).to_bytes(8, "little") + text + b"\0"


@pytest.mark.parametrize(
    ("metadata", "promise"),
    [
        ({"entry_points_txt": "[hatch_lower.models]\nnet = net:export\n"}, "entry points `hatch_lower.models`"),
        ({"RECORD": "net/_lowered/manifest.json,,\n"}, "a RECORD that lists `_lowered/manifest.json`"),
        ({"METADATA": "Name: net\nRequires-Dist: hatch-lower>=0.1\n"}, "a requirement of `hatch-lower`"),
    ],
)
def test_a_wheel_without_its_payload(tmp_path: Path, metadata: dict[str, str], promise: str) -> None:
    wheel = write_wheel(tmp_path / "net-1.0-py3-none-any.whl", {}, **metadata)
    done = run(wheel)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the wheel is incomplete: it is without its lowered models\n"
        f"  where: {wheel}\n"
        f"  found: {promise}, and no `_lowered/manifest.json`\n"
        "  to do: build the wheel again with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS\n"
    )


def test_a_wheel_that_never_had_models(tmp_path: Path) -> None:
    done = run(write_wheel(tmp_path / "net.whl", {}, METADATA="Name: net\n"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: there are no lowered models here\n")


def test_a_wheel_whose_manifest_is_not_the_recorded_one(net: Mapping[str, bytes], tmp_path: Path) -> None:
    record = f"net/_lowered/manifest.json,sha256={'A' * 43},{len(net['manifest.json'])}\n"
    done = run(write_wheel(tmp_path / "net.whl", net, RECORD=record))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: a packaged program file is not the one that the manifest lists\n"
        "  where: net.whl: net/_lowered/manifest.json\n"
        "  found: another sha256 than the RECORD"
    )


def test_a_wheel_whose_record_is_no_table(net: Mapping[str, bytes], tmp_path: Path) -> None:
    done = run(write_wheel(tmp_path / "net.whl", net, RECORD="x" * 200_000))
    assert done.exit_code == 1
    assert "found: a RECORD that is no table" in done.output


def test_a_wheel_that_is_no_archive_or_is_damaged_inside(net: Mapping[str, bytes], tmp_path: Path) -> None:
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"not a zip file")
    assert (
        run(broken).stderr == f"error: the wheel cannot be read\n  where: {broken}\n  found: File is not a zip file\n"
    )
    wheel = write_wheel(tmp_path / "net.whl", net)
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(net[CHECK], bytes(len(net[CHECK]))))
    done = run(wheel)
    assert done.exit_code == 1
    assert done.stderr.startswith(
        "error: a packaged program file cannot be unpacked\n"
        "  where: net.whl: net/_lowered/net/check.safetensors\n"
        "  found: BadZipFile: Bad CRC-32"
    )


def test_a_wheel_with_a_file_where_another_needs_a_folder(net: Mapping[str, bytes], tmp_path: Path) -> None:
    def change(model: dict[str, Any]) -> None:
        model["check"]["path"] = "net/constants.safetensors/check"

    files = with_manifest({**net, "net/constants.safetensors/check": net[CHECK]}, change)
    done = run(write_wheel(tmp_path / "net.whl", files))
    assert done.exit_code == 1
    assert done.stderr.startswith("error: a packaged program file cannot be unpacked\n")


PLAN_9 = {"system": "Plan 9", "machine": "x86_64", "isa": "x86-64-v3"}


@pytest.mark.parametrize(
    ("fields", "delegate", "reason"),
    [
        ({"target": PLAN_9}, {"target": PLAN_9}, "Plan 9"),
        ({"backends": ["abacus"]}, {"backend": "abacus"}, "the delegate `abacus` is not installed"),
        ({"requirements": ["torch==1.0"]}, {}, "it needs torch==1.0"),
    ],
)
def test_a_recipe_that_cannot_run_here(
    net: Mapping[str, bytes], tmp_path: Path, fields: dict[str, Any], delegate: dict[str, Any], reason: str
) -> None:
    plan = json.loads(net["net/default.json"])
    for each in plan["delegates"]:
        each |= delegate
    data = canonical_json(plan)

    def change(model: dict[str, Any]) -> None:
        model["recipes"]["default"] |= fields
        update_entries(model, "net/default.json", data)

    folder = write_folder(tmp_path, with_manifest({**net, "net/default.json": data}, change))
    rows = rows_of(folder)
    assert outcome(rows)[0] == ("default", "", "skipped")
    assert rows[0]["detail"].startswith("it cannot run here: ")
    assert reason in rows[0]["detail"]
    assert sorted(outcome(rows)[1:]) == ALL_RIGHT[2:]
    assert run(folder).exit_code == 0
    (named,) = rows_of(folder, "--recipe", "default")
    assert (named["status"], named["detail"]) == ("fails", rows[0]["detail"])


def test_a_recipe_whose_device_is_missing_is_skipped(
    net: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UnavailableError("no `GPU` here", found="CPU only", hint="install a driver")

    monkeypatch.setattr(ReferenceDelegate, "load", fail)
    folder = write_folder(tmp_path, net)
    rows = rows_of(folder)
    assert outcome(rows)[0] == ("default", "", "skipped")
    assert rows[0]["detail"] == "it cannot run here: `default`: no `GPU` here: CPU only; install a driver"
    (named,) = rows_of(folder, "--recipe", "default")
    assert (named["status"], named["detail"]) == ("fails", rows[0]["detail"])


@pytest.mark.parametrize("requirements", [[], ["torch==1.0"]])
def test_a_manifest_that_contradicts_the_plan_is_a_fault_whether_or_not_it_can_run(
    net: Mapping[str, bytes], tmp_path: Path, requirements: list[str]
) -> None:
    def change(model: dict[str, Any]) -> None:
        model["recipes"]["default"] |= {"backends": [], "requirements": requirements}

    row, *others = check_rows(tmp_path, with_manifest(net, change))
    assert (row.recipe, row.method, row.status) == ("default", "", "fails")
    assert row.detail.startswith("the plan and the manifest contradict each other")
    assert {other.status for other in others} == {"ok"}


def test_a_requirement_that_is_none(net: Mapping[str, bytes], tmp_path: Path) -> None:
    def change(model: dict[str, Any]) -> None:
        model["recipes"]["default"]["requirements"] = ["torch=="]

    row, *others = check_rows(tmp_path, with_manifest(net, change))
    assert (row.recipe, row.method, row.status) == ("default", "", "fails")
    assert "the requirement 'torch=='" in row.detail
    assert {other.status for other in others} == {"ok"}


def test_a_plan_that_cannot_be_loaded(net: Mapping[str, bytes], tmp_path: Path) -> None:
    plan = canonical_json({**json.loads(net["net/default.json"]), "schema": 99})

    def change(model: dict[str, Any]) -> None:
        model["recipes"]["default"]["plan"] |= {"size": len(plan), "sha256": sha256_bytes(plan)}

    rows = check_rows(tmp_path, with_manifest({**net, "net/default.json": plan}, change))
    assert (rows[0].recipe, rows[0].method, rows[0].status) == ("default", "", "fails")
    assert "schema 99" in rows[0].detail
    assert sorted((row.recipe, row.method, row.status) for row in rows[1:]) == ALL_RIGHT[2:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--model", "nets"],
            "error: there is no such model\n  where: {folder}\n"
            "  found: did you mean `net`? known: `net`\n  to do: select a model with `--model`\n",
        ),
        (
            ["--recipe", "portabel"],
            "error: there is no such recipe\n  where: {folder}\n"
            "  found: did you mean `portable`? known: `default`, `portable`\n"
            "  to do: select a recipe with `--recipe`\n",
        ),
    ],
)
def test_unknown_names(net: Mapping[str, bytes], tmp_path: Path, options: list[str], message: str) -> None:
    folder = write_folder(tmp_path, net)
    done = run(folder, *options)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", message.format(folder=folder))


def test_a_name_that_is_not_installed() -> None:
    done = run("no-such-model")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: there is no installed model `no-such-model`\n")


def test_the_umask_does_not_open_what_is_unpacked(net: Mapping[str, bytes], tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "net.whl", net)
    before = os.umask(0)
    try:
        done = run(wheel)
    finally:
        os.umask(before)
    assert (done.exit_code, done.stderr) == (0, "")


def test_nothing_of_a_wheel_stays(net: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(work))
    assert run(write_wheel(tmp_path / "net.whl", net)).exit_code == 0
    assert list(work.iterdir()) == []


def test_checking_imports_no_compile_half(modules_after: Callable[[str], set[str]]) -> None:
    modules = modules_after("import hatch_lower.runtime.check")
    assert not modules & {"torch", "numpy"}
    heads = {".".join(name.split(".")[:2]) for name in modules}
    assert not heads & {f"hatch_lower.{name}" for name in ("cli", "edge", "export", "graph", "lowering", "program")}
    assert not modules & {"hatchling", "click", "torch._inductor", "torch.export"} - modules_after("import torch")


def test_a_method_that_rounds_to_integers_may_be_a_step_apart(shop: Workshop, tmp_path: Path) -> None:
    pytest.importorskip("executorch")  # its quantizer
    module, inputs = mlp()
    source = capture_model("net", Model(quantized(module, inputs), {"forward": Method(inputs)}), Events())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HATCH_LOWER_CACHE", "off")
        report, _ = shop.build(source, settings_of(Recipe("default")))
    files = packaged_report(report)

    def off(tensor: torch.Tensor) -> torch.Tensor:
        tensor[0, 0] += tensor.abs().max() / 130
        return tensor

    rounds = mark_name("forward", QUANTIZED_MARK, 0)
    for number, (changes, status) in enumerate(
        [({"forward/output/0": off}, "ok"), ({"forward/output/0": off, rounds: None}, "differs")]
    ):
        folder = write_folder(tmp_path / str(number), edited(files, tmp_path, changes))
        assert outcome(rows_of(folder)) == [("default", "forward", status)]
