"""Where the constants of a model lie: marks that the compile half leaves in it, and the run half replaces.

ONNX Runtime maps external data of a model from a file, an offset and a length. File and offset are known when the
constants file is written, which is after the model was cached: so the model has marks of as many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME_BYTES = 96  # of a file: also of the cache's blobs, over which a build verifies
FILE_MARK = "place-of-constants".ljust(NAME_BYTES, "-")
DIGITS = 20
FIRST = 10_000_000_000_000_000_000  # no offset that a file has
OFFSET_MARK = re.compile(rb"1000000000000\d{7}")


def offset_mark(number: int) -> int:
    return FIRST + number


def fits(name: str) -> bool:
    """Return whether the name of a file can stand in the place of its mark."""
    return NAME_BYTES - len(name.encode()) >= 3


def relocate(model: bytes, name: str, offsets: Mapping[int, int]) -> bytes:
    """Return a model in which the name of a file and offsets in bytes stand in the places of their marks.

    Raises:
        ValueError: if the model has marks of other constants, or one twice.
    """
    marks = [int(mark) - FIRST for mark in OFFSET_MARK.findall(model)]
    if sorted(marks) != sorted(offsets):
        raise ValueError(f"marks of the constants {sorted(marks)} instead of {sorted(offsets)}")
    model = OFFSET_MARK.sub(lambda mark: f"{offsets[int(mark[0]) - FIRST]:0{DIGITS}d}".encode(), model)
    written = name.encode()
    missing = NAME_BYTES - len(written)
    # a path that leads nowhere else, of as many bytes
    begin = b".//" * (missing % 2) + b"./" * ((missing - 3 * (missing % 2)) // 2)
    return model.replace(FILE_MARK.encode(), begin + written)
