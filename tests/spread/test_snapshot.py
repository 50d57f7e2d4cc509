"""The project's files on their way to a worker: which, where to, and what is refused there."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.driver.context import ProjectView
from hatch_lower.driver.spread.snapshot import (
    HostileArchiveError,
    Relocated,
    relocated,
    take_snapshot,
    unpack_snapshot,
)
from hatch_lower.errors import PackageError
from hatch_lower.format.codec import decode, encode
from hatch_lower.hatch.outside import open_project

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "shop"
version = "1"
dependencies = ["hatch-lower", "torch"]
[project.entry-points."hatch_lower.models"]
small = "shop.models:small"
[tool.hatch.build.targets.sdist]
exclude = ["notes"]
[tool.hatch.build.targets.wheel]
packages = ["src/shop"]
[tool.hatch.build.targets.wheel.force-include]
"../common/helper.py" = "shop/helper.py"
[tool.hatch.build.targets.wheel.hooks.lower]
inputs = ["weights/*.pt"]
"""
CONTENTS = {
    "pyproject.toml": PYPROJECT,
    ".gitignore": "*.pt\n*.log\n",
    "src/shop/__init__.py": "",
    "src/shop/models.py": "small = None\n",
    "tests/test_shop.py": "",
    "weights/small.pt": "weights",
    "weights/notes.txt": "",
    "notes/private.txt": "",
    "build.log": "",
    "../common/helper.py": "VALUE = 1\n",
}


def write(root: Path) -> Path:
    for name, text in CONTENTS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def settings_of(root: Path) -> tuple[Settings, ProjectView]:
    model = ModelSettings("small", "shop.models:small", "shop", ("default",))
    settings = Settings(root, "shop", "1", (model,), (Recipe("default"),))
    links = (("shop/helper.py", root.parent / "common" / "helper.py"),)
    return settings, ProjectView("", "", (root / "src", root), links, ("shop",), ())


def names_in(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def archive_of(*members: tarfile.TarInfo, data: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def test_files_are_those_of_both_distributions_and_the_inputs(tmp_path: Path) -> None:
    root = write(tmp_path / "shop")
    (root / ".git").mkdir()
    project = open_project(root)
    assert [os.path.relpath(path, root) for path in project.files()] == [
        "../common/helper.py",
        ".gitignore",
        "pyproject.toml",
        "src/shop/__init__.py",
        "src/shop/models.py",
        "tests/test_shop.py",
        "weights/notes.txt",
        "weights/small.pt",
    ]


def test_equal_files_give_equal_bytes_without_paths_of_this_machine(tmp_path: Path) -> None:
    taken = []
    for number in range(2):
        root = write(tmp_path / f"machine{number}" / "home" / "shop")
        os.utime(root / "src" / "shop" / "models.py", (number, number))
        (root / "src" / "shop" / "__init__.py").chmod(0o600 + number * 0o44)
        paths = sorted((root / "src").rglob("*.py"), reverse=bool(number))
        taken.append(take_snapshot(*settings_of(root), [root / "pyproject.toml", *paths]))
    assert taken[0] == taken[1]
    assert str(tmp_path).encode() not in taken[0].data
    assert str(tmp_path) not in str(encode(taken[0].project))


def test_paths_keep_their_places_relative_to_each_other(tmp_path: Path) -> None:
    root = write(tmp_path / "here" / "shop")
    (root / "tool.sh").write_text("#!/bin/sh\n")
    (root / "tool.sh").chmod(0o755)
    (root / "link.txt").symlink_to(root / "weights" / "small.pt")
    settings, view = settings_of(root)
    helper = root.parent / "common" / "helper.py"
    files = [root / "pyproject.toml", root / "tool.sh", root / "link.txt", root / "src/shop/models.py", helper]
    snapshot = take_snapshot(settings, view, files)
    assert names_in(snapshot.data) == [
        "above/common/helper.py",
        *(f"above/project/{name}" for name in ("link.txt", "pyproject.toml", "src/shop/models.py", "tool.sh")),
    ]
    sent: Relocated = decode(Relocated, encode(snapshot.project), "")
    there = tmp_path / "there"
    there.mkdir()
    unpack_snapshot(snapshot.data, there)
    moved, view_there = relocated(sent, there)
    assert moved == replace(settings, root=there / "above" / "project")
    assert view_there.import_roots == (moved.root / "src", moved.root)
    assert view_there.links == (("shop/helper.py", there / "above" / "common" / "helper.py"),)
    assert view_there.links[0][1].read_text() == "VALUE = 1\n"
    assert (moved.root / "link.txt").read_text() == "weights"
    assert not (moved.root / "link.txt").is_symlink()
    assert os.access(moved.root / "tool.sh", os.X_OK)
    assert not os.access(moved.root / "pyproject.toml", os.X_OK)


def test_a_snapshot_says_what_it_has_not(tmp_path: Path) -> None:
    root = write(tmp_path / "shop")
    snapshot = take_snapshot(*settings_of(root), [root / "pyproject.toml"])
    assert snapshot.lacks(root, "weights/small.pt")
    assert snapshot.lacks(root, "./weights/../weights/small.pt")
    assert not snapshot.lacks(root, "pyproject.toml")
    assert not snapshot.lacks(root, "nothing.txt")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    root = write(tmp_path / "shop")
    with pytest.raises(PackageError, match="cannot be sent to workers") as caught:
        take_snapshot(*settings_of(root), [root / "gone.py"])
    assert caught.value.where == str(root / "gone.py")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside", "a/../../outside", "a/./b", "a//b", "..", ".", "a/..", "dir/"]
)
def test_a_place_outside_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    with pytest.raises(HostileArchiveError):
        unpack_snapshot(archive_of(member(name)), folder)
    assert list(tmp_path.rglob("*")) == [folder]


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE],
)
def test_whatever_is_no_plain_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(HostileArchiveError):
        unpack_snapshot(archive_of(member("name", kind, "/etc/passwd"), member("name/below")), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_two_files_in_one_place_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    with pytest.raises((HostileArchiveError, OSError)):
        unpack_snapshot(archive_of(*map(member, names)), tmp_path)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    whole = archive_of(member("name"), data=b"contents" * 500)
    for data in (b"", b"no archive" * 200, whole[:1000], whole[:100] + b"\xff" * 50 + whole[150:]):
        with pytest.raises(HostileArchiveError):
            unpack_snapshot(data, tmp_path)
    # compressed ones are none either: nobody knows how large they become
    packed = subprocess.run(["gzip"], input=whole, capture_output=True, check=True).stdout
    with pytest.raises(HostileArchiveError):
        unpack_snapshot(packed, tmp_path)


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../.."])
def test_settings_that_lead_out_of_the_folder_are_refused(tmp_path: Path, path: str) -> None:
    settings, view = settings_of(Path("project"))
    view = replace(view, links=())
    for wrong in (
        Relocated(replace(settings, root=Path(path)), view),
        Relocated(settings, replace(view, import_roots=(Path(path),))),
        Relocated(settings, replace(view, links=(("shop", Path(path)),))),
        Relocated(settings, replace(view, links=((path, Path("project")),))),
    ):
        with pytest.raises(HostileArchiveError, match="leads out of its folder"):
            relocated(wrong, tmp_path)
