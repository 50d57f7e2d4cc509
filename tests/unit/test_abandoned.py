"""What nobody holds is removed, what somebody holds is not, whichever process that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_lower.abandoned import LOCK, make_held, remove_abandoned

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")

HOLDER = """
import sys, time
from pathlib import Path
from hatch_lower.abandoned import make_held
make_held(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_folder_goes_when_its_build_has_been_killed(tmp_path: Path) -> None:
    folder = tmp_path / "build-1"
    folder.mkdir()
    (folder / "weights").write_bytes(b"x")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder / LOCK)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        remove_abandoned(tmp_path, "build-*")
        assert sorted(each.name for each in folder.iterdir()) == [LOCK, "weights"]
    finally:
        holder.kill()
        holder.communicate()
    remove_abandoned(tmp_path, "build-*")
    assert list(tmp_path.iterdir()) == []


def test_what_is_held_or_something_else_stays(tmp_path: Path) -> None:
    for name in ("old.tmp", "other.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.tmp").mkdir()  # without a lock: nobody says whose it is
    (tmp_path / "link.tmp").symlink_to("other.txt")
    descriptor = make_held(tmp_path / "held.tmp")
    try:
        remove_abandoned(tmp_path, "*.tmp")
        kept = ["folder.tmp", "held.tmp", "link.tmp", "other.txt"]
        assert sorted(each.name for each in tmp_path.iterdir()) == kept
    finally:
        os.close(descriptor)


def test_a_file_that_is_there_already_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "held.new").touch()
    with pytest.raises(FileExistsError):
        make_held(tmp_path / "held")
