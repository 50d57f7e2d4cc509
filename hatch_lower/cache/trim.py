"""Limits of the store: the least recently used records are removed first, with blobs that no other record refers to.

Builds may read and write meanwhile. A record that a build has marked as used stays. Blobs that were stored within the
last hour stay too, because their record may not be written yet. A build makes a lost entry again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from hatch_lower.cache.contents import Contents, StoredBlob, StoredRecord, read_contents, walk
from hatch_lower.cache.files import remove_unused, write_file
from hatch_lower.cache.store import MARK_INTERVAL, Store
from hatch_lower.frozen import Frozen

HOUR = 3600.0
DAY = 24 * HOUR

KEPT = HOUR + MARK_INTERVAL  # a record without a mark for so many seconds was not used within the last hour


class Limits(Frozen):
    size: int  # bytes
    age: float  # seconds since the last use


class Trimmed(Frozen):
    records: int
    blobs: int
    leftovers: int  # unfinished files and folders of killed processes
    freed: int  # bytes
    kept: int  # bytes


def limits_of(directory: Path) -> Limits:
    """Return the limits of a cache: a tenth of the disk that it is on, at least 10 GB, and 60 days."""
    size = 10**10
    with contextlib.suppress(OSError):
        size = max(size, shutil.disk_usage(directory).total // 10)
    return Limits(size, 60 * DAY)


def maybe_trim(store: Store, limits: Limits, now: float | None = None) -> Trimmed | None:
    """Trim a writable store, unless it was trimmed within the last day; return the numbers of removed files."""
    moment = time.time() if now is None else now
    mark = store.directory / "trimmed"
    if not store.writes or not store.directory.is_dir():
        return None
    with contextlib.suppress(OSError):
        if abs(moment - mark.stat().st_mtime) < DAY:
            return None
    try:
        write_file(mark, b"")  # first, so that other builds at the same time do not trim, too
        os.utime(mark, (moment, moment))
    except OSError:
        return None
    return trim(store.directory, limits, moment)


def trim(directory: Path, limits: Limits, now: float) -> Trimmed:
    """Remove damaged, unfinished and old files, then files above the size limit; keep files of the last hour."""
    contents = read_contents(directory)
    removed = [record for record in choose_records(contents, limits, now) if remove_unused(record.path, record.stat)]
    for record in removed:
        del contents.records[record.key]
    lost = [blob for blob in unreferenced(contents, now) if remove_unused(blob.path, blob.stat)]
    for blob in lost:
        del contents.blobs[blob.digest]
    leftovers = [path for path in contents.leftovers if remove_leftover(path, now)]
    remove_history(directory / "history", limits, now)
    remove_empty_folders(directory)
    freed = sum(record.stat.st_size for record in removed) + sum(blob.stat.st_size for blob in lost)
    return Trimmed(len(removed), len(lost), len(leftovers), freed, contents.size())


def choose_records(contents: Contents, limits: Limits, now: float) -> list[StoredRecord]:
    """Return the records to remove: incomplete and old records, then the least recently used until the rest fits."""
    users = contents.users()
    size = contents.size() - sum(blob.stat.st_size for blob in unreferenced(contents, now))
    chosen = []
    for record in sorted(contents.records.values(), key=lambda record: (record.stat.st_mtime_ns, record.key)):
        unused = now - record.stat.st_mtime
        incomplete = any(digest not in contents.blobs for digest in record.blobs)
        spare = unused > KEPT and (incomplete or unused > limits.age or size > limits.size)
        if spare or record.record is None:
            chosen.append(record)
            size -= record.stat.st_size + release(record, users, contents)
    return chosen


def unreferenced(contents: Contents, now: float) -> list[StoredBlob]:
    if contents.unreadable:  # the blobs of unreadable records are unknown
        return []
    users = contents.users()
    return [blob for digest, blob in contents.blobs.items() if not users[digest] and is_old(blob.stat, now)]


def release(record: StoredRecord, users: dict[str, int], contents: Contents) -> int:
    """Take `record` out of the counts in `users`; return the size of the blobs that no other record refers to."""
    alone = 0
    for digest in record.blobs:
        if digest in users:
            users[digest] -= 1
            alone += 0 if users[digest] else contents.blobs[digest].stat.st_size
    return alone


def is_old(found: os.stat_result, now: float) -> bool:
    return now - found.st_mtime > HOUR  # a younger file may belong to a running build


def remove_leftover(path: Path, now: float) -> bool:
    try:
        if not is_old(path.stat(), now):
            return False
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError:
        return False
    return True


def remove_history(folder: Path, limits: Limits, now: float) -> None:
    for path in walk(folder):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > max(limits.age, KEPT):
                path.unlink()


def remove_empty_folders(directory: Path) -> None:
    for kind in ("records", "blobs"):
        for folder in sorted(path for path in (directory / kind).glob("*") if path.is_dir()):
            with contextlib.suppress(OSError):  # not empty, or removed meanwhile
                folder.rmdir()


def clear(directory: Path) -> None:
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.name == "locks":  # two builds must not hold the same lock in two files
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
