"""Canonical JSON and sha256 digests, the form in which hatch-lower writes documents and names contents."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, BinaryIO

PIECE = 1 << 20
LFS_POINTER = b"version https://git-lfs"
LFS_POINTER_BYTES = 1024


def canonical_json(value: object) -> bytes:
    """Return `value` as UTF-8 JSON with sorted keys, fixed separators, a final newline, and no NaN or infinity."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # names of files and variables may hold bytes that are not UTF-8: escaping keeps the bytes for readers
    return text.encode(errors="backslashreplace") + b"\n"


def sha256_bytes(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    return sha256_bytes(canonical_json(value))


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open_file(path) as file:
        return sha256_stream(file)


def sha256_stream(file: IO[bytes]) -> str:
    return sha256_pieces(iter(lambda: file.read(PIECE), b""))


def sha256_pieces(pieces: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


def recorded_digest(sha256: str) -> str:
    """Return a sha256 in the form of a wheel's RECORD: `sha256=`, then base64 without padding."""
    return f"sha256={base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip('=')}"


def is_file_of(path: Path, size: int, sha256: str) -> bool:
    """Return whether a path is a file of a size and digest; a file of that size is read completely."""
    try:
        return path.stat().st_size == size and sha256_file(path) == sha256
    except OSError:
        return False


def is_lfs_pointer(path: Path) -> bool:
    """Return whether git has written down at a path where Git LFS has a file, and not the file."""
    try:
        is_small = path.is_file() and path.stat().st_size <= LFS_POINTER_BYTES
        return is_small and path.read_bytes().startswith(LFS_POINTER)
    except (OSError, ValueError):
        return False


def open_file(path: Path) -> BinaryIO:
    # reading a pipe or a device could wait for ever
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path) -> bytes:
    # a path that is not a regular file has no contents: in the cache this is damage, and so a miss
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return b""
