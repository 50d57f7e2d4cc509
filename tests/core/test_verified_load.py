"""`load(..., verify=True)` and `hatch-lower check`: every file of a model against the manifest and against RECORD."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.hostile import watched
from support.lowered import floats, install, lowered_model, write_lowered
from support.plans import c, call, constant, delegate_entry, method, op, plan_value, python, tensor_input, v

from hatch_lower.canonical import canonical_json
from hatch_lower.cli.entry import main
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.load import load

pytestmark = pytest.mark.torch

VECTOR = tensor_input(4)
CONSTANTS, CHECK = "digits/constants.safetensors", "digits/check.safetensors"
BLOB, DATA = "digits/delegates/blob.bin", "digits/data/weights.bin"
FILES = [
    CONSTANTS,
    CHECK,
    BLOB,
    DATA,
    *(f"digits/{recipe}{suffix}.json" for recipe in ("default", "portable") for suffix in ("", ".debug")),
]
AGAIN = "install the distribution again; if that does not help, build its wheel again"
MODELS, DELEGATES = {"digits": "digits.model:export"}, {"doubling": "support.plans:Doubling"}


def plans() -> dict[str, Any]:
    """Return a recipe with a delegate, its named data tensors, and one without."""
    state: Any = {"storages": [("w", "float32", 4)], "constants": {"w": constant(0, 4)}}
    layout = {"dtype": "float32", "sizes": [4], "dim_order": [0]}
    data = {"weights": {"file": DATA, "size": 16, "alignment": 16, "layout": layout}}
    body = [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2)]
    default = plan_value(
        forward=method([VECTOR], body, v(2)), delegates=[delegate_entry("doubling", "w", file=BLOB, data=data)], **state
    )
    multiplied = method([VECTOR], [op("aten.mul.Tensor", v(0), c("w"), out=1)], v(1))
    portable = plan_value(forward=multiplied, **state)
    return {"default": {"plan": default, "blobs": {BLOB: b"code", DATA: bytes(16)}}, "portable": {"plan": portable}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the import path where the distribution `digits` is installed."""
    site = tmp_path / "site"
    folder = site / "digits" / "_lowered"
    model = lowered_model(folder, "digits", plans(), tensors={"w": floats(1, 2, 3, 4)})
    write_lowered(folder, {"digits": model})
    install(site, "digits", {"hatch_lower.models": MODELS, "hatch_lower.delegates": DELEGATES})
    monkeypatch.syspath_prepend(site)
    return site


def record_of(site: Path) -> Path:
    (record,) = site.glob("*.dist-info/RECORD")
    return record


def change_record(site: Path, change: Callable[[list[str]], list[str]]) -> None:
    record = record_of(site)
    record.write_text("".join(f"{row}\n" for row in change(record.read_text().splitlines())))


def without(name: str) -> Callable[[list[str]], list[str]]:
    return lambda rows: [row for row in rows if not row.startswith(f"digits/_lowered/{name},")]


def with_digest(name: str, digest: str) -> Callable[[list[str]], list[str]]:
    start = f"digits/_lowered/{name},"
    return lambda rows: [f"{start}{digest}," if row.startswith(start) else row for row in rows]


def flip_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_whole_model_is_verified_and_runs(site: Path) -> None:
    assert record_of(site).read_text().count("/_lowered/") == len(FILES) + 1
    assert load("digits", verify=True)(torch.ones(4)).tolist() == [2, 2, 2, 2]
    assert load("digits:digits", verify=True, recipe="portable")(torch.ones(4)).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte_of_any_file_of_any_recipe(site: Path, name: str) -> None:
    path = site / "digits/_lowered" / name
    flip_last_byte(path)
    for source in ("digits", path.parents[len(name.split("/")) - 1]):
        with pytest.raises(ProgramError) as caught:
            load(source, recipe="portable", verify=True)
        assert str(caught.value) == (
            "a packaged program file is not the one that the manifest lists\n"
            f"  where: {path}\n  found: another sha256 than the manifest says\n  to do: {AGAIN}"
        )


