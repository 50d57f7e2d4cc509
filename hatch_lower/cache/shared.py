"""What a store asks of a cache that several machines share, and how it takes an entry from there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from hatch_lower.cache.entry import Record, check_record
from hatch_lower.cache.files import temporary_beside
from hatch_lower.canonical import sha256_file

Keep = Callable[[str, Callable[[Path], bool]], bool]
"""`keep(digest, write)`: have a blob in the local store. If it is not there, `write(path)` is called to write its bytes
into an empty file and to return whether that went well; the contents are checked. Returns whether the blob is there."""


class RemoteCache(Protocol):
    """A cache that several machines share; a store asks it for what it lacks and offers it what it gets.

    Both methods report their own troubles and raise nothing but `OSError` about local files.
    """

    def fetch(self, key: str, keep: Keep) -> Record | None:
        """Return the record of a key, or `None`; call `keep` for each of its blobs, and trust nothing unsigned."""

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> None:
        """Take a record, and where its blobs are on this machine, by digest."""


def fetch_record(
    remote: RemoteCache, key: str, holds: Callable[[str], bool], blob_path: Callable[[str], Path]
) -> Record | None:
    """Return a shared cache's record of a key once all its blobs are in the local store.

    Args:
        remote: the shared cache.
        key: sha256 in hexadecimal.
        holds: whether the local store has a blob, whole.
        blob_path: where the local store has a blob, or would.

    Raises:
        OSError: if a blob cannot be written.
    """
    kept = set()

    def keep(digest: str, write: Callable[[Path], bool]) -> bool:
        if digest not in kept and (holds(digest) or receive(blob_path(digest), digest, write)):
            kept.add(digest)
        return digest in kept

    record = check_record(key, remote.fetch(key, keep))
    return record if record is not None and all(blob in kept or holds(blob) for blob in record["blobs"]) else None


def receive(path: Path, digest: str, write: Callable[[Path], bool]) -> bool:
    """Have a blob written under a temporary name and rename it; return whether it came, with the right contents."""
    with temporary_beside(path) as part:
        if not write(part) or sha256_file(part) != digest:
            return False
        os.replace(part, path)
    return True
