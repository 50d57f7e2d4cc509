"""Comparing JSON documents leaf by leaf."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hatch_lower.driver.diff.difference import (
    LABEL,
    NOTHING,
    ORDER,
    Difference,
    Known,
    json_text,
    reason_for_field,
)

MISSING = object()


@dataclass(frozen=True, slots=True)
class Field:
    """A leaf with its values on both sides; `MISSING` if a side lacks the leaf."""

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
    """Yield the leaves of two lists that differ; if only order or length differ, a field for the list."""
    fields = [
        field
        for position, (left, right) in enumerate(zip(first, second, strict=False))
        for field in compare_values(f"{pointer}/{position}", left, right)
    ]
    if len(first) != len(second):
        at = min(len(first), len(second))  # all items after an added item have another position
        left, right = (side[at] if at < len(side) else MISSING for side in (first, second))
        yield fields[0] if fields else Field(f"{pointer}/{at}", left, right)
        yield Field(f"{pointer} (number of items)", len(first), len(second))
    elif fields and is_permutation(first, second):
        if LABEL not in json.dumps(first):  # lists that are sorted by digests of changed members are reordered by these
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
