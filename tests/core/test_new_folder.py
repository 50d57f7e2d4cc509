"""`folder_in_place`: a folder of files, written completely or not at all."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hatch_lower.driver.new_folder import folder_in_place
from hatch_lower.errors import PackageError, ProcessError


def write_into(folder: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    with folder_in_place(folder, "files") as unfinished:
        (unfinished / "a").write_text("a")
        (unfinished / "b").mkdir()
        meanwhile()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_empty_folder_is_filled_and_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    before = folder.stat().st_ino  # of a volume, or of a shell's current folder
    write_into(folder)
    assert (folder.stat().st_ino, names_in(folder), names_in(tmp_path)) == (before, ["a", "b"], ["folder"])


def test_a_link_to_an_empty_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    write_into(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names_in(tmp_path / "folder") == ["a", "b"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_that_another_process_filled_meanwhile_is_left_alone(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "folder"
    if is_there:
        folder.mkdir()
    with pytest.raises(PackageError, match="has other files"):
        write_into(folder, lambda: (folder.mkdir(exist_ok=True), (folder / "other").touch()))
    assert (names_in(folder), names_in(tmp_path)) == (["other"], ["folder"])


@pytest.mark.parametrize("is_there", [False, True])
def test_a_signal_that_ends_the_process_leaves_no_files(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "folder"
    if is_there:
        folder.mkdir()
    with pytest.raises(SystemExit):
        write_into(folder, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert [path.name for path in tmp_path.rglob("*")] == (["folder"] if is_there else [])


def test_an_error_names_the_folder_and_no_temporary_name(tmp_path: Path) -> None:
    for code in (errno.ENOSPC, errno.ENOTDIR):
        with pytest.raises(ProcessError) as caught, folder_in_place(tmp_path / "folder", "files") as unfinished:
            raise OSError(code, os.strerror(code), "source", None, str(unfinished / "a"))
        assert (caught.value.where, caught.value.found) == (str(tmp_path / "folder/a"), os.strerror(code))
