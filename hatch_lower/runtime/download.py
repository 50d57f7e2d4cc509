"""Downloads of files with known digests: complete or not at all, by one process at a time, resumable.

An unfinished download is `<name>.part`, locked by the downloading process; no other files are left behind. If a
transfer breaks off, the part stays and the next transfer resumes. Neither the part nor the server is trusted: the
complete file is compared with the digest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from hatch_lower.canonical import PIECE, is_file_of
from hatch_lower.errors import FetchError, size_text
from hatch_lower.format.weights import WeightsSource
from hatch_lower.runtime.origins import BrokenError, DownloadLimits, DownloadOrigin, RefusedDownloadError

if sys.platform != "win32":
    import fcntl

PART = ".part"
FULL = ("ENOSPC", "EDQUOT", "EFBIG")
FLAGS = os.O_RDWR | os.O_CREAT | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW"))
UNLOCKED = ("ENOLCK", "ENOTSUP", "ENOSYS")

Show = Callable[[int], None]  # takes the number of bytes received so far


class PartFile(NamedTuple):
    path: Path
    file: IO[bytes]


def download(source: WeightsSource, origin: DownloadOrigin, target: Path, limits: DownloadLimits, show: Show) -> bool:
    """Download a source's file to `target`; return `False` if another process has done so in the meantime."""
    # raises `RefusedDownloadError` for a wrong digest, `BrokenError` if every try breaks off
    target.parent.mkdir(parents=True, exist_ok=True)
    with held_part(target) as part:
        # the process that held the lock before may have finished the file
        if is_file_of(target, source.size, source.sha256):
            part.path.unlink()
            return False
        try:
            receive_file(source, origin, part, limits, show)
            os.fsync(part.file.fileno())
            os.replace(part.path, target)
        except BaseException as error:
            # keep the part of a broken transfer for the next try; after other errors it is wrong or fills the disk
            if not isinstance(error, BrokenError | KeyboardInterrupt):
                part.path.unlink()
            raise
    return True


def receive_file(
    source: WeightsSource, origin: DownloadOrigin, part: PartFile, limits: DownloadLimits, show: Show
) -> None:
    found = Received(part.file)
    if found.size > source.size:
        found.restart()
    is_resumed = found.size > 0
    free = shutil.disk_usage(part.path.parent).free
    if source.size - found.size > free:
        raise OSError(errno.ENOSPC, f"{size_text(source.size - found.size)} are missing, {size_text(free)} free")
    complete(found, origin, source.size, limits, show)
    if is_resumed and found.sha256() != source.sha256:  # perhaps the resumed part was wrong
        found.restart()
        complete(found, origin, source.size, limits, show)
    if found.sha256() != source.sha256:
        raise RefusedDownloadError(f"other contents: the sha256 {found.sha256()} instead of {source.sha256}")


class Received:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._total = hashlib.sha256()
        self.size = 0
        while piece := file.read(PIECE):
            self._total.update(piece)
            self.size += len(piece)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._total = hashlib.sha256()
        self.size = 0

    def append(self, piece: bytes) -> None:
        self._file.write(piece)
        self._total.update(piece)
        self.size += len(piece)

    def flush(self) -> None:
        self._file.flush()

    def sha256(self) -> str:
        return self._total.hexdigest()


def complete(found: Received, origin: DownloadOrigin, size: int | None, limits: DownloadLimits, show: Show) -> str:
    """Append the missing rest of a file, retrying while tries make progress; return the stamp of its contents."""
    # `size`: `None` for the size that the origin declares, or if it declares no size, for all of its bytes
    failures, stamp = 0, ""
    while True:
        before = found.size
        try:
            return append_rest(found, origin, stamp, size, limits, show)
        except BrokenError as error:
            failures = 0 if found.size >= before + limits.progress else failures + 1
            if failures >= limits.tries:
                raise
            stamp = error.stamp or stamp  # without an answer, the error has no stamp
            time.sleep(limits.pause * failures)
        finally:
            found.flush()


