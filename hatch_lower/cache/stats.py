"""Digests of files, remembered by what `stat` says of them, so that a file that was not touched is not read again.

As in git's index, size and times alone are not believed where a file could have been written again within the clock's
grain: a file that was younger than two seconds when it was hashed is hashed again the next time. Only by this machine's
own clock is it known how old a file is: where the times are another's, it is young until it has been seen two seconds
before. Files of an image that is mounted read-only are hashed every time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from hatch_lower.cache.mounts import Times, times_of_devices
from hatch_lower.canonical import read_file

VERSION = 2
LIMIT = 2000
"""Files that are remembered; those used longest ago go first. Reading so many takes 2 ms."""
DOUBTFUL_NS = 2_000_000_000
RECORD_MARK = "#installed"
COMMAND = re.compile(rb'"?(\.\./)+(bin|Scripts)/')
NOTE = re.compile(rb"\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_\w+\.json)\"?,")
PARTS = 5
"""Of an identity; the time at which it was first seen and the digest, if that is certain, are stored behind it."""
PIECE = 1 << 20


class StatCache:
    """Digests by absolute path, in one JSON file; a damaged or missing file is an empty cache.

    A path is believed to hold what it held if device, inode, size, modification time and change time are equal: the
    change time is set by the system, whatever a program does to the other one.

    Args:
        path: the JSON file; made by `save`.
    """

    __slots__ = ("_changed", "_known", "_path", "_times")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = read_known(path)
        self._changed = False
        self._times: Mapping[int, Times] | None = None

    def digest(self, path: str | Path) -> str:
        """Return the sha256 of a file's contents.

        Raises:
            OSError: if it cannot be read, or is not a regular file.
        """
        return self._digest(os.path.abspath(path), "", hashlib.sha256)

    def digest_of_record(self, path: str | Path) -> str:
        """Return the sha256 of what a RECORD says of the contents that were installed, wherever and by whom.

        Raises:
            OSError: if it cannot be read, or is not a regular file.
        """
        return self._digest(os.path.abspath(path), RECORD_MARK, RecordHash)

    def _digest(self, path: str, mark: str, new_hash: Callable[[], Hash]) -> str:
        name = path + mark
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for its writer
            raise OSError(errno.EINVAL, "not a regular file", path)
        known = self._known.pop(name, None)
        same = known is not None and known[:PARTS] == identity(found)
        if known is not None and same and known[-1]:
            self._known[name] = known  # at the end: used last
            return str(known[-1])
        now = time.time_ns()
        return self._read(path, name, new_hash, int(known[PARTS]) if known is not None and same else now, now)

    def save(self) -> None:
        """Write the file if there is something new, with what other processes have added to it since.

        A folder that cannot be written costs only time later.
        """
        if not self._changed:
            return
        others = {name: row for name, row in read_known(self._path).items() if name not in self._known}
        kept = dict([*self._known.items(), *others.items()][-LIMIT:])
        with suppress(OSError, UnicodeEncodeError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=self._path.parent)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(json.dumps({"version": VERSION, "files": kept}, separators=(",", ":")))
                os.replace(temporary, self._path)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
            self._changed = False

    def _read(self, path: str, name: str, new_hash: Callable[[], Hash], seen: int, now: int) -> str:
        total = new_hash()
        with open(path, "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            while piece := file.read(PIECE):
                total.update(piece)
            after = os.fstat(file.fileno())
        digest = total.hexdigest()
        times = self._times_of(after.st_dev)
        written = max(after.st_mtime_ns, after.st_ctime_ns) if times is Times.OWN else seen
        settled = written < now - DOUBTFUL_NS
        wanted = settled if times is Times.OWN else times is Times.OTHER
        if wanted and identity(before) == identity(after):
            self._known[name] = [*identity(after), seen, digest if settled else ""]
            self._changed = True
        return digest

    def _times_of(self, device: int) -> Times:
        if self._times is None:
            table = times_of_devices()
            self._times = defaultdict(lambda: Times.OWN if table is None else Times.OTHER, table or {})
        return self._times[device]


class Hash(Protocol):
    """What makes a digest of pieces."""

    def update(self, data: bytes, /) -> None:
        """Take one more piece."""

    def hexdigest(self) -> str:
        """Return the digest of all pieces."""


class RecordHash:
    """The sha256 of a RECORD's rows, but for those in which two installations of the same files differ."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def update(self, data: bytes, /) -> None:
        """Take one more piece."""
        self._pieces.append(data)

    def hexdigest(self) -> str:
        """Return the digest of all rows."""
        return hashlib.sha256(installed_rows(b"".join(self._pieces))).hexdigest()


def installed_rows(record: bytes) -> bytes:
    """Return the rows of a RECORD that say what was installed, sorted.

    Not among them are commands, which begin with the path of their interpreter and so differ in every environment;
    compiled modules; and what installers note about themselves.
    """
    rows = (row for row in record.splitlines() if b".pyc," not in row and not COMMAND.match(row))
    return b"\n".join(sorted(row for row in rows if b".dist-info/" not in row or not NOTE.search(row)))


def identity(found: os.stat_result) -> list[int | str]:
    """Return what must be equal for a file to be the same."""
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def read_known(path: Path) -> dict[str, list[int | str]]:
    """Return what a cache file holds; nothing if it cannot be read or is not one of ours."""
    try:
        stored = json.loads(read_file(path))
        whole = stored["version"] == VERSION and all(len(row) == PARTS + 2 for row in stored["files"].values())
        return dict(stored["files"]) if whole else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
