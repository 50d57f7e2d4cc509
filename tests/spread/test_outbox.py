"""The outbox: what a build that makes something for others has kept for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatch_lower.cache.entry import Keep, Outbox, Record, make_record, read_outbox
from hatch_lower.cache.store import Store

MADE, SENT, CAME, OWN = (letter * 64 for letter in "abcd")


class Remote:
    def fetch(self, key: str, keep: Keep) -> Record | None:
        return make_record(key, {}, "theirs", []) if key == CAME else None

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        return key == SENT


def refuse(line: str) -> Any:
    raise AssertionError(line)


def test_what_is_shared_is_noted_with_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    store = Store(tmp_path / "cache", "on", refuse, Outbox(path, Remote()))
    for key in (MADE, SENT):
        store.put(key, {}, "ours")
    store.put(OWN, {}, "of this machine alone", shared=False)
    assert store.find(CAME) == "theirs"
    assert store.find(SENT) == "ours"
    assert read_outbox(path) == {MADE: "made", SENT: "sent", CAME: "came"}


def test_without_a_shared_cache_all_that_may_be_shared_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    store = Store(tmp_path / "cache", "on", refuse, Outbox(path, None))
    store.put(MADE, {}, "ours", [b"blob"])
    assert store.find(CAME) is None
    assert read_outbox(path) == {MADE: "made"}


def test_half_a_note_is_none(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    assert read_outbox(path) == {}
    path.write_text(f"{MADE} made\n{SENT} lost\n../.. made\n{CAME} ca")
    assert read_outbox(path) == {MADE: "made"}
