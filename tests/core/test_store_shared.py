"""The store and a cache that several machines share; the protocol over the network has its own tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.cache.entry import Keep, make_record
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes

KEY = "ab" * 32
DIGEST = sha256_bytes(b"abc")


@dataclass
class Shared:
    """A shared cache in memory, which gives what it has without looking at it."""

    records: dict[str, Any] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    def fetch(self, key: str, keep: Keep) -> Any:
        self.asked.append(key)
        record = self.records.get(key)
        if record is not None:
            for digest in self.blobs:
                keep(digest, lambda path, digest=digest: self.send(digest, path))
        return record

    def send(self, digest: str, path: Path) -> bool:
        self.sent.append(digest)
        path.write_bytes(self.blobs[digest])
        return True

    def offer(self, key: str, record: dict[str, Any], blobs: Mapping[str, Path]) -> None:
        self.records[key] = record
        self.blobs |= {digest: path.read_bytes() for digest, path in blobs.items()}


def make_store(directory: Path, team: Shared, mode: str = "on") -> Store:
    return Store(directory, mode, pytest.fail, team)


@pytest.fixture
def team(tmp_path: Path) -> Shared:
    """Return a shared cache that another machine has filled."""
    filled = Shared()
    make_store(tmp_path / "other", filled).put(KEY, {"torch": "2.13.0"}, 1, [b"abc"])
    return filled


def test_what_one_machine_stores_another_finds_and_keeps(tmp_path: Path, team: Shared) -> None:
    assert team.records == {KEY: make_record(KEY, {"torch": "2.13.0"}, 1, [DIGEST])}
    store = make_store(tmp_path / "here", team)
    assert [store.find(KEY), store.get(KEY, "x")] == [1, 1]
    assert (team.asked, team.sent) == ([KEY], [DIGEST])
    assert store.read_blob(DIGEST) == b"abc"


def test_blobs_that_are_here_are_not_sent(tmp_path: Path, team: Shared) -> None:
    store = make_store(tmp_path / "here", team)
    store.put_blob(b"abc")
    assert store.find(KEY) == 1
    assert team.sent == []


def test_a_blob_with_other_contents_than_its_name_says_is_not_taken(tmp_path: Path, team: Shared) -> None:
    team.blobs[DIGEST] = b"abd"
    store = make_store(tmp_path / "here", team)
    assert store.find(KEY) is None
    assert not store.blob_path(DIGEST).exists()
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []


def test_a_record_of_another_key_or_with_another_digest_is_not_taken(tmp_path: Path, team: Shared) -> None:
    good = team.records[KEY]
    wrong = [
        {**good, "value": 2},
        {**good, "digest": "ab" * 32},
        {**make_record(KEY, {}, 1, ["../../x"])},
        {**make_record("cd" * 32, {}, 1, [DIGEST])},
        {"value": 1},
        [],
    ]
    for each in wrong:
        team.records[KEY] = each
        store = make_store(tmp_path / "here", team)
        assert store.find(KEY) is None
        assert not store.record_path(KEY).exists()


@pytest.mark.parametrize(
    ("mode", "found"), [("on", True), ("frozen", True), ("read-only", False), ("refresh", False), ("off", False)]
)
def test_the_modes_that_ask_a_shared_cache(tmp_path: Path, team: Shared, mode: str, found: bool) -> None:
    store = make_store(tmp_path / "here", team, mode)
    assert (store.find(KEY) == 1, team.asked == [KEY]) == (found, found)


def test_what_is_not_to_be_shared_is_neither_asked_for_nor_offered(tmp_path: Path, team: Shared) -> None:
    store = make_store(tmp_path / "here", team)
    assert store.find(KEY, shared=False) is None
    store.put("cd" * 32, {}, 1, shared=False)
    store.update("ef" * 32, {}, lambda value: 1)
    assert (team.asked, list(team.records)) == ([], [KEY])
    store.update("ef" * 32, {}, lambda value: value + 1, shared=True)
    assert team.records["ef" * 32]["value"] == 2


def test_fetch_asks_the_shared_cache_alone_and_leaves_the_record_that_is_here(tmp_path: Path, team: Shared) -> None:
    store = make_store(tmp_path / "here", team)
    store.put(KEY, {}, "mine", shared=False)
    assert store.fetch(KEY) == 1
    assert store.read_blob(DIGEST) == b"abc"
    assert store.find(KEY) == "mine"


def test_a_local_disk_that_is_full_is_reported_once_and_the_shared_cache_is_left_alone(
    tmp_path: Path, team: Shared
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    warnings: list[str] = []
    store = Store(blocked, "on", warnings.append, team)
    assert [store.find(KEY), store.find(KEY)] == [None, None]
    assert (len(warnings), team.asked, team.sent) == (1, [KEY], [])


def test_whether_something_is_shared_is_told_without_its_blobs(tmp_path: Path, team: Shared) -> None:
    store = make_store(tmp_path / "here", team)
    assert (store.has(KEY), store.is_shared(KEY), store.is_shared("cd" * 32)) == (True, True, False)
    assert team.sent == []
    assert not list(tmp_path.glob("here/blobs/*/*"))


def test_what_is_here_alone_is_had_and_not_shared(tmp_path: Path) -> None:
    team = Shared()
    store = make_store(tmp_path, team)
    store.put(KEY, {}, 1, [b"abc"], shared=False)
    assert (store.has(KEY), store.is_shared(KEY)) == (True, False)
    store.share(KEY)
    assert (team.records, team.blobs) == ({KEY: make_record(KEY, {}, 1, [DIGEST])}, {DIGEST: b"abc"})


def test_what_is_shared_already_is_not_offered_again(tmp_path: Path, team: Shared, monkeypatch: Any) -> None:
    store = make_store(tmp_path, team)
    assert store.find(KEY) == 1
    monkeypatch.setattr(Shared, "offer", lambda *_: pytest.fail("offered"))
    store.share(KEY)
    store.share("cd" * 32)


@pytest.mark.parametrize("mode", ["off", "refresh", "read-only"])
def test_a_store_that_asks_nobody_has_what_is_here_at_most(tmp_path: Path, team: Shared, mode: str) -> None:
    assert not make_store(tmp_path, team, mode).has(KEY)
    assert team.asked == []


def test_what_was_just_refreshed_is_stored_and_is_not_found(tmp_path: Path) -> None:
    store = make_store(tmp_path, Shared(), "refresh")
    store.put(KEY, {}, 1)
    assert (store.is_stored(KEY), store.is_shared(KEY), store.has(KEY)) == (True, True, False)
