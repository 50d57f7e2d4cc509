"""What a comparison finds, and what the comparisons of single members are told of the two wheels."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NOTHING = "(not there)"
"""What is shown for a side that lacks something."""
SHOWN = 96
LABEL = "the sha256 of "
SIZE = "the size of a member that differs"
DIGITS = 20
"""Numbers in texts with as many are no sizes."""
HEXADECIMAL = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two wheels differ.

    Args:
        member: the file in the first wheel, or in the second if only that has it; empty for the wheel as a whole.
        place: where in it: a JSON pointer, a tensor, a section or function; empty for the file as a whole.
        first: what the first wheel has there, shortened.
        second: what the second wheel has there, shortened.
        reason: the likely reason, or empty.
        lines: more about it: the lines of a diff, or sentences.
    """

    member: str
    place: str
    first: str
    second: str
    reason: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before members are compared one by one.

    Args:
        places: paths that only one of the builds had, to what they are: `the rebuild's HOME`.
        labels: for each wheel, the sha256 of members and tensors that differ and are compared themselves, to one text
            for both wheels.
        sizes: for each wheel, the sizes of these members.
        names: sha256 of a tensor in the first wheel to what the model calls it.
        stored: sha256 of the tensors in files of constants of the first wheel; delegates may hold them once more.
    """

    places: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    sizes: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    names: Mapping[str, str] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()

    def labelled(self, text: str, *, is_second: bool = False) -> str:
        return HEXADECIMAL.sub(lambda digest: self.labels[is_second].get(digest[0], digest[0]), text)

    def plain(self, value: Any, *, is_second: bool = False) -> Any:
        """Return a JSON value of one wheel without what only says that a member differs: its digest, name and size."""
        if isinstance(value, dict):
            left_out = ("size", "header_sha256") if str(value.get("sha256")) in self.labels[is_second] else ()
            return {key: self.plain(part, is_second=is_second) for key, part in value.items() if key not in left_out}
        if isinstance(value, list):
            return [self.plain(part, is_second=is_second) for part in value]
        if isinstance(value, str):
            is_size = value.isdecimal() and len(value) < DIGITS and int(value) in self.sizes[is_second]
            return SIZE if is_size else self.labelled(value, is_second=is_second)
        return SIZE if type(value) is int and value in self.sizes[is_second] else value


def value_text(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, sort_keys=True))


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 33]} … {text[-30:]}"
