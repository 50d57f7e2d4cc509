"""Comparing JSON documents: which field has another value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hatch_lower.build.diff.difference import LABEL, NOTHING, Difference, Known, value_text
from hatch_lower.build.diff.reasons import ORDER, reason_for_field

MISSING = object()


@dataclass(frozen=True, slots=True)
class Field:
    """A field with two values; `MISSING` for none."""

    pointer: str  # RFC 6901
    first: Any
    second: Any
    reason: str = ""


def compare_documents(member: str, first: Any, second: Any, known: Known) -> list[Difference]:
    fields = list(compare_values("", known.plain(first), known.plain(second, is_second=True)))
    return [
        Difference(
            member,
            field.pointer,
            NOTHING if field.first is MISSING else value_text(field.first),
            NOTHING if field.second is MISSING else value_text(field.second),
            field.reason or reason_for_field(field.pointer, field.first, field.second, known.places),
        )
        for field in explained_by_order(fields)
    ]


def is_equal(first: Any, second: Any) -> bool:
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def compare_values(pointer: str, first: Any, second: Any) -> Iterator[Field]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted(first.keys() | second.keys()):
            inner = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            yield from compare_values(inner, first.get(key, MISSING), second.get(key, MISSING))
    elif isinstance(first, list) and isinstance(second, list):
        yield from compare_lists(pointer, first, second)
    elif MISSING in (first, second) or not is_equal(first, second):
        yield Field(pointer, first, second)


def compare_lists(pointer: str, first: list[Any], second: list[Any]) -> Iterator[Field]:
    """Yield what differs in two lists: one field if it is the order or the length."""
    fields = [
        field
        for position, (one, other) in enumerate(zip(first, second, strict=False))
        for field in compare_values(f"{pointer}/{position}", one, other)
    ]
    if len(first) != len(second):
        at = min(len(first), len(second))  # behind an item too many every other one is at another place
        one, other = (side[at] if at < len(side) else MISSING for side in (first, second))
        yield fields[0] if fields else Field(f"{pointer}/{at}", one, other)
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


def is_permutation(first: Sequence[Any], second: Sequence[Any]) -> bool:
    one, other = (sorted(json.dumps(value, sort_keys=True) for value in side) for side in (first, second))
    return one == other
