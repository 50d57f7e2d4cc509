"""Comparing texts by their lines, and other bytes by where they first differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from hatch_lower.build.diff.difference import Difference, Known, shortened
from hatch_lower.build.diff.reasons import ORDER, OTHER_SOURCES, reason_for_texts

PIECE = 1 << 20
LINES = 20
LINES_COMPARED = 5000
CONTEXT = 256
VERSIONS = re.compile(r"(?:Generator|Metadata-Version): ")
TAGS = re.compile(r"(?:Tag|Root-Is-Purelib): ")
PRINTABLE = re.compile(rb"[\x20-\x7e]{6,}")


def compare_texts(member: str, first: str, second: str, known: Known) -> Difference | None:
    first, second = known.labelled(first), known.labelled(second, is_second=True)
    if first == second:
        return None
    sides = first.splitlines(), second.splitlines()
    left, right = (side[:LINES_COMPARED] for side in sides)
    # without the lines that name the files
    lines = list(difflib.unified_diff(left, right, lineterm="", n=1))[2:]
    removed = [line[1:] for line in lines if line.startswith("-")]
    added = [line[1:] for line in lines if line.startswith("+")]
    if not lines and len(sides[0]) == len(sides[1]) <= LINES_COMPARED:
        return Difference(member, "", "", "", "other ends of lines: a checkout converts them, say")
    reason = reason_for_lines(member, removed, added, known)
    shown = tuple(shortened(line) for line in lines[:LINES])
    more = (f"… and {len(lines) - LINES} more lines of the comparison",) if len(lines) > LINES else ()
    return Difference(member, "", f"{len(sides[0])} lines", f"{len(sides[1])} lines", reason, shown + more)


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
    start, one, other = next(pieces(first, second))
    at = first_difference(one, other)
    before = max(at - CONTEXT, 0)
    left, right = (" ".join(printable(each[before : at + CONTEXT])) for each in (one, other))
    sizes = "" if len(first) == len(second) else f"; {len(first)} and {len(second)} bytes in all"
    shown = [each[at : at + 16].hex(" ") or "(the end)" for each in (one, other)]
    reason = reason_for_texts(left, right, known.places) if left != right else ""
    return Difference(member, f"byte {start + at}{sizes}", shown[0], shown[1], reason)


def first_difference(first: bytes, second: bytes) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def printable(data: bytes) -> list[str]:
    return [found.decode() for found in PRINTABLE.findall(data)]


def pieces(first: memoryview, second: memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the position and the two pieces of 1 MiB wherever two files differ, the longer one's rest included."""
    for start in range(0, max(len(first), len(second)), PIECE):
        one, other = (bytes(side[start : start + PIECE]) for side in (first, second))
        if one != other:
            yield start, one, other
