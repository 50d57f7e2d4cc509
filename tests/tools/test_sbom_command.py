"""`hatch-lower inspect --sbom`: for a wheel, for what is installed, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest
from click.testing import CliRunner, Result

from hatch_lower.cli.entry import main

TEXT = json.dumps({"bomFormat": "CycloneDX", "name": "ä"}, ensure_ascii=False) + "\n"
INFORMATION = "digits-1.0.dist-info"
MEMBER = f"{INFORMATION}/sboms/hatch-lower.cdx.json"
MANIFEST = (
    '{"distribution":"digits","hatch_lower":"0.1","models":{},"schema":1,"tools":{},"torch":"2","version":"1.0"}\n'
)
FILES = {
    "digits/_lowered/manifest.json": MANIFEST,
    f"{INFORMATION}/METADATA": "Metadata-Version: 2.4\nName: digits\nVersion: 1.0\n",
    f"{INFORMATION}/RECORD": "digits/_lowered/manifest.json,,\n",
    MEMBER: TEXT,
}


def inspect(name: str | Path) -> Result:
    return CliRunner().invoke(main, ["inspect", "--sbom", str(name)])


def wheel_of(folder: Path, *left_out: str, more: str = "") -> Path:
    path = folder / "digits-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            if name not in left_out:
                archive.writestr(f"{more}{name}", text)
    return path


def install(site: Path, monkeypatch: pytest.MonkeyPatch, *left_out: str) -> None:
    for name, text in FILES.items():
        if name not in left_out:
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(site)


def test_the_document_of_a_wheel_is_printed_as_it_is_stored(tmp_path: Path) -> None:
    shown = inspect(wheel_of(tmp_path))
    assert (shown.exit_code, shown.stdout) == (0, TEXT)


@pytest.mark.parametrize("name", ["digits", "Digits"])
def test_the_document_of_what_is_installed_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)  # where a folder has the name, too
    shown = inspect(name)
    assert (shown.exit_code, shown.stdout) == (0, TEXT)


def test_a_wheel_from_before_says_how_to_get_one(tmp_path: Path) -> None:
    shown = inspect(wheel_of(tmp_path, MEMBER))
    assert shown.exit_code == 1
    assert shown.stderr == (
        "error: there is no SBOM of lowered models\n"
        "  where: digits-1.0-py3-none-any.whl\n"
        "  found: no `.dist-info/sboms/hatch-lower.cdx.json`\n"
        "  to do: build the wheel again with a newer hatch-lower\n"
    )


def test_a_document_that_only_looks_like_the_wheels_is_none(tmp_path: Path) -> None:
    shown = inspect(wheel_of(tmp_path, more="digits/vendored/"))
    assert shown.exit_code == 1
    assert "there is no SBOM of lowered models" in shown.stderr


def test_a_wheel_without_lowered_models_is_told_apart(tmp_path: Path) -> None:
    shown = inspect(wheel_of(tmp_path, MEMBER, "digits/_lowered/manifest.json"))
    assert shown.exit_code == 1
    assert "there are no lowered models here" in shown.stderr


@pytest.mark.parametrize(
    ("origin", "advice"),
    [
        (
            '{"url": "file:///project", "dir_info": {"editable": true}}',
            "an editable install has none: install its wheel",
        ),
        ("", "build its wheel again with a newer hatch-lower, and install that"),
    ],
)
def test_an_install_without_one_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str, advice: str
) -> None:
    install(tmp_path, monkeypatch, MEMBER)
    if origin:
        (tmp_path / INFORMATION / "direct_url.json").write_text(origin)
    shown = inspect("digits")
    assert shown.exit_code == 1
    assert "where: the distribution `digits`" in shown.stderr
    assert f"to do: {advice}\n" in shown.stderr


def test_a_folder_and_an_unknown_name_and_a_damaged_wheel_are_errors(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged-1-py3-none-any.whl"
    damaged.write_bytes(b"no archive")
    (tmp_path / "folder").mkdir()
    for name, says in [
        (tmp_path / "folder", "a folder has no SBOM"),
        ("no-such-model", "there is no installed model `no-such-model`"),
        (damaged, "the wheel cannot be read"),
        (tmp_path / "missing.whl", "the wheel cannot be read"),
    ]:
        shown = inspect(name)
        assert shown.exit_code == 1
        assert says in shown.stderr
