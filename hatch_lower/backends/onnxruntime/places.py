"""Where the constants of a model lie: marks that the compile half leaves in it, and the run half replaces.

ONNX Runtime maps external data of a model from a file, an offset and a length. The offset is known when the constants
file is written, which is after the model was cached: so the model has a mark of as many digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

CONSTANTS = "constants.safetensors"
DIGITS = 20
FIRST = 10_000_000_000_000_000_000  # no offset that a file has
MARK = re.compile(rb"1000000000000\d{7}")


def offset_mark(number: int) -> int:
    return FIRST + number


def relocate(model: bytes, offsets: Mapping[int, int]) -> bytes:
    """Return a model in which offsets in bytes stand in the places of the marks of its constants.

    Raises:
        ValueError: if the model has other marks, or one twice.
    """
    marks = [int(mark) - FIRST for mark in MARK.findall(model)]
    if sorted(marks) != sorted(offsets):
        raise ValueError(f"marks of the constants {sorted(marks)} instead of {sorted(offsets)}")
    return MARK.sub(lambda mark: f"{offsets[int(mark[0]) - FIRST]:0{DIGITS}d}".encode(), model)
