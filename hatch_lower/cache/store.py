"""The store of results: records by key, blobs by content, in a directory of this user.

```text
<directory>/v1/records/<aa>/<key>.json    a JSON value and the digests of the blobs that the value refers to
<directory>/v1/blobs/<aa>/<sha256>        bytes
<directory>/v1/locks/<level>-<nnn>        empty; held by a build while it makes a result
```

Every file is written under a temporary name and renamed, so a reader sees a complete file or no file. Every read
checks the digest: a damaged record or blob is a miss, is removed, and is reported. A record's modification time is
the time of its last use. A blob lives as long as a record refers to the blob (`cache/contents.py`).

`suspected` notes cached results while they run: if the process dies meanwhile, the store forgets these results.

A library from a broken compiler may kill the process that runs the library. So the child notes the keys of the results
in a file for the parent before running.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from hatch_lower.cache.directory import WRITING, choose_directory, mark_directory, move_file, write_file
from hatch_lower.cache.entry import DIGEST, Record, RemoteCache, check_record, fetch_record, make_record, parse_record
from hatch_lower.cache.locks import Level, hold_keys
from hatch_lower.cache.stats import StatCache
from hatch_lower.canonical import canonical_json, read_file, sha256_bytes, sha256_file
from hatch_lower.errors import CacheError, SampleError, VerificationError
from hatch_lower.frozen import Frozen

Result = TypeVar("Result")

MARK_INTERVAL = 3600.0  # seconds between two marks of use on a record: a build does not write to each record it reads

LARGE = 16 << 20  # bytes; the digest of a blob of this size is remembered, so that look-ups need not read the blob

ASKING = ("on", "frozen")  # the modes in which the shared cache is asked for entries that this machine lacks

PATIENCE = 3600.0  # seconds after which a build no longer waits for another


def open_store(environment: Mapping[str, str], warn: Callable[[str], None], remote: RemoteCache | None = None) -> Store:
    """Return the store that the environment asks for."""
    # a directory that other users can write to is not used, for native code is loaded from the cache
    directory, mode = choose_directory(environment, warn)
    return Store(directory, mode, warn, remote)


class Store(Frozen):
    directory: Path  # made at the first write
    mode: str  # `off`: not read, not written; `refresh`: only written; `frozen`: only read, and a miss is an error
    # called for each damaged entry, and once for a directory that cannot be read or written
    warn: Callable[[str], None]
    # asked for missing entries (in the modes `ASKING`), and offered new entries
    remote: RemoteCache | None = None
    # the operations that have failed: after a failure the directory is not written again, with a single warning
    failed: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def reads(self) -> bool:
        return self.mode in ("on", "read-only", "frozen")

    @property
    def writes(self) -> bool:
        return self.mode in WRITING and not self.failed

    def blob_path(self, digest: str) -> Path:
        # an entry from another machine must not name other files
        if not DIGEST.fullmatch(digest):
            raise CacheError("an entry of the cache names a blob by a text that is no digest", found=f"`{digest}`")
        return self.directory / "blobs" / digest[:2] / digest

    def record_path(self, key: str) -> Path:
        return self.directory / "records" / key[:2] / f"{key}.json"

    # reading

    def get(self, key: str, subject: str) -> Any:
        """Return the value as `find` does; in mode `frozen` a miss is a `CacheError` about `subject`."""
        value = self.find(key)
        if value is None and self.mode == "frozen":
            raise CacheError(
                "the cache is frozen and lacks a result that this build needs",
                where=subject,
                found=f"no entry {key[:16]}… in {self.directory}",
                hint="build once with `HATCH_LOWER_CACHE=on`, or let `hatch-lower explain` name the change",
            )
        return value

    def find(self, key: str, *, shared: bool = True) -> Any:
        """Return the value under a key, with complete blobs, or `None`; with `shared`, ask the shared cache, too."""
        if not self.reads:
            return None
        record = self._read(key)
        if record is None and shared:
            record = self._fetch(key)
            if record is not None:
                self._try_writing(lambda: self._write_record(key, record))
        return None if record is None else record["value"]

    def fetch(self, key: str) -> Any:
        """Return the shared cache's value under a key and copy the value's blobs to this machine; `None` for a miss."""
        record = self._fetch(key)
        return None if record is None else record["value"]

    def find_record(self, key: str) -> Record | None:
        """Return the complete entry of a key from this machine."""
        return self._read(key) if self.reads else None

    def has(self, key: str) -> bool:
        """Return whether `find` would find a value, as far as known without fetching blobs from the shared cache."""
        return self.reads and (self._read(key) is not None or (self.mode in ASKING and self.is_shared(key)))

    def is_stored(self, key: str) -> bool:
        """Return whether this directory has a record, in any mode; the record's blobs are not checked."""
        return self._try_reading(self.record_path(key).stat) is not None

    def is_shared(self, key: str) -> bool:
        """Return whether the shared cache has a record, in any mode; the record's blobs are not requested."""
        if self.remote is None or self.failed:
            return False
        return check_record(key, self.remote.fetch(key, lambda digest, write: True)) is not None

    def read_blob(self, digest: str) -> bytes | None:
        data = self._try_reading(lambda: read_file(self.blob_path(digest)))
        return data if data is not None and sha256_bytes(data) == digest else None

    def holds(self, digest: str) -> bool:
        """Return whether a blob exists and matches its digest; remove a damaged blob."""
        return self._is_whole(digest) is True

    def note_whole(self, digest: str, before: os.stat_result, began_ns: int) -> None:
        """Note that a blob, read completely from `began_ns` on, is whole: the next look-up need not read the blob."""
        if self.writes and before.st_size >= LARGE:
            stats = self._stats()
            self._try_reading(lambda: stats.note(self.blob_path(digest), digest, before, began_ns))
            stats.save()

    def _stats(self) -> StatCache:
        # a blob of a gigabyte is not hashed at each look-up
        return StatCache(self.directory / "verified.json")

    def _read(self, key: str) -> Record | None:
        path = self.record_path(key)
        data = self._try_reading(lambda: read_file(path))
        if data is None:
            return None
        record = check_record(key, parse_record(data))
        whole = [] if record is None else [self._is_whole(blob) for blob in record["blobs"]]
        if record is None or False in whole:
            self._discard(path)
            self.warn(f"the cache entry {path} was damaged; it is built again")
            return None
        return record if None not in whole and self._mark(path) else None

    def _is_whole(self, digest: str) -> bool | None:
        """Return whether a blob is whole; `None` for a missing or unreadable blob."""
        path = self.blob_path(digest)
        whole = self._try_reading(lambda: self._digest(path) == digest)
        if whole is False:
            self._discard(path)
        return whole

    def _digest(self, path: Path) -> str:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            return ""
        if status.st_size < LARGE:
            return sha256_file(path)
        stats = self._stats()
        digest = stats.digest(path)
        if self.writes:
            stats.save()
        return digest

    def _mark(self, path: Path) -> bool:
        """Note that a file is used now; return whether the file exists."""
        if not self.writes:
            return True
        try:
            if time.time() - path.stat().st_mtime > MARK_INTERVAL:
                os.utime(path)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)  # a trim has just removed it
        return True

    def _discard(self, path: Path) -> None:
        if self.writes:
            with contextlib.suppress(OSError):
                path.unlink()

    def _fetch(self, key: str) -> Record | None:
        if self.remote is None or self.failed or self.mode not in ASKING:
            return None
        remote = self.remote
        return self._try_writing(lambda: fetch_record(remote, key, self.holds, self.blob_path))

    # writing

    def put(
        self,
        key: str,
        components: Mapping[str, object],
        value: object,
        blobs: Iterable[bytes | str] = (),
        *,
        shared: bool = True,
    ) -> None:
        """Store a JSON value under a key, with the blobs that the value refers to: bytes, or digests of stored blobs.

        The blobs live as long as the record. `components` are the readable parts of the key: `hatch-lower cache info`
        shows some of the components.
        """
        if not self.writes:
            return
        digests = [blob if isinstance(blob, str) else self.put_blob(blob) for blob in blobs]
        # the directory failed, or a trim was faster: a record without its blobs would be damaged
        if any(self._try_reading(self.blob_path(digest).stat) is None for digest in digests):
            return
        record = make_record(key, components, value, digests)
        self._try_writing(lambda: self._write_record(key, record))
        if shared:
            self._offer(key, record)

    def share(self, key: str) -> None:
        """Offer the shared cache an entry of this machine that the shared cache lacks."""
        if self.remote is None or not self.writes or self.is_shared(key):
            return
        record = self._read(key)
        if record is not None:
            self._offer(key, record)

    def _offer(self, key: str, record: Record) -> None:
        if self.remote is not None and self.writes:
            remote = self.remote
            blobs = {digest: self.blob_path(digest) for digest in record["blobs"]}
            self._try_reading(lambda: remote.offer(key, record, blobs))

    def update(
        self, key: str, components: Mapping[str, object], change: Callable[[Any], object], *, shared: bool = False
    ) -> None:
        """Replace the value under a key by `change(old value or None)`, while no other build updates the key."""
        # `change` is called in every mode, and must not call `update`
        with self.locked([key], "record"):
            record = self._read(key) if self.reads else None
            self.put(key, components, change(None if record is None else record["value"]), shared=shared)

    @contextlib.contextmanager
    def locked(self, keys: Iterable[str], level: Level = "partition") -> Iterator[None]:
        """Hold the locks of `keys`, so that no other build on this machine makes the same results.

        Within the block, look for the results again before making them. Only locks of later levels may be taken there
        (`cache/locks.py`).
        """
        if not self.writes:
            yield
            return

        def waiting() -> None:
            self.warn("waiting for another build that is making the same result")

        with hold_keys(self.directory / "locks", level, keys, PATIENCE, waiting):
            yield

    def put_blob(self, blob: bytes) -> str:
        """Store bytes under their digest and return the digest, which a read-only store only computes."""
        digest = sha256_bytes(blob)
        path = self.blob_path(digest)
        if self.writes and not (self.holds(digest) and self._mark(path)):
            self._try_writing(lambda: write_file(path, blob))
        return digest

    def adopt(self, source: Path, digest: str) -> Path:
        """Move a finished file into the store and return the new path; the old path if the store is not written."""
        path = self.blob_path(digest)
        if not self.writes:
            return source
        self._try_writing(lambda: move_file(source, path))
        return source if self.failed else path

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._discard(self.record_path(key))

    def _write_record(self, key: str, record: Record) -> None:
        write_file(self.record_path(key), canonical_json({**record, "stored": int(time.time())}))

    def mark(self) -> None:
        """Write the files that keep the cache out of backups and out of git."""
        if self.writes:
            self._try_writing(lambda: mark_directory(self.directory))

    # a directory that fails

    def _try_reading(self, action: Callable[[], Result]) -> Result | None:
        return self._try(action, "read", (FileNotFoundError, NotADirectoryError))

    def _try_writing(self, action: Callable[[], Result]) -> Result | None:
        return self._try(action, "written", ())

    def _try(self, action: Callable[[], Result], verb: str, passed: tuple[type[OSError], ...]) -> Result | None:
        try:
            return action()
        except passed:
            return None
        except OSError as error:
            if not self.failed:
                self.failed.append(verb)
                reason = error.strerror or str(error)
                self.warn(f"the cache {self.directory} could not be {verb}: {reason}; the build goes on without it")
            return None


NOTE = "suspects.json"


@contextmanager
def suspected(folder: Path, keys: Sequence[str]) -> Iterator[None]:
    note = folder / NOTE
    note.write_text(json.dumps(list(keys)), encoding="utf-8")
    try:
        yield
    except (VerificationError, SampleError):  # the results were compared, so the process survived
        note.unlink()
        raise
    note.unlink()


def forget_suspects(store: Store, folders: Sequence[Path]) -> None:
    for folder in folders:
        note = folder / NOTE
        if note.exists():
            store.forget(json.loads(note.read_text(encoding="utf-8")))
