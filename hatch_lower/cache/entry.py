"""The form of a record, and the transfer of a record from a cache that several machines share.

```text
{"blobs": ["<sha256>", …], "components": {…}, "digest": "<sha256>", "stored": 1700000000, "value": …}
```

`value` is any JSON, `blobs` are the digests of the files that the value refers to, `components` are the readable parts
of the key. `digest` covers the key and all fields except `stored`. `stored` is the time when this machine wrote the
record, in seconds since 1970, and is never sent to another machine.

`Outbox` notes the entries that a worker made for another build.

```text
<key> made    the entry is in the local store alone
<key> sent    the entry is in the shared cache, too
<key> came    the entry came from the shared cache
```
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hatch_lower.cache.directory import temporary_beside
from hatch_lower.canonical import digest_of, sha256_file

Record = dict[str, Any]
DIGEST = re.compile("[0-9a-f]{64}")
# a component that only keys of a certain kind have, and that kind; the component `kind` has precedence
KINDS = (
    ("compile_specs", "partition"),
    ("partitions", "partition"),
    ("graphs", "export"),
    ("constants", "constants"),
    ("native file", "native"),
)
# kinds whose keys are digests of their components, and components that are stored but not part of the key
HASHED = frozenset({"partition", "export", "manifest"})
BESIDE = frozenset({"kind", "subject"})
# `keep(digest, write)` ensures that the local store has a blob, and returns whether the store has the blob. For a
# missing blob, `keep` calls `write(path)`, which writes the bytes into an empty file and returns True for success, and
# checks the contents.
Keep = Callable[[str, Callable[[Path], bool]], bool]


def make_record(key: str, components: Mapping[str, object], value: object, blobs: Sequence[str]) -> Record:
    record = {"blobs": list(blobs), "components": dict(components), "value": value}
    return {**record, "digest": digest_of([key, record])}


def check_record(key: str, found: object) -> Record | None:
    """Return a parsed record without `stored`; `None` if the value is not a record, or the record of another key."""
    if not isinstance(found, dict) or not {"blobs", "components", "value", "digest"} <= found.keys():
        return None
    record = {name: found[name] for name in ("blobs", "components", "value")}
    blobs, components = record["blobs"], record["components"]
    if not isinstance(blobs, list) or not isinstance(components, dict):
        return None
    if not all(isinstance(digest, str) and DIGEST.fullmatch(digest) for digest in blobs):
        return None
    try:
        whole = found["digest"] == digest_of([key, record])
    except (ValueError, RecursionError):  # NaN, which Python reads but JSON lacks; deeper nesting than a build writes
        return None
    return {**record, "digest": found["digest"]} if whole else None


def find_record_kind(components: Mapping[str, object]) -> str:
    if isinstance(components.get("kind"), str):
        return str(components["kind"])
    return next((kind for name, kind in KINDS if name in components), "other")


def is_own_key(key: str, components: Mapping[str, object]) -> bool:
    """Return whether a key is the digest of the components; True for kinds of entries with other keys."""
    if find_record_kind(components) not in HASHED:
        return True
    return digest_of({name: value for name, value in components.items() if name not in BESIDE}) == key


def parse_record(data: bytes) -> object:
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


class RemoteCache(Protocol):
    """A cache of several machines; its methods report remote failures, and raise `OSError` for local files only."""

    def fetch(self, key: str, keep: Keep) -> Record | None:
        """Return the record of a key, or `None`; call `keep` for each blob, and trust no unsigned entry."""

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        """Send a record and its blobs (digest to local file); return whether the cache has the record now."""


def fetch_record(
    remote: RemoteCache, key: str, holds: Callable[[str], bool], blob_path: Callable[[str], Path]
) -> Record | None:
    """Copy the blobs of a shared cache's record into the local store; return the record, or `None` if a blob fails."""
    kept = set()

    def keep(digest: str, write: Callable[[Path], bool]) -> bool:
        if digest not in kept and (holds(digest) or receive_blob(blob_path(digest), digest, write)):
            kept.add(digest)
        return digest in kept

    record = check_record(key, remote.fetch(key, keep))
    return record if record is not None and all(blob in kept or holds(blob) for blob in record["blobs"]) else None


def receive_blob(path: Path, digest: str, write: Callable[[Path], bool]) -> bool:
    with temporary_beside(path) as part:  # the file is renamed only with the right contents
        if not write(part) or sha256_file(part) != digest:
            return False
        os.replace(part, path)
    return True


STATES = ("made", "sent", "came")


class Outbox:
    """A wrapper of the shared cache, if any, that notes each entry sent and received."""

    def __init__(self, path: Path, remote: RemoteCache | None) -> None:
        self._path = path
        self._remote = remote

    def fetch(self, key: str, keep: Keep) -> Record | None:
        record = None if self._remote is None else self._remote.fetch(key, keep)
        if record is not None:
            self._note(key, "came")
        return record

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        sent = self._remote is not None and self._remote.offer(key, record, blobs)
        self._note(key, "sent" if sent else "made")
        return sent

    def _note(self, key: str, state: str) -> None:
        with self._path.open("a", encoding="ascii") as file:
            file.write(f"{key} {state}\n")


def read_outbox(path: Path) -> dict[str, str]:
    """Return the last note of each key; an empty mapping for a missing file."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return {}
    notes = (line.partition(" ") for line in lines)
    # a process that was killed leaves half a line
    return {key: state for key, _, state in notes if state in STATES and DIGEST.fullmatch(key)}
