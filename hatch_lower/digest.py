"""Canonical JSON and sha256 digests: the one way in which anything here is written down or named by content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

__all__ = ["canonical_json", "digest_of", "sha256_bytes", "sha256_file"]

PIECE = 1 << 20


def canonical_json(value: Any) -> bytes:
    """Return `value` as UTF-8 JSON with sorted keys, fixed separators and a final newline.

    Raises:
        ValueError: for NaN or infinity, which JSON cannot hold.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def sha256_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the sha256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: Any) -> str:
    """Return the sha256 of the canonical JSON of `value`."""
    return sha256_bytes(canonical_json(value))


def sha256_file(path: Path, size: int | None = None) -> str:
    """Return the sha256 of a file's bytes, or of its first `size` bytes if there are as many; read in pieces."""
    total = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE if size is None else min(PIECE, size - done)):
            total.update(piece)
            done += len(piece)
    return total.hexdigest()