def refused(site: Path, name: str, found: str) -> None:
    """Demand that verifying refuses a file for what RECORD says, and that loading alone does not care."""
    load("digits")
    with pytest.raises(ProgramError) as caught:
        load("digits", verify=True)
    assert str(caught.value) == (
        "the RECORD of the installed distribution `digits` does not vouch for a packaged program file\n"
        f"  where: {site / 'digits/_lowered' / name}\n  found: {found}\n  to do: {AGAIN}"
    )
    done = CliRunner().invoke(main, ["check", "digits", "--json"])
    rows = json.loads(done.stdout)
    assert (done.exit_code, [row["status"] for row in rows]) == (1, ["damaged"])
    assert f"found: {found}" in rows[0]["detail"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_the_manifest_lists_and_record_does_not(site: Path, name: str) -> None:
    change_record(site, without(name))
    refused(site, name, "the manifest lists this file, but RECORD does not")


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_another_digest_in_record(site: Path, name: str) -> None:
    change_record(site, with_digest(name, "sha256=" + "A" * 43))
    refused(site, name, "RECORD and manifest have different sha256 values")


@pytest.mark.parametrize("digest", ["", "md5=abc", "sha256=%%%"])
@pytest.mark.parametrize("name", ["manifest.json", CONSTANTS])
def test_a_file_without_a_digest_in_record(site: Path, name: str, digest: str) -> None:
    change_record(site, with_digest(name, digest))
    refused(site, name, "RECORD has no sha256 of this file")


def test_a_file_that_record_alone_lists(site: Path) -> None:
    extra = site / "digits/_lowered/digits/notes.txt"
    extra.write_text("x")
    install(site, "digits", {"hatch_lower.models": MODELS, "hatch_lower.delegates": DELEGATES})
    load("digits", verify=True)
    extra.write_text("y")
    refused(site, "digits/notes.txt", "RECORD has another sha256 of this file")
    extra.unlink()
    refused(site, "digits/notes.txt", "RECORD lists this file, which is missing")


def test_files_of_another_model_are_its_own_affair(site: Path) -> None:
    change_record(site, lambda rows: [*rows, "digits/_lowered/other/plan.json,sha256=AAAA,3"])
    load("digits", verify=True)


def test_a_file_and_the_manifest_that_were_changed_together(site: Path) -> None:
    """The manifest's digest in RECORD, which loading compares anyway, holds everything else."""
    folder = site / "digits/_lowered"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["models"]["digits"]["check"] = None
    (folder / "manifest.json").write_bytes(canonical_json(manifest))
    for verify in (False, True):
        with pytest.raises(ProgramError, match="another sha256 than the RECORD of the installed distribution says"):
            load("digits", verify=verify)


def test_a_folder_has_no_record_and_is_compared_with_its_manifest(site: Path) -> None:
    change_record(site, without(CONSTANTS))
    load(site / "digits/_lowered", verify=True)
    flip_last_byte(site / "digits/_lowered" / CHECK)
    load(site / "digits/_lowered")
    with pytest.raises(ProgramError, match="another sha256 than the manifest says"):
        load(site / "digits/_lowered/digits", verify=True)


@pytest.mark.parametrize("name", [CONSTANTS, DATA])
def test_large_files_are_read_once_more_than_without_verifying(site: Path, name: str) -> None:
    path = str((site / "digits/_lowered" / name).resolve())
    opened = []
    for verify in (False, True):
        with watched() as watch:
            load("digits", verify=verify)
        opened.append(watch.opened.count(path))
    assert opened[1] == opened[0] + 1


def test_an_eager_model_has_no_files_to_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "eager_digits" / "_lowered"
    folder.mkdir(parents=True)
    (folder / "eager.json").write_bytes(canonical_json({"schema": 1, "models": {"eagle": "nowhere:export"}}))
    install(tmp_path, "eager-digits")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ProgramError) as caught:
        load("eagle", verify=True)
    assert str(caught.value) == (
        "model `eagle` runs eagerly and has no packaged files to verify\n  where: nowhere:export\n"
        '  to do: leave out `verify`, install the project editable with `editable = "lower"`, or not editable'
    )


@pytest.mark.parametrize("name", [CONSTANTS, "digits/portable.debug.json"])
def test_a_wheel_is_compared_with_its_own_record(site: Path, tmp_path: Path, name: str) -> None:
    def status() -> tuple[int, str]:
        wheel = tmp_path / "digits-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path in sorted(each for each in site.rglob("*") if each.is_file()):
                archive.write(path, path.relative_to(site).as_posix())
        done = CliRunner().invoke(main, ["check", str(wheel), "--json"])
        return done.exit_code, done.stdout

    assert "does not vouch" not in status()[1]
    change_record(site, with_digest(name, "sha256=" + "A" * 43))
    code, shown = status()
    assert code == 1
    assert [row["status"] for row in json.loads(shown)] == ["damaged"]
    assert "the RECORD of `digits-1.0-py3-none-any.whl` does not vouch for a packaged program file" in shown
