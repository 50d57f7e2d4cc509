from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hatch_lower.cache.contents import StoreLimits, Trimmed, clear_store, limits_of, maybe_trim, trim_store
from hatch_lower.cache.directory import in_folder, remove_unused
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes

NOW = time.time()
HOUR = 3600.0
DAY = 24 * HOUR
ROOMY = StoreLimits(10**9, 60 * DAY)


def key_of(name: str) -> str:
    return sha256_bytes(name.encode())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "v1", "on", pytest.fail)


def add(store: Store, name: str, hours: float, *blobs: bytes) -> None:
    """Store an entry that was last used a number of hours ago, its blobs as well."""
    store.put(key_of(name), {"kind": "test"}, name, blobs)
    for path in (store.record_path(key_of(name)), *(store.blob_path(sha256_bytes(each)) for each in blobs)):
        os.utime(path, (NOW - hours * HOUR, NOW - hours * HOUR))


def left(store: Store, *names: str) -> list[str]:
    """Return those of the entries that a build would find."""
    reader = Store(store.directory, "read-only", pytest.fail)
    return [name for name in names if reader.find(key_of(name)) == name]


def blobs_left(store: Store) -> int:
    return sum(path.is_file() for path in (store.directory / "blobs").rglob("*"))


def test_what_was_used_least_recently_goes_until_the_rest_fits(store: Store) -> None:
    for name, hours in (("a", 50), ("b", 10), ("c", 40), ("d", 20), ("e", 30)):
        add(store, name, hours, name.encode() * 10_000)
    trimmed = trim_store(store.directory, StoreLimits(32_000, 60 * DAY), NOW)
    assert left(store, *"abcde") == ["b", "d", "e"]
    assert (trimmed.records, trimmed.blobs, blobs_left(store)) == (2, 2, 3)
    assert 20_000 < trimmed.freed < 22_000
    assert 30_000 < trimmed.kept <= 32_000
    assert trim_store(store.directory, StoreLimits(32_000, 60 * DAY), NOW).records == 0


def test_use_keeps_an_entry(store: Store) -> None:
    for name, hours in (("a", 50), ("b", 40)):
        add(store, name, hours, name.encode() * 10_000)
    assert store.find(key_of("a")) == "a"
    trim_store(store.directory, StoreLimits(11_000, 60 * DAY), NOW)
    assert left(store, *"ab") == ["a"]


def test_what_nobody_used_for_too_long_goes_though_there_is_room(store: Store) -> None:
    add(store, "old", 60 * 24 + 1, b"old")
    add(store, "new", 59 * 24, b"new")
    assert trim_store(store.directory, ROOMY, NOW).records == 1
    assert left(store, "old", "new") == ["new"]
    assert blobs_left(store) == 1


def test_what_was_used_in_the_last_hour_stays_whatever_the_limits(store: Store) -> None:
    add(store, "now", 0, bytes(10_000))
    add(store, "lately", 1.9, bytes(20_000))  # used up to an hour after it was last marked
    add(store, "before", 2.1, bytes(30_000))
    assert trim_store(store.directory, StoreLimits(0, 1.0), NOW).records == 1
    assert left(store, "now", "lately", "before") == ["now", "lately"]


def test_a_blob_stays_while_an_entry_that_stays_refers_to_it(store: Store) -> None:
    add(store, "new", 3, b"common" * 1000, b"new" * 1000)
    add(store, "old", 100, b"common" * 1000, b"old" * 1000)
    trim_store(store.directory, StoreLimits(9_800, 60 * DAY), NOW)
    assert left(store, "old", "new") == ["new"]
    assert blobs_left(store) == 2


def test_an_entry_whose_blob_was_trimmed_is_a_miss_and_goes(store: Store) -> None:
    add(store, "a", 5, b"abc")
    store.blob_path(sha256_bytes(b"abc")).unlink()
    assert store.find(key_of("a")) is None
    assert trim_store(store.directory, ROOMY, NOW).records == 1
    assert not store.record_path(key_of("a")).exists()


def test_blobs_that_nothing_refers_to_go_after_an_hour_and_need_no_room(store: Store) -> None:
    old, new = store.put_blob(b"old" * 10_000), store.put_blob(b"new" * 10_000)
    os.utime(store.blob_path(old), (NOW - 2 * HOUR, NOW - 2 * HOUR))
    add(store, "a", 5, b"abc")
    trimmed = trim_store(store.directory, StoreLimits(31_000, 60 * DAY), NOW)
    assert (trimmed.records, trimmed.blobs, trimmed.freed) == (0, 1, 30_000)
    assert (store.blob_path(old).exists(), store.blob_path(new).exists()) == (False, True)


def test_blobs_stay_while_a_record_cannot_be_read_that_may_refer_to_them(store: Store) -> None:
    digest = store.put_blob(b"abc")
    os.utime(store.blob_path(digest), (NOW - 2 * HOUR, NOW - 2 * HOUR))
    path = store.record_path(key_of("a"))
    path.parent.mkdir(parents=True)
    path.symlink_to(path)
    assert trim_store(store.directory, ROOMY, NOW).blobs == 0
    path.unlink()
    assert trim_store(store.directory, ROOMY, NOW).blobs == 1


