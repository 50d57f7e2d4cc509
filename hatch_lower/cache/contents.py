"""What is in a store's directory, as one walk finds it; files that vanish meanwhile are left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hatch_lower.cache.entry import DIGEST, Record, check_record, parse_record
from hatch_lower.cache.files import LEFTOVER
from hatch_lower.canonical import read_file


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record's file.

    Args:
        key: the key that its name says.
        path: where it is.
        found: what the file system says about it; the modification time is when it was last used.
        record: its contents; `None` if it is damaged.
        stored: when it was written, in seconds since 1970.
    """

    key: str
    path: Path
    found: os.stat_result
    record: Record | None
    stored: float

    @property
    def blobs(self) -> tuple[str, ...]:
        """Digests of the blobs that it refers to, each once."""
        return () if self.record is None else tuple(dict.fromkeys(self.record["blobs"]))


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob's file."""

    digest: str
    path: Path
    found: os.stat_result


@dataclass(frozen=True, slots=True)
class Contents:
    """Records and blobs of a directory, and the files and folders that killed processes left.

    Args:
        records: by key.
        blobs: by digest.
        leftovers: unfinished files, some of which are being written, and folders of such files.
        unreadable: records whose blobs are not known, because they could not be read.
    """

    records: dict[str, StoredRecord]
    blobs: dict[str, StoredBlob]
    leftovers: tuple[Path, ...]
    unreadable: tuple[Path, ...]

    def size(self) -> int:
        """Return the bytes of all records and blobs."""
        records = sum(each.found.st_size for each in self.records.values())
        return records + sum(each.found.st_size for each in self.blobs.values())

    def users(self) -> dict[str, int]:
        """Return how many records refer to each blob that is there."""
        counts = dict.fromkeys(self.blobs, 0)
        for record in self.records.values():
            for digest in record.blobs:
                if digest in counts:
                    counts[digest] += 1
        return counts


def read_contents(directory: Path) -> Contents:
    """Return what is in a store's directory; records are read and checked, blobs are only looked at.

    Records come first, so that blobs of one that is stored meanwhile are seen at worst without it.
    """
    records: dict[str, StoredRecord] = {}
    unreadable: list[Path] = []
    for path in walk(directory / "records"):
        key = path.name.removesuffix(".json")
        if path.name.startswith(".") or key == path.name:
            continue
        try:
            records[key] = read_stored(key, path)
        except FileNotFoundError:
            continue
        except OSError:
            unreadable.append(path)
    blobs: dict[str, StoredBlob] = {}
    for path in walk(directory / "blobs"):
        if DIGEST.fullmatch(path.name):
            try:
                blobs[path.name] = StoredBlob(path.name, path, path.stat())
            except OSError:
                continue
    return Contents(records, blobs, tuple(unfinished(directory)), tuple(unreadable))


def read_stored(key: str, path: Path) -> StoredRecord:
    """Return a record's file.

    Raises:
        OSError: if it cannot be read.
    """
    found = path.stat()
    value = parse_record(read_file(path))
    stored = value.get("stored") if isinstance(value, dict) else None
    when = float(stored) if isinstance(stored, int) else found.st_mtime
    return StoredRecord(key, path, found, check_record(key, value), when)


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in an order that does not depend on the file system."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names))


def unfinished(folder: Path) -> Iterator[Path]:
    """Yield what a name marks as not finished: files, and folders, into which is not looked."""
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in sorted([*folders, *names]) if name.endswith(LEFTOVER))
        folders[:] = sorted(name for name in folders if not name.endswith(LEFTOVER))
