"""Which large blobs were found whole, so that a file of a gigabyte is not hashed at each look-up.

A file is trusted while size, times and inode are those under which it was hashed. Its times must have been two seconds
old by then: a file that is written twice within the clock's resolution has the same times with other contents.
"""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

from hatch_lower.cache.files import write_file
from hatch_lower.canonical import canonical_json, read_file, sha256_file
from hatch_lower.frozen import Frozen

LARGE = 16 << 20
"""Bytes from which on it is noted that a blob is whole."""

SETTLED = 2.0
"""Seconds after which another write shows in a file's times."""


class Verified(Frozen):
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
        before = blob.stat()
        if not stat.S_ISREG(before.st_mode):
            return False
        if before.st_size < LARGE:
            return sha256_file(blob) == digest
        if self._notes().get(digest) == identity(before):
            return True
        started = time.time()
        if sha256_file(blob) != digest:
            return False
        self.note_whole(blob, digest, before, started)
        return True

    def note_whole(self, blob: Path, digest: str, before: os.stat_result, started: float) -> None:
        """Note that all of a file was read and has the contents that `digest` says.

        Args:
            blob: the file.
            digest: the sha256 of what was read.
            before: what `stat` said of it before that.
            started: when that began, by `time.time`.

        Raises:
            OSError: if the file is gone.
        """
        found = identity(before)
        settled = max(before.st_mtime, before.st_ctime) < started - SETTLED
        wanted = self.writes and settled and before.st_size >= LARGE
        if wanted and identity(blob.stat()) == found and self._notes().get(digest) != found:
            self._note(digest, found)

    def _notes(self) -> dict[str, object]:
        try:
            notes = json.loads(read_file(self.path))
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


def identity(found: os.stat_result) -> list[int]:
    """Return size, modification and change time in nanoseconds, and inode."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
