"""What nobody holds is removed, what somebody holds is not, whichever process that is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.processes import wait_for

from hatch_lower.cache.locks import make_held, make_held_folder, remove_abandoned

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")

HOLDER = """
import time
from hatch_lower.cache.locks import make_held_folder
print(make_held_folder("build-")[0].name, flush=True)
time.sleep(600)
"""

REMOVER = """
import sys
from pathlib import Path
from hatch_lower.cache.locks import remove_abandoned
(Path(sys.argv[1]) / "running").touch()
while True:
    remove_abandoned(Path(sys.argv[1]), "build-*")
"""


def test_a_folder_goes_when_its_build_has_been_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert holder.stdout is not None
        folder = tmp_path / holder.stdout.readline().strip()
        (folder / "weights").write_bytes(b"x")
        remove_abandoned(tmp_path, "build-*")
        assert [each.name for each in folder.iterdir()] == ["weights"]
    finally:
        holder.kill()
        holder.communicate()
    remove_abandoned(tmp_path, "build-*")
    assert list(tmp_path.iterdir()) == []


def test_nobody_loses_what_it_has_just_made_to_one_that_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remover = subprocess.Popen([sys.executable, "-c", REMOVER, str(tmp_path)])
    try:
        wait_for((tmp_path / "running").exists, "the other process removes")
        for _ in range(1000):
            folder, of_folder = make_held_folder("build-")
            of_file = make_held(tmp_path / "build-.whl")
            assert of_folder is not None
            assert folder.is_dir()
            assert (tmp_path / "build-.whl").is_file()
            shutil.rmtree(folder)
            (tmp_path / "build-.whl").unlink()
            os.close(of_folder)
            os.close(of_file)
    finally:
        remover.kill()
        remover.wait()


def test_what_is_held_or_something_else_stays(tmp_path: Path) -> None:
    for name in ("old.tmp", "other.txt"):
        (tmp_path / name).touch()
    (tmp_path / "link.tmp").symlink_to("other.txt")
    descriptor = make_held(tmp_path / "held.tmp")
    try:
        remove_abandoned(tmp_path, "*.tmp")
        assert sorted(each.name for each in tmp_path.iterdir()) == ["held.tmp", "link.tmp", "other.txt"]
    finally:
        os.close(descriptor)


def test_a_file_that_is_there_already_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    with pytest.raises(FileExistsError):
        make_held(tmp_path / "held")
