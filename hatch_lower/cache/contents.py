"""The contents of a store's directory, read in a single walk, for `hatch-lower cache` and for the limits of the
store. Files that vanish during the walk are left out. The least recently used records are removed first, with
blobs that no other record refers to. Builds may read and write meanwhile. A record that a build has marked as
used stays. Blobs that were stored within the last hour stay too, because their record may not be written yet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hatch_lower.cache.directory import LEFTOVER, remove_unused, write_file
from hatch_lower.cache.entry import DIGEST, Record, check_record, find_record_kind, parse_record
from hatch_lower.cache.store import MARK_INTERVAL, Store
from hatch_lower.canonical import read_file, sha256_file
from hatch_lower.frozen import Frozen

SUBJECTS = ("subject", "model", "backend")  # components that name the subject of an entry, the best first


@dataclass(frozen=True, slots=True)
class StoredRecord:
    key: str
    path: Path
    stat: os.stat_result  # its modification time is when the record was last used
    record: Record | None  # `None` for a damaged record
    stored: float  # seconds since 1970

    @property
    def blobs(self) -> tuple[str, ...]:
        return () if self.record is None else tuple(dict.fromkeys(self.record["blobs"]))


@dataclass(frozen=True, slots=True)
class StoredBlob:
    digest: str
    path: Path
    stat: os.stat_result


class StoreContents(Frozen):
    records: dict[str, StoredRecord]  # by key
    blobs: dict[str, StoredBlob]  # by digest
    leftovers: tuple[Path, ...]  # unfinished files, of killed processes or being written now
    unreadable: tuple[Path, ...]  # records whose blobs are unknown

    def size(self) -> int:
        records = sum(record.stat.st_size for record in self.records.values())
        return records + sum(blob.stat.st_size for blob in self.blobs.values())

    def users(self) -> dict[str, int]:
        """Return, for each stored blob, the number of records that refer to the blob."""
        counts = dict.fromkeys(self.blobs, 0)
        for record in self.records.values():
            for digest in record.blobs:
                if digest in counts:
                    counts[digest] += 1
        return counts


def read_contents(directory: Path) -> StoreContents:
    # records first: of an entry that is stored meanwhile, at worst the blobs are seen without their record
    records: dict[str, StoredRecord] = {}
    unreadable: list[Path] = []
    for path in walk_files(directory / "records"):
        key = path.name.removesuffix(".json")
        if path.name.startswith(".") or key == path.name:
            continue
        try:
            records[key] = read_stored_record(key, path)
        except FileNotFoundError:
            continue
        except OSError:
            unreadable.append(path)
    blobs: dict[str, StoredBlob] = {}
    for path in walk_files(directory / "blobs"):
        if DIGEST.fullmatch(path.name):
            with contextlib.suppress(OSError):
                blobs[path.name] = StoredBlob(path.name, path, path.stat())
    return StoreContents(records, blobs, tuple(find_unfinished(directory)), tuple(unreadable))


def read_stored_record(key: str, path: Path) -> StoredRecord:
    status = path.stat()
    value = parse_record(read_file(path))
    stored = value.get("stored") if isinstance(value, dict) else None
    when = float(stored) if isinstance(stored, int) else status.st_mtime
    return StoredRecord(key, path, status, check_record(key, value), when)


def walk_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()  # file systems list folders in any order
        yield from (Path(parent, name) for name in sorted(names))


def find_unfinished(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in sorted([*folders, *names]) if name.endswith(LEFTOVER))
        folders[:] = sorted(name for name in folders if not name.endswith(LEFTOVER))


@dataclass(frozen=True, slots=True)
class RecordDescription:
    # `partition`, `export`, `report`, `manifest`, `recipe`, `unit`, `cost`, `constants`, `native`, `sbom`, or
    # `other`
    kind: str
    key: str
    subject: str  # a model or backend; empty if the components name neither
    size: int  # record and blobs; other entries may share the blobs
    blobs: int
    stored: float
    used: float  # to the hour
    whole: bool  # not damaged, and with all blobs


class Survey(Frozen):
    entries: tuple[RecordDescription, ...]  # the last used first
    size: int  # a shared blob is counted once
    blobs: int
    unreferenced: int  # blobs that no record refers to
    leftovers: int  # unfinished files, also of running builds


def survey(directory: Path) -> Survey:
    """Return the entries of a store's directory, without reading the contents of blobs."""
    contents = read_contents(directory)
    entries = [describe_record(record, contents) for record in contents.records.values()]
    return Survey(
        tuple(sorted(entries, key=lambda entry: (-entry.used, entry.key))),
        contents.size(),
        len(contents.blobs),
        sum(not count for count in contents.users().values()),
        len(contents.leftovers),
    )