def append_rest(
    found: Received, origin: DownloadOrigin, stamp: str, size: int | None, limits: DownloadLimits, show: Show
) -> str:
    if found.size == size:
        return stamp
    if size is None and not stamp:  # without size and stamp, the rest of a different file would not be noticed
        found.restart()
    stream = origin.open(found.size, stamp)
    try:
        wanted = stream.size if size is None else size
        if stream.size not in (None, wanted):
            raise RefusedDownloadError(f"a file of {stream.size} bytes instead of {wanted}")
        if stream.begin != found.size:
            found.restart()
        for piece in steady(stream.pieces, limits):
            if wanted is not None and found.size + len(piece) > wanted:
                raise RefusedDownloadError(f"more bytes than the {wanted} of the file")
            found.append(piece)
            show(found.size)
        if wanted is not None and found.size < wanted:
            raise BrokenError(f"the transfer ended after {found.size} of {wanted} bytes")
    except BrokenError as error:
        error.stamp = stream.stamp
        raise
    finally:
        stream.close()
    return stream.stamp


def steady(pieces: Iterator[bytes], limits: DownloadLimits) -> Iterator[bytes]:
    begin, count = time.monotonic(), 0
    for piece in pieces:
        yield piece
        count += len(piece)
        passed = time.monotonic() - begin
        if passed > limits.silence:
            if count < limits.rate * passed:
                raise BrokenError(f"{count} bytes came in {passed:.0f} seconds, which is too slow")
            begin, count = time.monotonic(), 0


@contextlib.contextmanager
def held_part(target: Path) -> Iterator[PartFile]:
    """Yield the unfinished file beside `target`, locked for this process."""
    # Without locks of the system, or if the path is not a file of this user's downloads, a temporary file with a random
    # name is used instead.
    path = target.with_name(target.name + PART)
    while not is_foreign(path):
        with os.fdopen(os.open(path, FLAGS, 0o666), "r+b") as file:
            is_locked = lock(file)
            if is_locked and not is_same_file(file, path):
                continue  # the previous owner of the lock has finished or removed the file
            found = os.fstat(file.fileno())
            if is_locked and is_own_file(found):
                if found.st_nlink > 1:  # writing would change the other hard links
                    path.unlink()
                    continue
                yield PartFile(path, file)
                return
            if found.st_size == 0:
                path.unlink(missing_ok=True)
            break
    with private_part(target) as part:
        yield part


@contextlib.contextmanager
def private_part(target: Path) -> Iterator[PartFile]:
    # not `tempfile`, whose files are readable by one user only: fetched files may be for several users
    while True:
        path = target.with_name(f"{target.name}.{secrets.token_hex(8)}{PART}")
        with os.fdopen(os.open(path, FLAGS | os.O_EXCL, 0o666), "r+b") as file:
            if lock(file) and not is_same_file(file, path):  # another process removed the file as abandoned
                continue
            try:
                yield PartFile(path, file)
            finally:
                path.unlink(missing_ok=True)
            return


def lock(file: IO[bytes]) -> bool:
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if errno.errorcode.get(error.errno or 0) in UNLOCKED:
            return False
        raise
    return True


def is_foreign(path: Path) -> bool:
    """Return whether a path exists but is not a regular file of this user, for example a link or a pipe."""
    try:
        return not is_own_file(path.lstat())
    except FileNotFoundError:
        return False


def is_own_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and (sys.platform == "win32" or found.st_uid == os.geteuid())


def is_same_file(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def is_begun(target: Path) -> bool:
    try:
        return target.with_name(target.name + PART).stat().st_size > 0
    except OSError:
        return False


@contextlib.contextmanager
def errors_of(url: str, target: Path) -> Iterator[None]:
    try:
        yield
    except BrokenError as error:
        again = "try again: the download resumes"
        hint = again if is_begun(target) else "no bytes have arrived: check the connection, and try again"
        raise FetchError("a download of weights broke off", where=url, found=str(error), hint=hint) from error
    except RefusedDownloadError as error:
        raise FetchError(
            "the weights are not available there",
            where=url,
            found=str(error),
            hint=error.hint
            or "if the file has moved, name a place with the same bytes: `hatch-lower fetch … --from URL`",
        ) from error
    except OSError as error:
        is_full = errno.errorcode.get(error.errno or 0) in FULL
        raise FetchError(
            "there is no space for a file of weights" if is_full else "a file of weights cannot be stored",
            where=str(error.filename or target),
            found=error.strerror or str(error),
            hint="make room there, or name another folder in `HATCH_LOWER_WEIGHTS`",
        ) from error
