"""Entries of a cache as bytes: the results of a unit.

```text
8 bytes      length of the index, big-endian
index        {"envelopes": [size, …], "blobs": [[sha256, size], …]}, canonical JSON
envelopes    as in a shared cache (`cache/remote/envelope.py`), signed or unsigned
blobs        each once, in the order of the index
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path

from hatch_lower.cache.entry import Keep, Record, is_own_key, make_record
from hatch_lower.cache.remote.envelope import (
    OTHER_COMPONENTS,
    RefusedError,
    SharedEntry,
    Signature,
    is_signed,
    read_envelope,
    shared_entry,
    unsigned_text,
    write_envelope,
)
from hatch_lower.cache.remote.signing import SigningKey, VerifyingKeys
from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json, read_file
from hatch_lower.driver.spread.protocol import WrongAnswerError, read_json
from hatch_lower.format.codec import encode
from hatch_lower.format.values import Digest, Natural
from hatch_lower.frozen import Frozen

LENGTH_BYTES = 8


class Entry(Frozen):
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
        except RefusedError as error:
            self.refused[key] = str(error)
            return None

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        return False

    def _take(self, key: str, keep: Keep) -> Record:
        entry, signature = self.entries[key]
        if not is_own_key(key, entry.components):
            raise RefusedError(OTHER_COMPONENTS)
        if self.trusted.keys and not is_signed(entry, signature, self.trusted):
            raise RefusedError(unsigned_text(signature, "is not trusted"))
        for name, _ in entry.blobs:

            def write(file: Path, name: str = name) -> bool:
                if name not in self.blobs:
                    return False
                file.write_bytes(self.blobs[name])
                return True

            if not keep(name, write):
                raise RefusedError(f"the blob {name[:16]}… did not come, or has other contents")
        return make_record(key, entry.components, entry.value, [name for name, _ in entry.blobs])


def entry_of(store: Store, key: str, signing_key: SigningKey | None = None) -> Entry | None:
    """Return a store's entry for the wire; `None` if the store lacks the key."""
    record = store.find_record(key)
    if record is None:
        return None
    blobs = {digest: store.blob_path(digest) for digest in record["blobs"]}
    return Entry(write_envelope(shared_entry(key, record, blobs), signing_key), blobs)


def write_entries(entries: Collection[Entry]) -> bytes:
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
