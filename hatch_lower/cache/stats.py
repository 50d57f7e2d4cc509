"""Digests remembered by the result of `stat`: a file that was not touched is not read again.

As in git's index, size and times alone are not trusted where a file could have been written again within the clock's
resolution: a file younger than two seconds when hashed is hashed again the next time. The age of a file is only known
by this machine's own clock. With times of another clock, a file counts as young until two seconds after it was first
seen. Files of an image that is mounted read-only are hashed every time.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hatch_lower.cache.directory import write_file
from hatch_lower.canonical import read_file, sha256_bytes, sha256_stream

TABLE = Path("/proc/self/mountinfo")
# file systems whose times come from the clock of this machine
OF_THIS_SYSTEM = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
VERSION = 2
LIMIT = 2000  # remembered files; the least recently used go first. Reading 2000 entries takes 2 ms.
DOUBTFUL_NS = 2_000_000_000
RECORD_MARK = "#installed"
COMMAND = re.compile(rb'"?(\.\./)+(bin|Scripts)/')
NOTE = re.compile(rb"\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_\w+\.json)\"?,")
PARTS = 5  # values of an identity; the time of first sight follows, then the digest (empty if uncertain)


class Times(Enum):
    """The clock behind the file times of a device."""

    OWN = "by the clock of this machine"
    OTHER = "by another clock: of a server, or of an unknown file system"
    FIXED = "of an image that is mounted read-only: another image may have the same times"


def times_of_devices(table: Path = TABLE) -> dict[int, Times] | None:
    """Return the kind of file times of each mounted device, by number; `None` on a system without a table of mounts."""
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        place, _, system = line.partition(" - ")
        major, _, minor = place.split()[2].partition(":")
        kind, _, options = system.split(" ", 2)
        fixed = "ro" in options.split(",")
        own = Times.OWN if kind in OF_THIS_SYSTEM else Times.OTHER
        found[os.makedev(int(major), int(minor))] = Times.FIXED if fixed else own
    return found


class FileState(NamedTuple):
    device: int
    inode: int
    mode: int
    size: int
    modified: int  # nanoseconds
    changed: int  # nanoseconds

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        return cls(found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @classmethod
    def read(cls, text: str) -> FileState:
        return cls(*(int(number, 16) for number in text.removesuffix(",").split(",")))

    def text(self) -> str:
        # the preloaded library writes the same form
        return "".join(f"{number:x}," for number in self)

    def kind(self) -> str:
        if stat.S_ISDIR(self.mode):
            return "folder"
        return f"file {self.size}" if stat.S_ISREG(self.mode) else "other"


class StatCache:
    """Digests by absolute path, in one JSON file; a damaged or missing file is an empty cache."""

    __slots__ = ("_changed", "_known", "_path", "_times")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = read_known(path)
        self._changed = False
        self._times: Mapping[int, Times] | None = None

    def digest(self, path: str | Path) -> str:
        return self._digest(os.path.abspath(path), "", sha256_stream)

    def digest_of_record(self, path: str | Path) -> str:
        """Return the sha256 of the installed contents that a RECORD lists, the same for each place and installer."""
        return self._digest(os.path.abspath(path), RECORD_MARK, digest_record_rows)

    def _digest(self, path: str, mark: str, digest_of: Callable[[BinaryIO], str]) -> str:
        name = path + mark
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise OSError(errno.EINVAL, "not a regular file", path)
        known = self._known.pop(name, None)
        same = known is not None and known[:PARTS] == identity(status)
        if known is not None and same and known[-1]:
            self._known[name] = known  # at the end: the most recently used
            return str(known[-1])
        now = time.time_ns()
        seen = int(known[PARTS]) if known is not None and same else now
        with open(path, "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            digest = digest_of(file)
            after = os.fstat(file.fileno())
        self._remember(name, digest, before, after, seen=seen, now=now)
        return digest

    def note(self, path: str | Path, digest: str, before: os.stat_result, began_ns: int) -> None:
        """Remember the sha256 of a file that the caller has read; `before` and `began_ns` were taken before reading."""
        name = os.path.abspath(path)
        after = os.stat(name)
        known = self._known.get(name)
        if known is None or known[:PARTS] != identity(after) or known[-1] != digest:
            self._remember(name, digest, before, after, seen=began_ns, now=began_ns)

    def save(self) -> None:
        if not self._changed:
            return
        # other processes may have added files meanwhile
        others = {name: row for name, row in read_known(self._path).items() if name not in self._known}
        kept = dict([*self._known.items(), *others.items()][-LIMIT:])
        with suppress(OSError):  # with a read-only folder, later builds only take longer
            write_file(self._path, json.dumps({"version": VERSION, "files": kept}, separators=(",", ":")).encode())
            self._changed = False

    def _remember(
        self, name: str, digest: str, before: os.stat_result, after: os.stat_result, *, seen: int, now: int
    ) -> None:
        times = self._times_of(after.st_dev)
        written = max(after.st_mtime_ns, after.st_ctime_ns) if times is Times.OWN else seen
        settled = written < now - DOUBTFUL_NS
        wanted = settled if times is Times.OWN else times is Times.OTHER
        if wanted and identity(before) == identity(after):
            self._known[name] = [*identity(after), seen, digest if settled else ""]
            self._changed = True

    def _times_of(self, device: int) -> Times:
        if self._times is None:
            table = times_of_devices()
            self._times = defaultdict(lambda: Times.OWN if table is None else Times.OTHER, table or {})
        return self._times[device]


def digest_record_rows(file: BinaryIO) -> str:
    return sha256_bytes(installed_rows(file.read()))


def installed_rows(record: bytes) -> bytes:
    # Two installations of the same files differ in commands, which begin with the path of their interpreter; in
    # compiled modules; and in the files that installers write about themselves
    rows = (row for row in record.splitlines() if b".pyc," not in row and not COMMAND.match(row))
    return b"\n".join(sorted(row for row in rows if b".dist-info/" not in row or not NOTE.search(row)))


def identity(found: os.stat_result) -> list[int | str]:
    # the system sets the change time, even if a program sets the modification time back
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def read_known(path: Path) -> dict[str, list[int | str]]:
    try:
        stored = json.loads(read_file(path))
        whole = stored["version"] == VERSION and all(len(row) == PARTS + 2 for row in stored["files"].values())
        return dict(stored["files"]) if whole else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
