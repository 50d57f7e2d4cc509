"""The places of a model's constants: marks that the compile half writes, and the run half replaces.

ONNX Runtime maps external data of a model from a file, an offset and a length. File and offset are known when the
constants file is written, after the model was cached: so the model has marks of as many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME_BYTES = 96  # of a file: also of the cache's blobs, over which a build verifies
FILE_MARK = "place-of-constants".ljust(NAME_BYTES, "-")
DIGITS = 20
FIRST = 10_000_000_000_000_000_000  # no offset that a file has
MARK = re.compile(re.escape(FILE_MARK.encode()) + rb"|1000000000000\d{7}")


def offset_mark(number: int) -> int:
    return FIRST + number


def fits(name: str) -> bool:
    """Return whether the name of a file can stand in the place of its mark."""
    return NAME_BYTES - len(name.encode()) >= 3


def relocate(model: bytes, places: Mapping[int, tuple[str, int]]) -> bytes:
    """Return a model with names of files and offsets in bytes in place of marks; `ValueError` if the marks differ."""
    # the two marks of a constant are neighbours
    found = list(MARK.finditer(model))
    pairs = [sorted(pair, key=lambda mark: len(mark[0])) for pair in zip(found[::2], found[1::2], strict=False)]
    marks = [int(offset[0]) - FIRST for offset, name in pairs if len(offset[0]) < len(name[0])]
    if 2 * len(marks) != len(found) or sorted(marks) != sorted(places):
        raise ValueError(f"marks of the constants {sorted(marks)} instead of {sorted(places)}")
    written: dict[int, bytes] = {}
    for number, (offset, name) in zip(marks, pairs, strict=True):
        path, begin = places[number]
        written |= {offset.start(): f"{begin:0{DIGITS}d}".encode(), name.start(): path_of(path)}
    return MARK.sub(lambda mark: written[mark.start()], model)


def path_of(name: str) -> bytes:
    written = name.encode()
    missing = NAME_BYTES - len(written)
    # a path that leads nowhere else, of as many bytes
    begin = b".//" * (missing % 2) + b"./" * ((missing - 3 * (missing % 2)) // 2)
    return begin + written
