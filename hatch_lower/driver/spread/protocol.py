"""The messages between a build and its workers: requests as JSON, answers with the entries of a cache as bytes.

A request travels beside the snapshot of the project, and holds its digest. An answer has its entries, under an
authentication code by the request's secret.

Entries of a cache as bytes: the results of a unit.

```text
8 bytes      length of the index, big-endian
index        {"envelopes": [size, …], "blobs": [[sha256, size], …]}, canonical JSON
envelopes    as in a shared cache (`cache/remote/envelope.py`), signed or unsigned
blobs        each once, in the order of the index
```

A worker's answer as bytes.

```text
a line       the format's name
32 bytes     sha256 that depends on the request's secret: names the request of the answer
32 bytes     HMAC-SHA256 of all following bytes, by the secret
8 bytes      length of the answer, big-endian
answer       `UnitAnswer`, canonical JSON
entries      in the format above
```

A transport that changes a bit, or mixes up two units, does not know the secret. The code does not prove who made the
entries: that is the purpose of signatures.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hatch_lower.cache.entry import Keep, Record, is_own_key, make_record
from hatch_lower.cache.remote.envelope import (
    OTHER_COMPONENTS,
    RefusedEntryError,
    SharedEntry,
    Signature,
    is_signed_entry,
    read_envelope,
    shared_entry,
    unsigned_text,
    write_envelope,
)
from hatch_lower.cache.remote.signing import SigningKey, VerifyingKeys
from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json, read_file, sha256_bytes
from hatch_lower.driver.spread.snapshot import Relocated
from hatch_lower.driver.units import Unit
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import Damage, decode, encode, parse_json
from hatch_lower.format.values import Digest, Natural, Text
from hatch_lower.frozen import Frozen

SECRET_BYTES = 32
SENT = "the request and its snapshot"  # the subject of a `Lack`

Outcome: TypeAlias = Literal["made", "refused", "failed", "killed"]
# by name (`torch`, `Python`, `C library`, `C++ compiler`, …): the version or the description on a machine
Facts: TypeAlias = Mapping[str, str]


class WrongAnswerError(Exception):
    """An answer that is not used; the text is the reason. The unit is made again elsewhere."""


class LacksError(Exception):
    """A worker cannot make a unit that another worker may make."""

    def __init__(self, *lacks: Lack) -> None:
        super().__init__("; ".join(lack.text() for lack in lacks))
        self.lacks = lacks


class Lack(Frozen):
    what: str
    wanted: str  # empty: `found` is a sentence about the trouble
    found: str  # empty: missing

    def text(self) -> str:
        if not self.wanted:
            return f"{self.what}: {self.found}"
        found = f"has {self.what} {self.found}" if self.found else f"has no {self.what}"
        return f"{found}, where {self.wanted} is wanted"


class UnitBody(Frozen):
    project: Relocated
    unit: Unit


class UnitRequest(Frozen):
    name: Text
    key: Digest
    secret: Digest  # random; an answer proves with it that its writer has read this request
    facts: Facts  # required of the worker
    environment: Mapping[str, str]  # exactly the variables that `pass-env` names, or recipes need
    body: Mapping[str, object]  # a `UnitBody`
    snapshot: Digest  # sha256 of the archive beside the request
    # ids of keys, one of which must have signed each returned entry; empty: no signature needed
    signers: tuple[str, ...] = ()
    bring_all: bool = True  # whether the answer also brings entries that the worker sent to a shared cache

    def __repr__(self) -> str:
        return f"UnitRequest({self.name}, {self.key[:16]})"  # no secrets in logs


class UnitAnswer(Frozen):
    name: Text
    key: Digest
    worker: str  # `host:pid`, or the engine's own name of the worker
    outcome: Outcome
    entries: tuple[Digest, ...] = ()  # keys of the results, which the answer brings or the shared cache has
    lacks: tuple[Lack, ...] = ()
    error: Mapping[str, str] | None = None  # `LowerError.to_json()`
    log: tuple[str, ...] = ()

    def validate(self) -> None:
        told = ((self.lacks, ("refused",)), (self.error, ("failed", "killed")))
        if any(bool(value) != (self.outcome in outcomes) for value, outcomes in told):
            raise Damage(f"`{self.outcome}` with fields of another outcome, or without its own", ".outcome")
        if self.error is not None and self.error.keys() != {"error", "what", "where", "found", "hint"}:
            raise Damage("no error", ".error")


def new_secret() -> str:
    return secrets.token_hex(SECRET_BYTES)


def write_unit_request(request: UnitRequest) -> bytes:
    return canonical_json(encode(request))


def read_unit_request(data: bytes) -> UnitRequest:
    """Read a request of `write_unit_request`; raise `ValueError` for any other bytes."""
    request: UnitRequest = read_json(UnitRequest, data, "the request")
    return request


def read_json(kind: type[Frozen], data: bytes, where: str) -> Any:
    try:
        return decode(kind, parse_json(data, where), where)
    except ProgramError as error:  # its advice is for a damaged program
        raise ValueError(f"{error.where}: {error.found}") from error


LENGTH_BYTES = 8


class UnitEntry(Frozen):
    envelope: bytes
    blobs: Mapping[str, Path]  # by digest


class Index(Frozen):
    envelopes: tuple[Natural, ...]  # sizes in bytes
    blobs: tuple[tuple[Digest, Natural], ...]


class Entries(Frozen):
    """Read-only cache over the entries that a worker returned."""

    entries: Mapping[str, tuple[SharedEntry, Signature | None]]  # by key
    blobs: Mapping[str, memoryview]  # by their alleged digests
    trusted: VerifyingKeys = field(default_factory=VerifyingKeys)  # if not empty, a trusted key must have signed
    refused: dict[str, str] = field(default_factory=dict, compare=False)  # by key: the reason for the refusal

    def fetch(self, key: str, keep: Keep) -> Record | None:
        try:
            return self._take(key, keep) if key in self.entries else None
        except RefusedEntryError as error:
            self.refused[key] = str(error)
            return None

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        return False

    def _take(self, key: str, keep: Keep) -> Record:
        entry, signature = self.entries[key]
        if not is_own_key(key, entry.components):
            raise RefusedEntryError(OTHER_COMPONENTS)
        if self.trusted.keys and not is_signed_entry(entry, signature, self.trusted):
            raise RefusedEntryError(unsigned_text(signature, "is not trusted"))
        for name, _ in entry.blobs:

            def write(file: Path, name: str = name) -> bool:
                if name not in self.blobs:
                    return False
                file.write_bytes(self.blobs[name])
                return True

            if not keep(name, write):
                raise RefusedEntryError(f"the blob {name[:16]}… did not come, or has other contents")
        return make_record(key, entry.components, entry.value, [name for name, _ in entry.blobs])


def unit_entry(store: Store, key: str, signing_key: SigningKey | None = None) -> UnitEntry | None:
    """Return a store's entry for the wire; `None` if the store lacks the key."""
    record = store.find_record(key)
    if record is None:
        return None
    blobs = {digest: store.blob_path(digest) for digest in record["blobs"]}
    return UnitEntry(write_envelope(shared_entry(key, record, blobs), signing_key), blobs)


