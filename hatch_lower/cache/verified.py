"""Which large blobs were found whole, so that a file of a gigabyte is not hashed at each look-up.

A file is trusted while size, times and inode are those under which it was hashed. Its times must have been two seconds
old by then: a file that is written twice within the clock's resolution has the same times with other contents.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from hatch_lower.cache.files import write_file
from hatch_lower.digest import canonical_json, sha256_file

__all__ = ["LARGE", "Verified"]

LARGE = 16 << 20
"""Bytes from which on it is noted that a blob is whole."""

SETTLED = 2.0
"""Seconds after which another write shows in a file's times."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The notes about large blobs.

    Args:
        path: the JSON file that keeps them; a damaged one is as good as none.
        writes: whether it may be written.
    """

    path: Path
    writes: bool

    def is_whole(self, blob: Path, digest: str) -> bool:
        """Return whether a file has the contents that `digest` says.

        Raises:
            OSError: if it cannot be read.
        """
        before = stat_of(blob)
        if before[0] < LARGE:
            return sha256_file(blob) == digest
        if self._notes().get(digest) == before:
            return True
        started = time.time()
        if sha256_file(blob) != digest:
            return False
        settled = max(before[1:3]) / 1e9 < started - SETTLED
        if self.writes and settled and stat_of(blob) == before:
            self._note(digest, before)
        return True

    def _notes(self) -> dict[str, object]:
        try:
            notes = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return notes if isinstance(notes, dict) else {}

    def _note(self, digest: str, found: list[int]) -> None:
        blobs = self.path.parent / "blobs"
        kept = {each: note for each, note in self._notes().items() if (blobs / each[:2] / each).exists()}
        try:
            write_file(self.path, canonical_json({**kept, digest: found}))
        except OSError:
            return  # it is hashed again


def stat_of(path: Path) -> list[int]:
    """Return size, modification and change time in nanoseconds, and inode."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
