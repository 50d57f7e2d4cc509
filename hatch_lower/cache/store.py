"""Where results are kept: records by key, blobs by content, in one directory of this user.

```text
<directory>/v1/records/<aa>/<key>.json    a JSON value and the digests of the blobs that it refers to
<directory>/v1/blobs/<aa>/<sha256>        bytes
```

Every file is written under a temporary name and renamed, so a reader sees all of it or nothing. What is read is checked
against its digest: a damaged record or blob is a miss, is removed, and is reported.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatch_lower.digest import canonical_json, digest_of, sha256_bytes, sha256_file
from hatch_lower.errors import CacheError

__all__ = ["Mode", "Store", "default_directory", "open_store"]

MODES = ("on", "off", "read-only", "refresh", "frozen")
Mode = str


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return `HATCH_LOWER_CACHE_DIR`, or the platform's cache directory for this user."""
    named = environment.get("HATCH_LOWER_CACHE_DIR")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("hatch-lower", appauthor=False))


def open_store(environment: Mapping[str, str], warn: Callable[[str], None]) -> Store:
    """Return the store that `HATCH_LOWER_CACHE` and `HATCH_LOWER_CACHE_DIR` ask for.

    Raises:
        CacheError: if `HATCH_LOWER_CACHE` is none of `on`, `off`, `read-only`, `refresh`, `frozen`.
    """
    mode = environment.get("HATCH_LOWER_CACHE", "on")
    if mode not in MODES:
        raise CacheError(
            "the cache has no such mode",
            where="environment variable `HATCH_LOWER_CACHE`",
            found=f"`{mode}`",
            hint="use one of " + ", ".join(f"`{each}`" for each in MODES),
        )
    return Store(default_directory(environment) / "v1", mode, warn)


@dataclass(frozen=True, slots=True)
class Store:
    """A directory of records and blobs.

    Args:
        directory: where they are; made when something is first written.
        mode: `on`; `off`: neither read nor written; `read-only`; `refresh`: written and not read; `frozen`: read, and
            a miss is an error.
        warn: called with one line about a damaged entry, or a directory that cannot be written.
    """

    directory: Path
    mode: Mode
    warn: Callable[[str], None]

    @property
    def reads(self) -> bool:
        """Whether entries are looked up."""
        return self.mode in ("on", "read-only", "frozen")

    @property
    def writes(self) -> bool:
        """Whether results are stored."""
        return self.mode in ("on", "refresh")

    def blob_path(self, digest: str) -> Path:
        """Return where the blob of a digest is or would be."""
        return self.directory / "blobs" / digest[:2] / digest

    def record_path(self, key: str) -> Path:
        """Return where the record of a key is or would be."""
        return self.directory / "records" / key[:2] / f"{key}.json"

    def get(self, key: str, subject: str) -> dict[str, Any] | None:
        """Return the value stored under a key, or `None`; every blob that it refers to is whole.

        Args:
            key: sha256 in hexadecimal.
            subject: what is looked for, for the message of a miss that is forbidden.

        Raises:
            CacheError: in mode `frozen`, if there is no such value.
        """
        value = self._read(key) if self.reads else None
        if value is None and self.mode == "frozen":
            raise CacheError(
                "the cache is frozen and does not hold what this build needs",
                where=subject,
                found=f"no entry {key[:16]}… in {self.directory}",
                hint="build once with `HATCH_LOWER_CACHE=on`, or find out what changed since the last build",
            )
        return value

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the value stored under a key, or `None` in every mode: for what can be made again at no great cost."""
        return self._read(key) if self.reads else None

    def _read(self, key: str) -> dict[str, Any] | None:
        path = self.record_path(key)
        try:
            record = json.loads(path.read_bytes())
            value, blobs = record["value"], record["blobs"]
            whole = record["digest"] == digest_of([key, value, blobs]) and all(self.holds(blob) for blob in blobs)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            self.warn(f"the cache entry {path} was damaged; it is built again")
            if self.writes:
                with contextlib.suppress(OSError):
                    path.unlink()
            return None
        return value  # type: ignore[no-any-return]

    def holds(self, digest: str) -> bool:
        """Return whether a blob is there and has the contents that its name says; a damaged one is removed."""
        path = self.blob_path(digest)
        try:
            if sha256_file(path) == digest:
                return True
        except OSError:
            return False
        if self.writes:
            with contextlib.suppress(OSError):
                path.unlink()
        return False

    def put(self, key: str, components: Mapping[str, Any], value: Any, blobs: Iterable[bytes] = ()) -> None:
        """Store a value under a key, with the blobs whose digests it holds.

        A directory that cannot be written is reported and otherwise ignored: a build does not need its cache.
        """
        if not self.writes:
            return
        try:
            digests = [self.put_blob(blob) for blob in blobs]
            digest = digest_of([key, value, digests])
            record = {"value": value, "blobs": digests, "components": dict(components), "digest": digest}
            self._write(self.record_path(key), canonical_json(record))
        except OSError as error:
            self.warn(f"the cache {self.directory} could not be written: {error.strerror or error}")

    def put_blob(self, blob: bytes) -> str:
        """Store bytes under their digest and return it."""
        digest = sha256_bytes(blob)
        path = self.blob_path(digest)
        if not path.exists():
            self._write(path, blob)
        return digest

    def adopt(self, source: Path, digest: str) -> Path:
        """Move a finished file into the store as a blob and return where it is now.

        The file stays where it is if the store is not written.
        """
        if not self.writes:
            return source
        path = self.blob_path(digest)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if source.stat().st_dev == path.parent.stat().st_dev:
                os.replace(source, path)
            else:
                with temporary_beside(path) as temporary:
                    shutil.copyfile(source, temporary)
                    os.replace(temporary, path)
        except OSError as error:
            self.warn(f"the cache {self.directory} could not be written: {error.strerror or error}")
            return source
        return path

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with temporary_beside(path) as temporary:
            temporary.write_bytes(data)
            os.replace(temporary, path)


@contextlib.contextmanager
def temporary_beside(path: Path) -> Any:
    """Give a new file's path in the directory of `path`; it is gone at the end unless it was renamed."""
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