def write_entries(entries: Collection[UnitEntry]) -> bytes:
    paths = {digest: path for entry in entries for digest, path in entry.blobs.items()}
    blobs = {digest: read_file(path) for digest, path in paths.items()}
    sizes = tuple((digest, len(data)) for digest, data in blobs.items())
    index = canonical_json(encode(Index(tuple(len(entry.envelope) for entry in entries), sizes)))
    length = len(index).to_bytes(LENGTH_BYTES, "big")
    return b"".join([length, index, *(entry.envelope for entry in entries), *blobs.values()])


def read_entries(data: bytes | memoryview) -> Entries:
    """Read the bytes of `write_entries`, or raise `WrongAnswerError`. The store that takes the blobs checks their
    digests.
    """
    whole = memoryview(data)
    start = LENGTH_BYTES + int.from_bytes(whole[:LENGTH_BYTES], "big")
    if start > len(whole):
        raise WrongAnswerError("its entries are cut off")
    try:
        index = read_json(Index, bytes(whole[LENGTH_BYTES:start]), "the entries")
    except ValueError as error:
        raise WrongAnswerError(f"its entries have no index: {error}") from error
    if start + sum(index.envelopes) + sum(size for _, size in index.blobs) != len(whole):
        raise WrongAnswerError("its entries have another size than their index says")
    entries: dict[str, tuple[SharedEntry, Signature | None]] = {}
    for size in index.envelopes:
        try:
            entry, signature = read_envelope(bytes(whole[start : start + size]))
        except ValueError as error:
            raise WrongAnswerError(f"the answer brings {error}") from error
        if entry.key in entries:
            raise WrongAnswerError(f"the answer brings the entry {entry.key[:16]}… twice")
        entries[entry.key] = entry, signature
        start += size
    blobs: dict[str, memoryview] = {}
    for name, size in index.blobs:
        blobs[name] = whole[start : start + size]
        start += size
    return Entries(entries, blobs)


HEAD = b"hatch-lower answer 1\n"
DIGEST_BYTES = 32
MAC = len(HEAD) + DIGEST_BYTES
CONTENTS = MAC + DIGEST_BYTES


def write_unit_answer(answer: UnitAnswer, entries: Collection[UnitEntry], secret: str) -> bytes:
    text = canonical_json(encode(answer))
    bundle = write_entries(entries)
    length = len(text).to_bytes(LENGTH_BYTES, "big")
    return b"".join([HEAD, mark(secret), code(secret, length, text, bundle), length, text, bundle])


def read_unit_answer(data: bytes, request: UnitRequest) -> tuple[UnitAnswer, Entries]:
    """Read the answer to a request and the entries in the answer; raise `WrongAnswerError` for any other bytes."""
    whole = memoryview(data)
    if len(whole) < CONTENTS + LENGTH_BYTES or whole[: len(HEAD)] != HEAD:
        raise WrongAnswerError("the bytes are no answer")
    if whole[len(HEAD) : MAC] != mark(request.secret):
        raise WrongAnswerError("the answer belongs to another request, or is damaged")
    if not hmac.compare_digest(whole[MAC:CONTENTS], code(request.secret, whole[CONTENTS:])):
        raise WrongAnswerError("the answer was changed: its authentication code is wrong")
    start = CONTENTS + LENGTH_BYTES
    end = start + int.from_bytes(whole[CONTENTS:start], "big")
    try:
        answer: UnitAnswer = read_json(UnitAnswer, bytes(whole[start:end]), "the answer")
    except ValueError as error:
        raise WrongAnswerError(f"the answer cannot be read: {error}") from error
    if (answer.name, answer.key) != (request.name, request.key):
        raise WrongAnswerError(f"the answer is about another unit, `{answer.name}`")
    entries = read_entries(whole[end:])
    if unnamed := entries.entries.keys() - set(answer.entries):
        raise WrongAnswerError(f"the answer brings the entry {min(unnamed)[:16]}… without its key")
    return answer, entries


def mark(secret: str) -> bytes:
    return bytes.fromhex(sha256_bytes(HEAD + secret.encode()))


def code(secret: str, *pieces: bytes | memoryview) -> bytes:
    total = hmac.new(bytes.fromhex(secret), digestmod="sha256")
    for piece in pieces:
        total.update(piece)
    return total.digest()
