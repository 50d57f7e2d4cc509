"""Comparing JSON documents: which field has another value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hatch_lower.build.diff.difference import NOTHING, Difference, Known, value_text
from hatch_lower.build.diff.reasons import ORDER, reason_for_field
from hatch_lower.canonical import digest_of

MISSING = object()
DIGITS = 20
"""Numbers in texts with as many are no sizes."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field with two values; `MISSING` for none.

    Args:
        pointer: RFC 6901.
        reason: why, as far as it is known.
    """

    pointer: str
    first: Any
    second: Any
    reason: str = ""


def compare_documents(member: str, first: Any, second: Any, known: Known) -> list[Difference]:
    """Return the fields in which two JSON values differ.

    Fields that differ because they describe a member that is compared itself (its sha256, its size, its name if that is
    made of its sha256) are left out.
    """
    fields = explained_by_order(list(compare_values("", first, second, known)))
    return [
        Difference(
            member,
            each.pointer,
            NOTHING if each.first is MISSING else value_text(each.first),
            NOTHING if each.second is MISSING else value_text(each.second),
            each.reason or reason_for_field(each.pointer, each.first, each.second, known.places),
        )
        for each in fields
    ]


def is_equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal, numbers by their kind too."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def document_strings(first: Any, second: Any) -> Iterator[tuple[str, str]]:
    """Yield the strings that differ at the same places of two JSON values."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted(first.keys() & second.keys()):
            yield from document_strings(first[key], second[key])
    elif isinstance(first, list) and isinstance(second, list):
        for one, other in zip(first, second, strict=False):
            yield from document_strings(one, other)
    elif isinstance(first, str) and isinstance(second, str) and first != second:
        yield first, second


def compare_values(pointer: str, first: Any, second: Any, known: Known) -> Iterator[Field]:
    """Yield what differs at or below a pointer."""
    if isinstance(first, dict) and isinstance(second, dict):
        yield from compare_objects(pointer, first, second, known)
    elif isinstance(first, list) and isinstance(second, list):
        yield from compare_lists(pointer, first, second, known)
    elif not is_same(first, second, known):
        yield Field(pointer, first, second)


def compare_objects(pointer: str, first: dict[str, Any], second: dict[str, Any], known: Known) -> Iterator[Field]:
    """Yield what differs in two objects."""
    digests = first.get("sha256"), second.get("sha256")
    follows = digests[0] != digests[1] and all(isinstance(each, str) for each in digests)
    follows = follows and known.digests.get(str(digests[1])) == digests[0]
    for key in sorted(first.keys() | second.keys()):
        if follows and key in ("size", "header_sha256"):
            continue
        inner = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
        yield from compare_values(inner, first.get(key, MISSING), second.get(key, MISSING), known)


def compare_lists(pointer: str, first: list[Any], second: list[Any], known: Known) -> Iterator[Field]:
    """Yield what differs in two lists: one field if it is the order or the length."""
    fields = [
        field
        for position, (one, other) in enumerate(zip(first, second, strict=False))
        for field in compare_values(f"{pointer}/{position}", one, other, known)
    ]
    if fields and len(first) == len(second) and known.digests:
        plain = [plain_text(each, known, second=False) for each in first], [plain_text(each, known) for each in second]
        if plain[0] != plain[1] and sorted(plain[0]) == sorted(plain[1]) and not is_permutation(first, second):
            return  # sorted by the digests of members that differ
    if fields and len(first) == len(second) and is_permutation(first, second):
        yield Field(pointer, first, second, ORDER)
    elif len(first) != len(second):
        at = min(len(first), len(second))  # behind an item too many every other one is at another place
        one, other = (each[at] if at < len(each) else MISSING for each in (first, second))
        yield fields[0] if fields else Field(f"{pointer}/{at}", one, other)
        yield Field(f"{pointer} (number of items)", len(first), len(second))
    else:
        yield from explained_by_order(fields)


def plain_text(value: Any, known: Known, *, second: bool = True) -> str:
    """Return a value of one wheel as text, in which members that differ are the same as in the other wheel's."""
    sizes = {pair[second] for pair in known.sizes}
    digests = known.digests.keys() if second else set(known.digests.values())

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("size", "header_sha256") if str(value.get("sha256")) in digests else ()
            return {key: plain(each) for key, each in value.items() if key not in left_out}
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, str):
            size = value.isdecimal() and len(value) < DIGITS and int(value) in sizes
            return "a size" if size else known.translated(value) if second else value
        return "a size" if type(value) is int and value in sizes else value

    return json.dumps(plain(value), sort_keys=True)


def explained_by_order(fields: list[Field]) -> list[Field]:
    """Return fields with the order as their reason if they have the same values, at other places."""
    if len(fields) < 2 or any(MISSING in (each.first, each.second) for each in fields):
        return fields
    if not is_permutation([each.first for each in fields], [each.second for each in fields]):
        return fields
    return [replace(each, reason=each.reason or ORDER) for each in fields]


def is_permutation(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether two sequences have the same values in any order."""
    try:
        return sorted(map(digest_of, first)) == sorted(map(digest_of, second))
    except ValueError:  # NaN
        return False


def is_same(first: Any, second: Any, known: Known) -> bool:
    """Return whether two values that are no containers are the same, or differ only because members do."""
    if type(first) is not type(second):
        return False
    if isinstance(first, str):
        return first == second or first == known.translated(second) or follows_size(first, second, known)
    return bool(first == second) or (first != first and second != second) or (first, second) in known.sizes


def follows_size(first: str, second: str, known: Known) -> bool:
    """Return whether two texts are the sizes of one member that differs."""
    if not (first.isdecimal() and second.isdecimal() and max(len(first), len(second)) < DIGITS):
        return False
    return (int(first), int(second)) in known.sizes