def describe_record(stored: StoredRecord, contents: StoreContents) -> RecordDescription:
    components: Mapping[str, object] = {} if stored.record is None else stored.record["components"]
    blobs = [contents.blobs[digest] for digest in stored.blobs if digest in contents.blobs]
    return RecordDescription(
        kind=find_record_kind(components),
        key=stored.key,
        subject=next((str(components[name]) for name in SUBJECTS if components.get(name)), ""),
        size=stored.stat.st_size + sum(blob.stat.st_size for blob in blobs),
        blobs=len(stored.blobs),
        stored=stored.stored,
        used=stored.stat.st_mtime,
        whole=stored.record is not None and len(blobs) == len(stored.blobs),
    )


def repair_store(directory: Path) -> dict[str, str]:
    """Hash every record, blob and preloaded library again; remove damaged files; return their paths with reasons."""
    contents = read_contents(directory)
    # a record goes with its damaged blob; a blob that no record refers to is no damage
    wrong = {digest: problem for digest, blob in contents.blobs.items() if (problem := find_damage(blob.path, digest))}
    problems = {contents.blobs[digest].path: problem for digest, problem in wrong.items()}
    problems |= dict.fromkeys(contents.unreadable, "the record cannot be read")
    for library in sorted((directory / "preload").glob("*.so")):
        if problem := find_damage(library, library.stem.rpartition("-")[2]):
            problems[library] = problem
    for stored in contents.records.values():
        if stored.record is None:
            problems[stored.path] = "the contents are not the record of this key"
        elif missing := [digest for digest in stored.blobs if digest in wrong or digest not in contents.blobs]:
            problems[stored.path] = f"{len(missing)} of its {len(stored.blobs)} blobs are damaged or missing"
    for path in problems:
        with contextlib.suppress(OSError):
            path.unlink()
    return {path.relative_to(directory).as_posix(): problems[path] for path in sorted(problems)}


def find_damage(path: Path, digest: str) -> str | None:
    try:
        return None if sha256_file(path) == digest else "the contents do not match the name"
    except FileNotFoundError:  # a trim has just removed it
        return None
    except OSError as error:
        return error.strerror or str(error)


HOUR = 3600.0
DAY = 24 * HOUR

KEPT = HOUR + MARK_INTERVAL  # a record without a mark for so many seconds was not used within the last hour


class StoreLimits(Frozen):
    size: int  # bytes
    age: float  # seconds since the last use


class Trimmed(Frozen):
    records: int
    blobs: int
    leftovers: int  # unfinished files and folders of killed processes
    freed: int  # bytes
    kept: int  # bytes


def limits_of(directory: Path) -> StoreLimits:
    """Return the limits of a cache: a tenth of the disk that it is on, at least 10 GB, and 60 days."""
    size = 10**10
    with contextlib.suppress(OSError):
        size = max(size, shutil.disk_usage(directory).total // 10)
    return StoreLimits(size, 60 * DAY)


def maybe_trim(store: Store, limits: StoreLimits, now: float | None = None) -> Trimmed | None:
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
    return trim_store(store.directory, limits, moment)


def trim_store(directory: Path, limits: StoreLimits, now: float) -> Trimmed:
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


def choose_records(contents: StoreContents, limits: StoreLimits, now: float) -> list[StoredRecord]:
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
            size -= record.stat.st_size + release_blobs(record, users, contents)
    return chosen


def unreferenced(contents: StoreContents, now: float) -> list[StoredBlob]:
    if contents.unreadable:  # the blobs of unreadable records are unknown
        return []
    users = contents.users()
    return [blob for digest, blob in contents.blobs.items() if not users[digest] and is_old(blob.stat, now)]


def release_blobs(record: StoredRecord, users: dict[str, int], contents: StoreContents) -> int:
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


def remove_history(folder: Path, limits: StoreLimits, now: float) -> None:
    for path in walk_files(folder):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > max(limits.age, KEPT):
                path.unlink()


def remove_empty_folders(directory: Path) -> None:
    for kind in ("records", "blobs"):
        for folder in sorted(path for path in (directory / kind).glob("*") if path.is_dir()):
            with contextlib.suppress(OSError):  # not empty, or removed meanwhile
                folder.rmdir()


def clear_store(directory: Path) -> None:
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.name == "locks":  # two builds must not hold the same lock in two files
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
