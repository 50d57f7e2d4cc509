"""Canonical JSON and sha256 digests: the one way in which anything here is written down or named by content."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import IO, BinaryIO

PIECE = 1 << 20
LFS_POINTER = b"version https://git-lfs"
LFS_POINTER_BYTES = 1024


def canonical_json(value: object) -> bytes:
    """Return `value` as UTF-8 JSON with sorted keys, fixed separators, a final newline, and no NaN or infinity."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # names of files and variables may hold bytes that are no UTF-8: they are escaped, and read as they were
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
    total = hashlib.sha256()
    while piece := file.read(PIECE):
        total.update(piece)
    return total.hexdigest()


def recorded_digest(sha256: str) -> str:
    """Return what the RECORD of a wheel says of a file of a sha256."""
    return f"sha256={base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip('=')}"


def is_file_of(path: Path, size: int, sha256: str) -> bool:
    """Return whether there is a file of a size and digest at a path; all of one of that size is read."""
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
    # whoever reads a pipe or a device may wait for ever
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path) -> bytes:
    # what is no regular file has no contents: in the cache it is damage, which is a miss
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return b""
