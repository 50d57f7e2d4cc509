from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hatch_lower.cache.contents import repair_store, survey
from hatch_lower.cache.entry import find_record_kind
from hatch_lower.cache.key import ExportKey, JointKey, PartitionKey
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes

KEYS = [f"{number:02x}" * 32 for number in range(4)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "v1", "on", pytest.fail)


def test_a_survey_says_what_there_is(store: Store) -> None:
    key = PartitionKey("g", "", "aoti", (), (), "2.13.0", "3.11.7", "Linux x86_64", 2)
    store.put(key.digest(), key.components(), 1, [b"abc" * 100, b"common"])
    store.put(KEYS[1], {"kind": "manifest", "subject": "digits"}, 1, [b"common"])
    store.put(KEYS[2], {"model": "teacher"}, 1)
    store.put_blob(b"alone")
    hours = (time.time() - 5 * 3600,) * 2
    os.utime(store.record_path(KEYS[1]), hours)
    (store.directory / "blobs" / ".x.part").touch()
    found = survey(store.directory)
    entries = {entry.key: entry for entry in found.entries}
    assert {(each.kind, each.subject, each.blobs, each.whole) for each in found.entries} == {
        ("partition", "aoti", 2, True),
        ("manifest", "digits", 1, True),
        ("other", "teacher", 0, True),
    }
    assert found.entries[-1].key == KEYS[1]
    assert entries[KEYS[1]].stored - entries[KEYS[1]].used == pytest.approx(5 * 3600, abs=60)
    assert entries[key.digest()].size == store.record_path(key.digest()).stat().st_size + 306
    records = sum(path.stat().st_size for path in store.directory.rglob("*.json"))
    assert (found.size, found.blobs, found.unreferenced, found.leftovers) == (records + 311, 3, 1, 1)


def test_keys_of_every_kind_are_told_apart() -> None:
    assert find_record_kind(dict.fromkeys(ExportKey.__dataclass_fields__)) == "export"
    assert find_record_kind(dict.fromkeys(PartitionKey.__dataclass_fields__)) == "partition"
    assert find_record_kind(dict.fromkeys(JointKey.__dataclass_fields__)) == "partition"
    assert find_record_kind({"constants": 3}) == "constants"


def test_a_survey_of_nothing_is_empty(tmp_path: Path) -> None:
    found = survey(tmp_path / "nowhere")
    assert (found.entries, found.size, found.blobs, found.unreferenced, found.leftovers) == ((), 0, 0, 0, 0)


def test_repair_reports_and_removes_what_is_damaged_and_nothing_else(store: Store) -> None:
    store.put(KEYS[0], {}, 1, [b"abc"])
    store.put(KEYS[1], {}, 2, [b"def"])
    store.put(KEYS[2], {}, 3, [b"ghi", b"def"])
    store.put(KEYS[3], {}, 4)
    assert repair_store(store.directory) == {}
    store.blob_path(sha256_bytes(b"abc")).write_bytes(b"abd")
    store.blob_path(sha256_bytes(b"ghi")).unlink()
    store.record_path(KEYS[3]).write_bytes(store.record_path(KEYS[1]).read_bytes())
    expected = {
        store.blob_path(sha256_bytes(b"abc")): "the contents do not match the name",
        store.record_path(KEYS[0]): "1 of its 1 blobs are damaged or missing",
        store.record_path(KEYS[2]): "1 of its 2 blobs are damaged or missing",
        store.record_path(KEYS[3]): "the contents are not the record of this key",
    }
    assert repair_store(store.directory) == {
        path.relative_to(store.directory).as_posix(): expected[path] for path in sorted(expected)
    }
    assert not any(path.exists() for path in expected)
    assert [store.find(key) for key in KEYS] == [None, 2, None, None]
    assert repair_store(store.directory) == {}


def test_repair_reports_pipes_and_damaged_preloaded_libraries(store: Store) -> None:
    store.put(KEYS[0], {}, 1, [b"abc"])
    blob, record = store.blob_path(sha256_bytes(b"abc")), store.record_path(KEYS[0])
    for path in (blob, record):
        path.unlink()
        os.mkfifo(path)
    preload = store.directory / "preload"
    preload.mkdir()
    whole, damaged = (preload / f"{name * 64}-{sha256_bytes(b'library')}.so" for name in "ab")
    whole.write_bytes(b"library")
    damaged.write_bytes(b"librari")
    assert list(repair_store(store.directory)) == [
        path.relative_to(store.directory).as_posix() for path in (blob, damaged, record)
    ]
    assert [path.exists() for path in (blob, record, damaged, whole)] == [False, False, False, True]