def test_unfinished_files_go_after_an_hour_wherever_they_are(store: Store) -> None:
    add(store, "a", 0, b"abc")
    old = [store.directory / name for name in ("records/00/.x.part", "blobs/.y.part", ".z.part", "other/.w.part")]
    new = store.directory / "blobs" / ".new.part"
    for path in (*old, new):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    for path in old:
        os.utime(path, (NOW - 2 * HOUR, NOW - 2 * HOUR))
    assert trim_store(store.directory, ROOMY, NOW).leftovers == 4
    assert [path.exists() for path in (*old, new)] == [False, False, False, False, True]


def test_unfinished_folders_go_after_an_hour_with_all_that_is_in_them(store: Store) -> None:
    add(store, "a", 0, b"abc")
    old, new = (store.directory / "preload" / name for name in (".old.part", ".new.part"))
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "compiler's.s").write_bytes(b"")
        (folder / "preload.so.part").write_bytes(b"")
    os.utime(old, (NOW - 2 * HOUR, NOW - 2 * HOUR))
    assert trim_store(store.directory, ROOMY, NOW).leftovers == 1
    assert (old.exists(), len(list(new.iterdir()))) == (False, 2)


def test_empty_folders_go_and_entries_are_stored_again_in_their_place(store: Store) -> None:
    add(store, "a", 100, b"abc")
    trim_store(store.directory, StoreLimits(0, 60 * DAY), NOW)
    assert [list((store.directory / kind).iterdir()) for kind in ("records", "blobs")] == [[], []]
    add(store, "a", 100, b"abc")
    assert left(store, "a") == ["a"]


def test_damaged_entries_go_at_once(store: Store) -> None:
    add(store, "a", 0, b"abc")
    store.record_path(key_of("a")).write_bytes(b"[")
    assert trim_store(store.directory, ROOMY, NOW).records == 1


def test_what_is_remembered_of_projects_goes_with_age(store: Store) -> None:
    folder = store.directory / "history"
    folder.mkdir(parents=True)
    for name, days in (("old", 61), ("new", 59)):
        (folder / name).write_text("{}")
        os.utime(folder / name, (NOW - days * DAY, NOW - days * DAY))
    trim_store(store.directory, ROOMY, NOW)
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_a_trim_without_a_directory_does_nothing(store: Store) -> None:
    assert trim_store(store.directory, ROOMY, NOW) == Trimmed(0, 0, 0, 0, 0)
    assert not store.directory.exists()


def test_a_store_is_trimmed_once_a_day(store: Store) -> None:
    assert maybe_trim(store, ROOMY, NOW) is None  # nothing there
    assert not store.directory.exists()
    add(store, "a", 100, b"abc")
    tight = StoreLimits(0, 60 * DAY)
    assert maybe_trim(store, ROOMY, NOW) is not None
    assert maybe_trim(store, tight, NOW + DAY - 60) is None
    assert left(store, "a") == ["a"]
    later = maybe_trim(store, tight, NOW + DAY + 60)
    assert later is not None
    assert later.records == 1


@pytest.mark.parametrize("mode", ["off", "read-only", "frozen"])
def test_a_store_that_is_not_written_is_not_trimmed(store: Store, mode: str) -> None:
    add(store, "a", 100, b"abc")
    before = sorted(store.directory.rglob("*"))
    assert maybe_trim(Store(store.directory, mode, pytest.fail), StoreLimits(0, 1.0), NOW) is None
    assert sorted(store.directory.rglob("*")) == before


@pytest.mark.parametrize(("disk", "size"), [(5 * 10**9, 10**10), (4 * 10**12, 4 * 10**11), (None, 10**10)])
def test_limits_follow_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: int | None, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=disk))
    folder = tmp_path if disk is not None else tmp_path / "missing"
    if disk is None:
        monkeypatch.undo()
    assert limits_of(folder) == StoreLimits(size, 60 * DAY)


def test_a_file_that_is_used_after_it_was_looked_at_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    os.utime(path, (NOW - DAY, NOW - DAY))
    seen = path.stat()
    os.utime(path)
    assert not remove_unused(path, seen)
    assert path.read_bytes() == b"abc"
    other = tmp_path / "other"
    other.write_bytes(b"def")
    os.replace(other, path)
    assert not remove_unused(path, seen)
    assert path.read_bytes() == b"def"
    assert remove_unused(path, path.stat())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_trim_removes_before_there_is_a_file_in_it_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "records" / "ab"
    removals = [folder, folder.parent]

    def write() -> int:
        if removals:
            shutil.rmtree(removals.pop())
        return (folder / "file").write_bytes(b"abc")

    assert in_folder(folder, write) == 3
    assert (folder / "file").exists()


def test_clear_removes_everything_but_the_locks_that_builds_hold(store: Store) -> None:
    add(store, "a", 0, b"abc")
    (store.directory / "history").mkdir()
    (store.directory / "verified.json").write_text("{}")
    with store.locked([key_of("a")]):
        clear_store(store.directory)
    assert [path.name for path in store.directory.iterdir()] == ["locks"]
    clear_store(store.directory / "nowhere")
