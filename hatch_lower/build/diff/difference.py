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
        digests: sha256 in the second wheel to that in the first, of members and tensors that differ and are compared
            themselves.
        sizes: the sizes of these members in the first and second wheel.
        names: sha256 of a tensor in the first wheel to what the model calls it.
        stored: sha256 of the tensors in files of constants of the first wheel; delegates may hold them once more.
    """

    places: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    sizes: frozenset[tuple[int, int]] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()

    def translated(self, text: str) -> str:
        """Return a text of the second wheel with the digests of differing members as the first wheel has them."""
        return HEXADECIMAL.sub(lambda found: self.digests.get(found[0], found[0]), text)


def value_text(value: Any) -> str:
    """Return a JSON value on one line, shortened."""
    return shortened(json.dumps(value, ensure_ascii=False, sort_keys=True))


def shortened(text: str) -> str:
    """Return a text of at most 96 characters: its beginning and its end."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 33]} … {text[-30:]}"
