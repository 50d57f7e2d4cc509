from __future__ import annotations

import os
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from hatch_lower.cache import stats
from hatch_lower.cache import store as store_module
from hatch_lower.cache.store import LARGE, Store
from hatch_lower.canonical import sha256_bytes, sha256_file, sha256_stream

SIZE = LARGE
DIGEST = sha256_bytes(bytes(SIZE))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that were hashed."""
    names: list[str] = []

    def count(path: Path) -> str:
        names.append(path.name)
        return sha256_file(path)

    def read(file: BinaryIO) -> str:
        names.append(Path(file.name).name)
        return sha256_stream(file)

    monkeypatch.setattr(store_module, "sha256_file", count)
    monkeypatch.setattr(stats, "sha256_stream", read)
    return names


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let times be trusted at once."""
    monkeypatch.setattr(stats, "DOUBTFUL_NS", -60_000_000_000)


def make_store(directory: Path, size: int = SIZE) -> tuple[Store, str]:
    store = Store(directory, "on", lambda line: None)
    return store, store.put_blob(bytes(size))


def test_a_large_blob_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str]) -> None:
    store, digest = make_store(tmp_path)
    settle(monkeypatch)
    assert [store.holds(digest) for _ in range(3)] == [True] * 3
    assert hashed == [digest]
    assert [Store(tmp_path, "frozen", pytest.fail).holds(digest), hashed] == [True, [digest]]


def test_a_small_blob_is_hashed_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str]) -> None:
    store, digest = make_store(tmp_path, SIZE - 1)
    settle(monkeypatch)
    assert [store.holds(digest) for _ in range(3)] == [True] * 3
    assert hashed == [digest] * 3


def test_a_blob_that_was_just_written_is_not_trusted(tmp_path: Path, hashed: list[str]) -> None:
    store, digest = make_store(tmp_path)
    assert [store.holds(digest) for _ in range(2)] == [True] * 2
    assert hashed == [digest] * 2


@pytest.mark.parametrize("how", ["in place", "with its old times", "replaced", "longer"])
def test_damage_that_moves_the_stat_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    store, digest = make_store(tmp_path)
    settle(monkeypatch)
    assert store.holds(digest)
    path = store.blob_path(digest)
    before = path.stat()
    if how == "replaced":
        (tmp_path / "other").write_bytes(b"\1" + bytes(SIZE - 1))
        os.replace(tmp_path / "other", path)
    else:
        with path.open("r+b") as file:
            file.seek(SIZE if how == "longer" else 0)
            file.write(b"\1")
    if how != "in place":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not store.holds(digest)
    assert not path.exists()


@pytest.mark.parametrize("notes", [b"", b"[", b"[]", b'{"x": 1}', b"\xff"])
def test_notes_that_are_damaged_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: bytes) -> None:
    store, digest = make_store(tmp_path)
    (tmp_path / "verified.json").write_bytes(notes)
    settle(monkeypatch)
    assert store.holds(digest)


@pytest.mark.parametrize("change", ["none", "later", "meanwhile", "gone"])
def test_who_has_read_all_of_a_blob_spares_the_next_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str], change: str
) -> None:
    store, digest = make_store(tmp_path)
    path = store.blob_path(digest)
    settle(monkeypatch)
    before, began_ns = path.stat(), time.time_ns()
    if change == "meanwhile":
        path.write_bytes(bytes(SIZE))
    if change == "gone":
        path.unlink()
    store.note_whole(digest, before, began_ns)
    if change == "later":
        path.write_bytes(b"\1" + bytes(SIZE - 1))
    assert store.holds(digest) == (change in ("none", "meanwhile"))
    assert hashed == ([digest] if change in ("later", "meanwhile") else [])


def test_who_has_read_a_blob_that_was_just_written_spares_nothing(tmp_path: Path, hashed: list[str]) -> None:
    store, digest = make_store(tmp_path)
    store.note_whole(digest, store.blob_path(digest).stat(), time.time_ns())
    assert store.holds(digest)
    assert hashed == [digest]
