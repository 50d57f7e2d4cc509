"""Canonical JSON and sha256 digests: the one way in which anything here is written down or named by content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

__all__ = ["canonical_json", "digest_of", "sha256_bytes", "sha256_file"]


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


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, read in pieces."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()
