"""Comparing JSON documents by their fields, texts by their lines, and other bytes by where they first differ."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hatch_lower.build.diff.difference import (
    LABEL,
    NOTHING,
    ORDER,
    OTHER_SOURCES,
    Difference,
    Known,
    json_text,
    reason_for_field,
    reason_for_texts,
    shortened,
)

PIECE = 1 << 20
LINES = 20
LINES_COMPARED = 5000
CONTEXT = 256
VERSIONS = re.compile(r"(?:Generator|Metadata-Version): ")
TAGS = re.compile(r"(?:Tag|Root-Is-Purelib): ")
PRINTABLE = re.compile(rb"[\x20-\x7e]{6,}")
MISSING = object()


def compare_texts(member: str, first: str, second: str, known: Known) -> list[Difference]:
    first, second = known.labelled(first), known.labelled(second, is_second=True)
    if first == second:
        return []
    sides = first.splitlines(), second.splitlines()
    left, right = (side[:LINES_COMPARED] for side in sides)
    # without the lines that name the files
    lines = list(difflib.unified_diff(left, right, lineterm="", n=1))[2:]
    removed = [line[1:] for line in lines if line.startswith("-")]
    added = [line[1:] for line in lines if line.startswith("+")]
    if not lines and len(sides[0]) == len(sides[1]) <= LINES_COMPARED:
        return [Difference(member, "", "", "", "other ends of lines: a checkout converts them, say")]
    reason = reason_for_lines(member, removed, added, known)
    shown = tuple(shortened(line) for line in lines[:LINES])
    more = (f"… and {len(lines) - LINES} more lines of the comparison",) if len(lines) > LINES else ()
    return [Difference(member, "", f"{len(sides[0])} lines", f"{len(sides[1])} lines", reason, shown + more)]


def reason_for_lines(member: str, removed: list[str], added: list[str], known: Known) -> str:
    if removed and sorted(removed) == sorted(added):
        return ORDER
    every = removed + added
    if every and all(VERSIONS.match(line) for line in every):
        return "another version of the build backend; build with the same one"
    if every and all(TAGS.match(line) or VERSIONS.match(line) for line in every):
        return "built for another platform, or by another Python"
    reason = reason_for_texts("\n".join(removed), "\n".join(added), known.places)
    return reason or ("" if "/_lowered/" in member else OTHER_SOURCES)


def compare_bytes(member: str, first: memoryview, second: memoryview, known: Known) -> Difference:
    start, ours, theirs = next(pieces(first, second))
    at = first_difference(ours, theirs)
    before = max(at - CONTEXT, 0)
    left, right = (" ".join(printable(piece[before : at + CONTEXT])) for piece in (ours, theirs))
    sizes = "" if len(first) == len(second) else f"; {len(first)} and {len(second)} bytes in all"
    shown = [piece[at : at + 16].hex(" ") or "(the end)" for piece in (ours, theirs)]
    reason = reason_for_texts(left, right, known.places) if left != right else ""
    return Difference(member, f"byte {start + at}{sizes}", shown[0], shown[1], reason)


def first_difference(first: bytes, second: bytes) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(first), len(second)))


def printable(data: bytes) -> list[str]:
    return [text.decode() for text in PRINTABLE.findall(data)]


def pieces(first: memoryview, second: memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the position and the two pieces of 1 MiB wherever two files differ, the longer one's rest included."""
    for start in range(0, max(len(first), len(second)), PIECE):
        left, right = (bytes(side[start : start + PIECE]) for side in (first, second))
        if left != right:
            yield start, left, right


@dataclass(frozen=True, slots=True)
class Field:
    """A field with two values; `MISSING` for none."""

    pointer: str  # RFC 6901
    first: object
    second: object
    reason: str = ""


def compare_documents(member: str, first: object, second: object, known: Known) -> list[Difference]:
    fields = list(compare_values("", known.plain(first), known.plain(second, is_second=True)))
    return [
        Difference(
            member,
            field.pointer,
            NOTHING if field.first is MISSING else json_text(field.first),
            NOTHING if field.second is MISSING else json_text(field.second),
            field.reason or reason_for_field(field.pointer, field.first, field.second, known.places),
        )
        for field in explained_by_order(fields)
    ]


def is_equal(first: object, second: object) -> bool:
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def compare_values(pointer: str, first: object, second: object) -> Iterator[Field]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted(first.keys() | second.keys()):
            inner = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            yield from compare_values(inner, first.get(key, MISSING), second.get(key, MISSING))
    elif isinstance(first, list) and isinstance(second, list):
        yield from compare_lists(pointer, first, second)
    elif MISSING in (first, second) or not is_equal(first, second):
        yield Field(pointer, first, second)


def compare_lists(pointer: str, first: list[object], second: list[object]) -> Iterator[Field]:
    """Yield what differs in two lists: one field if it is the order or the length."""
    fields = [
        field
        for position, (left, right) in enumerate(zip(first, second, strict=False))
        for field in compare_values(f"{pointer}/{position}", left, right)
    ]
    if len(first) != len(second):
        at = min(len(first), len(second))  # behind an item too many every other one is at another place
        left, right = (side[at] if at < len(side) else MISSING for side in (first, second))
        yield fields[0] if fields else Field(f"{pointer}/{at}", left, right)
        yield Field(f"{pointer} (number of items)", len(first), len(second))
    elif fields and is_permutation(first, second):
        if LABEL not in json.dumps(first):  # else it is sorted by the digests of members that differ
            yield Field(pointer, first, second, ORDER)
    else:
        yield from explained_by_order(fields)


def explained_by_order(fields: list[Field]) -> list[Field]:
    sides = [[field.first for field in fields], [field.second for field in fields]]
    if len(fields) < 2 or any(MISSING in side for side in sides) or not is_permutation(*sides):
        return fields
    return [replace(field, reason=field.reason or ORDER) for field in fields]


def is_permutation(first: Sequence[object], second: Sequence[object]) -> bool:
    left, right = (sorted(json.dumps(value, sort_keys=True) for value in side) for side in (first, second))
    return left == right
