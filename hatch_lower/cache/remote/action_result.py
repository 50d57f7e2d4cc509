"""A `build.bazel.remote.execution.v2.ActionResult`, which is what servers of the Bazel protocol keep under `/ac/`.

Such a server parses what it is given, and some look whether each blob that it names is there. Of the message these
fields are written: `output_files` (2), `exit_code` (4, left out as it is 0) and `execution_metadata` (9). All others
are skipped by the reader: bazel-remote, for one, adds some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hatch_lower.cache import entry

WORKER = b"hatch-lower"
"""Stands where bazel-remote would write the client's address otherwise."""
OUTPUT_FILES, EXECUTION_METADATA = 2, 9
PATH, DIGEST = 1, 2
HASH, SIZE_BYTES = 1, 2
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
MOST_FILES = 100_000


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A blob that an action made.

    Args:
        path: relative, never empty.
        sha256: of its contents, in hexadecimal.
        size: in bytes.
    """

    path: str
    sha256: str
    size: int


def encode_action_result(files: Sequence[OutputFile]) -> bytes:
    """Return the message that names these files."""
    message = bytearray()
    for file in files:
        digest = field(HASH, file.sha256.encode()) + (tag(SIZE_BYTES, VARINT) + varint(file.size) if file.size else b"")
        message += field(OUTPUT_FILES, field(PATH, file.path.encode()) + field(DIGEST, digest))
    return bytes(message + field(EXECUTION_METADATA, field(1, WORKER)))


def decode_action_result(message: bytes) -> tuple[OutputFile, ...]:
    """Return the files that a message names.

    Raises:
        ValueError: if it is no such message.
    """
    files = tuple(decode_file(value) for number, value in fields_of(message) if number == OUTPUT_FILES)
    if len(files) > MOST_FILES:
        raise ValueError(f"an action result names {len(files)} files")
    return files


def decode_file(value: bytes | int) -> OutputFile:
    """Return an `OutputFile` message; of a field that is repeated the last counts, as in protobuf."""
    parts = dict(fields_of(as_bytes(value)))
    digest = dict(fields_of(as_bytes(parts.get(DIGEST, b""))))
    path, sha256 = as_bytes(parts.get(PATH, b"")).decode(), as_bytes(digest.get(HASH, b"")).decode()
    size = digest.get(SIZE_BYTES, 0)
    if not path or not entry.DIGEST.fullmatch(sha256) or not isinstance(size, int) or size >= 1 << 63:
        raise ValueError("an action result names a file without a path, a sha256 or a size")
    return OutputFile(path, sha256, size)


def fields_of(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and the value of each field, fixed-width ones as bytes."""
    at = 0
    while at < len(message):
        head, at = read_varint(message, at)
        number, wire = head >> 3, head & 7
        if wire == VARINT:
            value, at = read_varint(message, at)
            yield number, value
            continue
        if wire == LENGTH_DELIMITED:
            length, at = read_varint(message, at)
        elif wire in (FIXED64, FIXED32):
            length = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"a protobuf field has the wire type {wire}")
        if number == 0 or length > len(message) - at:
            raise ValueError("a protobuf field is longer than its message, or has no number")
        yield number, message[at : at + length]
        at += length


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a varint of at most 64 bits and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a protobuf message ends in the middle of a number")
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            if value >= 1 << 64:
                break
            return value, at
    raise ValueError("a protobuf number has more than 64 bits")


def as_bytes(value: bytes | int) -> bytes:
    """Return a length-delimited field's value."""
    if isinstance(value, int):
        raise ValueError("a protobuf field holds a number where bytes are expected")
    return value


def field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field."""
    return tag(number, LENGTH_DELIMITED) + varint(len(value)) + value


def tag(number: int, wire: int) -> bytes:
    """Return what stands before a field's value."""
    return varint(number << 3 | wire)


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits, lowest first."""
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
