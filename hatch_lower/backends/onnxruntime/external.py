"""The files that an ONNX model names, read without `onnx`: an untrusted model may name any file of the machine.

ONNX Runtime before 1.24 opens such a file wherever it lies.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

# messages of ONNX and the numbers of the fields that lead to external data
FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {2: "value"},
}
KEY = b"location"  # of a file's name: the key has these bytes in any encoding
NUMBER = re.compile(rb"[0-9]{1,20}")
KEY_BYTES = 5  # of a key or a length; protobuf itself stops after 5 bytes
FIXED = {1: 8, 5: 4}  # bytes, by wire type


def refuse_files(model: bytes, known: Collection[bytes]) -> None:
    """Raise `ValueError` if the data of a tensor lie in another file than the known ones."""
    for value in external_values(model):
        if value not in known and not NUMBER.fullmatch(value):
            raise ValueError(
                f"data of a tensor in {value.decode('utf-8', 'replace')!r:.200}, not a file of its constants"
            )


def external_values(model: bytes) -> Iterator[bytes]:
    """Yield the values of all entries of external data: names of files, offsets and lengths."""
    waiting = [("model", 0, len(model))]
    while waiting:
        kind, place, end = waiting.pop()
        fields = FIELDS[kind]
        while place < end:
            key, place = number_at(model, place, end)
            wire = key & 7
            if wire == 2:
                length, place = number_at(model, place, end)
                after = place + length
                child = fields.get((key & 0xFFFFFFFF) >> 3)
                if child == "value":
                    yield model[place:after]
                elif child is not None and model.find(KEY, place, after) >= 0:
                    waiting.append((child, place, min(after, end)))
                place = after
            elif wire == 0:
                place = end_of_number(model, place)
            elif wire in FIXED:
                place += FIXED[wire]
            else:
                raise ValueError("a field of an obsolete kind")
        if place > end:
            raise ValueError("a field that is longer than its message")


def number_at(model: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a key or a length, and the next offset."""
    value = 0
    for shift in range(0, 7 * KEY_BYTES, 7):
        if place >= end:
            break
        byte = model[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a key or a length without an end")


def end_of_number(model: bytes, place: int) -> int:
    while place < len(model) and model[place] >= 0x80:
        place += 1
    return place + 1
