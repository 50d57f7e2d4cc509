"""Canonical JSON and sha256 digests: the one way in which anything here is written down or named by content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

PIECE = 1 << 20


def canonical_json(value: Any) -> bytes:
    """Return `value` as UTF-8 JSON with sorted keys, fixed separators and a final newline.

    Of a file's name or a variable that is no UTF-8, the bytes that are none are escaped, and are read as they were.

    Raises:
        ValueError: for NaN or infinity, which JSON cannot hold.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace") + b"\n"


def sha256_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the sha256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: Any) -> str:
    return sha256_bytes(canonical_json(value))


def sha256_file(path: Path, size: int | None = None) -> str:
    """Return the sha256 of a file's bytes, or of its first `size` bytes if there are as many; read in pieces.

    Raises:
        OSError: as `open_file` does.
    """
    total = hashlib.sha256()
    done = 0
    with open_file(path) as file:
        while piece := file.read(PIECE if size is None else min(PIECE, size - done)):
            total.update(piece)
            done += len(piece)
    return total.hexdigest()


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read it.

    Raises:
        OSError: if it cannot be opened, or is none: whoever reads a pipe or a device may wait for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path) -> bytes:
    """Return the contents of a file of the cache; what is no regular file has none.

    Raises:
        OSError: if it cannot be opened or read.
    """
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return b""
