from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_lower.driver.inputs.record import UNSET, is_credential, mark_of, secret


def test_a_mark_depends_on_key_name_and_value_and_does_not_hold_them() -> None:
    mark = mark_of(b"k" * 32, "HF_HOME", "/models")
    others = [(b"l" * 32, "HF_HOME", "/models"), (b"k" * 32, "HF_HOMES", "/models"), (b"k" * 32, "HF_HOME", "")]
    assert len({mark, *(mark_of(*each) for each in others)}) == 4
    assert mark == mark_of(b"k" * 32, "HF_HOME", "/models")
    assert "models" not in mark
    assert mark_of(b"k" * 32, "HF_HOME", None) == UNSET


@pytest.mark.parametrize("name", ["HF_TOKEN", "MY_SECRET_2", "db_password", "AWS_ACCESS_KEY_ID", "token"])
def test_a_credential_is_marked_by_its_value_as_any_variable_is(name: str) -> None:
    assert is_credential(name)
    assert len({mark_of(b"k" * 32, name, "x"), mark_of(b"l" * 32, name, "x"), mark_of(b"k" * 32, name, "")}) == 3
    assert mark_of(b"k" * 32, name, None) == UNSET


def test_other_names_are_no_credentials() -> None:
    assert [name for name in ("HF_HOME", "PATH", "OMP_NUM_THREADS") if is_credential(name)] == []


def test_a_value_that_is_not_text_is_marked() -> None:
    assert mark_of(b"k" * 32, "X", os.fsdecode(b"\xff")) != mark_of(b"k" * 32, "X", "")


def test_the_secret_stays_the_same_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "v1"
    first = secret(folder)
    assert len(first) == 32
    assert secret(folder) == first
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret"]
    assert secret(tmp_path / "other") != first


def test_the_secret_is_open_to_nobody_else_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o2770)  # a cache that a group shares
    modes = []
    chmod = os.chmod
    monkeypatch.setattr(os, "chmod", lambda path, mode, **rest: (modes.append(mode), chmod(path, mode, **rest)))
    secret(tmp_path)
    assert not [mode for mode in modes if mode & 0o077]
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("damaged", [b"", b"short", b"l" * 40])
def test_a_damaged_secret_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "secret").write_bytes(damaged)
    first = secret(tmp_path)
    assert first != damaged
    assert secret(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_file_system_without_links_keeps_the_secret_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    assert secret(tmp_path) == secret(tmp_path)


def test_without_a_folder_there_is_another_secret_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert len({secret(tmp_path / "file"), secret(tmp_path / "file")}) == 2


def test_processes_that_start_together_get_the_same_secret(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hatch_lower.driver.inputs.record import secret; input();"
        " print(secret(Path(sys.argv[1])).hex())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(6)]  # type: ignore[call-overload]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = {process.communicate()[0] for process in processes}
    assert answers == {f"{secret(tmp_path / 'cache').hex()}\n"}


def test_a_pipe_in_the_place_of_the_key_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "secret")
    assert secret(tmp_path) == secret(tmp_path)
