"""What a build asks of a worker and what it answers, on the wire: whatever is not as it was written is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hatch_lower.cache.entry import HASHED
from hatch_lower.cache.remote.signing import SigningKey, VerifyingKeys, new_key_pair, read_key
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.driver.inputs.record import RecordedInputs
from hatch_lower.driver.lookup import add_entry, readable_entries, shared_key
from hatch_lower.driver.spread.protocol import (
    CONTENTS,
    HEAD,
    MAC,
    Entries,
    Lack,
    UnitAnswer,
    UnitEntry,
    UnitRequest,
    WrongAnswerError,
    code,
    new_secret,
    read_entries,
    read_unit_answer,
    read_unit_request,
    unit_entry,
    write_entries,
    write_unit_answer,
    write_unit_request,
)
from hatch_lower.driver.spread.spread import remember_read

KEY, OTHER = "ab" * 32, "cd" * 32
BLOBS = (b"native code" * 99, b"", b"tensors")
VALUE = {"native": True, "files": [1.5, None, "é"]}
REQUEST = UnitRequest(
    name="digits/default",
    key=KEY,
    secret=new_secret(),
    facts={"torch": "2.13.0"},
    environment={"HF_HOME": "/models"},
    body={"model": "digits"},
    snapshot=sha256_bytes(b"files"),
)
MADE = UnitAnswer("digits/default", KEY, "host:1", "made", (OTHER,), log=("exported",))


def no_warning(line: str) -> None:
    raise AssertionError(line)


def store_at(folder: Path, entries: Entries | None = None) -> Store:
    return Store(folder, "on", no_warning, entries)


def entry_in(folder: Path, key: str = OTHER, signing_key: SigningKey | None = None) -> UnitEntry:
    store = store_at(folder)
    store.put(key, {"kind": "other"}, VALUE, BLOBS)
    entry = unit_entry(store, key, signing_key)
    assert entry is not None
    return entry


def pair() -> tuple[SigningKey, VerifyingKeys]:
    made = new_key_pair()
    return SigningKey(read_key(made.private, "")), VerifyingKeys((read_key(made.public, ""),))


def test_a_request_is_read_as_it_was_written() -> None:
    assert read_unit_request(write_unit_request(REQUEST)) == REQUEST
    assert REQUEST.secret not in repr(REQUEST)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b"[" * 100000])
def test_what_is_no_request_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="the request"):
        read_unit_request(data)


def test_an_answer_brings_entries_that_a_store_takes(tmp_path: Path) -> None:
    data = write_unit_answer(MADE, [entry_in(tmp_path / "worker")], REQUEST.secret)
    answer, entries = read_unit_answer(data, REQUEST)
    assert answer == MADE
    store = store_at(tmp_path / "here", entries)
    assert store.find(OTHER) == VALUE
    assert store_at(tmp_path / "here").find(OTHER) == VALUE, "it is in the store itself"
    assert [store.read_blob(sha256_bytes(blob)) for blob in BLOBS] == list(BLOBS)
    assert store.find(KEY) is None
    assert entries.refused == {}


def test_the_recorded_inputs_of_a_unit_are_kept_as_if_the_export_had_run_here(tmp_path: Path) -> None:
    components = {"kind": "unit", "subject": "digits/default", "model": "digits", "export": "digits.model:export"}
    inputs = RecordedInputs({}, (), {}, {}, {}, {}, {}, {}, {}, {}, {}, ())
    store = store_at(tmp_path)
    add_entry(store, components, inputs, OTHER, elsewhere=True)
    unit = digest_of(components)
    assert store.find(unit) is None
    context: Any = SimpleNamespace(store=store, environment={})
    remember_read(context, KEY, shared_key(components))
    assert store.find(unit) is None, "the entry is another unit's"
    remember_read(context, unit, shared_key(components))
    assert [made for _, made in readable_entries(store.find(unit))] == [OTHER]


def test_blobs_that_entries_share_travel_once(tmp_path: Path) -> None:
    entries = [entry_in(tmp_path, key) for key in (KEY, OTHER)]
    assert len(write_entries(entries)) < 2 * len(write_entries(entries[:1])) - len(BLOBS[0]) // 2


def test_every_flipped_bit_of_an_answer_is_refused(tmp_path: Path) -> None:
    data = write_unit_answer(replace(MADE, log=()), [entry_in(tmp_path)], REQUEST.secret)
    for position in range(0, len(data), 7):
        wrong = bytearray(data)
        wrong[position] ^= 1 << position % 8
        with pytest.raises(WrongAnswerError):
            read_unit_answer(bytes(wrong), REQUEST)


@pytest.mark.parametrize("end", [0, 5, len(HEAD), MAC, CONTENTS, CONTENTS + 8, -1])
def test_an_answer_that_is_cut_off_is_refused(end: int) -> None:
    with pytest.raises(WrongAnswerError):
        read_unit_answer(write_unit_answer(MADE, (), REQUEST.secret)[:end], REQUEST)


def test_another_unit_s_answer_is_refused() -> None:
    other = replace(REQUEST, name="digits/small", key=OTHER, secret=new_secret())
    theirs = write_unit_answer(replace(MADE, name="digits/small", key=OTHER), (), other.secret)
    with pytest.raises(WrongAnswerError, match="the answer belongs to another request"):
        read_unit_answer(theirs, REQUEST)
    # of a worker that puts the wrong result under the right secret
    with pytest.raises(WrongAnswerError, match="about another unit, `digits/small`"):
        read_unit_answer(write_unit_answer(replace(MADE, name="digits/small"), (), REQUEST.secret), REQUEST)
    with pytest.raises(WrongAnswerError, match="about another unit"):
        read_unit_answer(write_unit_answer(replace(MADE, key=OTHER), (), REQUEST.secret), REQUEST)


def test_an_answer_without_or_with_a_wrong_code_is_refused() -> None:
    data = write_unit_answer(MADE, (), REQUEST.secret)
    for wrong in (bytes(32), code(new_secret(), data[CONTENTS:])):
        with pytest.raises(WrongAnswerError, match="its authentication code is wrong"):
            read_unit_answer(data[:MAC] + wrong + data[CONTENTS:], REQUEST)


@pytest.mark.parametrize(
    "answer",
    [
        replace(MADE, outcome="refused"),
        replace(MADE, lacks=(Lack("torch", "2.13.0", "2.12.0"),)),
        replace(MADE, outcome="failed"),
        replace(MADE, outcome="failed", error={"what": "a sentence"}),
        replace(MADE, outcome="lost"),
        replace(MADE, entries=("../..",)),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(answer: UnitAnswer) -> None:
    with pytest.raises(WrongAnswerError, match="cannot be read: the answer"):
        read_unit_answer(write_unit_answer(answer, (), REQUEST.secret), REQUEST)


def test_an_entry_that_the_answer_does_not_name_is_refused(tmp_path: Path) -> None:
    data = write_unit_answer(replace(MADE, entries=()), [entry_in(tmp_path)], REQUEST.secret)
    with pytest.raises(WrongAnswerError, match="without its key"):
        read_unit_answer(data, REQUEST)


def test_an_entry_with_another_blob_than_it_says_is_not_taken(tmp_path: Path) -> None:
    entry = entry_in(tmp_path / "worker")
    first = sha256_bytes(BLOBS[0])
    for contents in (BLOBS[0][:-1] + b"!", BLOBS[0][:-1]):
        wrong = tmp_path / "wrong"
        wrong.write_bytes(contents)
        entries = read_entries(write_entries([replace(entry, blobs={**entry.blobs, first: wrong})]))
        assert store_at(tmp_path / "here", entries).find(OTHER) is None
        assert entries.refused == {OTHER: f"the blob {first[:16]}… did not come, or has other contents"}
    rest = {digest: path for digest, path in entry.blobs.items() if digest != first}
    entries = read_entries(write_entries([replace(entry, blobs=rest)]))
    assert store_at(tmp_path / "here", entries).find(OTHER) is None
    assert not list((tmp_path / "here").glob("records/*/*"))


@pytest.mark.parametrize("kind", sorted(HASHED))
def test_an_entry_of_another_key_is_not_taken(tmp_path: Path, kind: str) -> None:
    own = {"graph": "of a partition"}
    for key, found in ((digest_of(own), VALUE), (OTHER, None)):
        store = store_at(tmp_path / f"worker {key}")
        store.put(key, {"kind": kind, **own}, VALUE)
        entry = unit_entry(store, key)
        assert entry is not None
        entries = read_entries(write_entries([entry]))
        assert store_at(tmp_path / f"here {key}", entries).find(key) == found
        assert list(entries.refused.values()) == ([] if found else ["the entry has the components of another key"])


def test_where_public_keys_are_configured_one_of_them_must_have_signed(tmp_path: Path) -> None:
    own, trusted = pair()
    stranger, _ = pair()
    signed, unsigned, foreign = (entry_in(tmp_path / "worker", OTHER, key) for key in (own, None, stranger))

    def taken(entry: UnitEntry) -> tuple[object, dict[str, str]]:
        entries = replace(read_entries(write_entries([entry])), trusted=trusted)
        return store_at(tmp_path / sha256_bytes(entry.envelope), entries).find(OTHER), entries.refused

    assert taken(signed) == (VALUE, {})
    assert taken(unsigned) == (None, {OTHER: "the entry is not trusted, and is not signed"})
    assert "not among the public keys" in taken(foreign)[1][OTHER]
    changed = replace(signed, envelope=signed.envelope.replace(b'"native":true', b'"native":false', 1))
    assert f"the signature by the key {own.key_id()} is wrong" in taken(changed)[1][OTHER]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        ((1 << 40).to_bytes(8, "big"), "cut off"),
        ((2).to_bytes(8, "big") + b"{}", "no index"),
        ((28).to_bytes(8, "big") + b'{"blobs":[],"envelopes":[4]}', "another size"),
        ((28).to_bytes(8, "big") + b'{"blobs":[],"envelopes":[4]}null', "no entry, or an entry of another version"),
    ],
)
def test_what_are_no_entries_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WrongAnswerError, match=reason):
        read_entries(data)


def test_an_entry_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongAnswerError, match="twice"):
        read_entries(write_entries([entry_in(tmp_path), entry_in(tmp_path)]))


def test_a_lack_is_said_in_words() -> None:
    assert Lack("torch", "2.13.0", "2.12.0").text() == "has torch 2.12.0, where 2.13.0 is wanted"
    assert Lack("compiler g++", "g++ 12.2", "").text() == "has no compiler g++, where g++ 12.2 is wanted"
