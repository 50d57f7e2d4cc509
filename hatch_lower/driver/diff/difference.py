"""A difference between two wheels, its likely reason, and the facts that comparing a member needs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hatch_lower.frozen import Frozen

NOTHING = "(not there)"  # the text of a side that lacks the leaf or file
SHOWN = 96
LABEL = "the sha256 of "
SIZE = "the size of a member that differs"
DIGITS = 20  # a number in a text with this many digits is not a size
HEXADECIMAL = re.compile(r"[0-9a-f]{64}")
ORDER = (
    "the same values in another order: of a set, which follows the hash seed, or of a folder's files; "
    "sort them where they are made"
)

OTHER_SOURCES = (
    "the sources are not those of the wheel (another commit, local changes), or a build hook writes this file"
)

PATH = "the path of a folder is in it; write paths relative to the project, or leave them out"
TIME = "a time stamp; leave it out, or take the time from SOURCE_DATE_EPOCH"
# A pattern, and the reason if two texts are equal without the matches of the pattern
MASKS = (
    (re.compile(r"(?<![\w.])(?:/[\w.+@ -]*[\w.+@-]){2,}|(?<!\w)[A-Z]:\\[^\s:\"']+"), PATH),
    (
        re.compile(
            r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
            r"|(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*,? )?"
            r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* [ \d]?\d,? "
            r"(?:\d\d:\d\d:\d\d )?\d{4}|\b\d\d:\d\d:\d\d(?:\.\d+)?\b"
        ),
        TIME,
    ),
    (re.compile(r"(?<![\w.])[12]\d{9}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?(?![\w.])"), TIME),
    (
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE),
        "a random identifier; derive it from contents",
    ),
    (
        re.compile(r"0x[0-9a-fA-F]{5,}"),
        "an address in memory, as in the `repr` of an object; write something that names the object",
    ),
    (re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32})(?![0-9a-f])"), "a digest of other contents"),
)

# Patterns of JSON pointers whose values have one likely reason
FIELDS = (
    (
        re.compile(r"/(?:tools(?:/.*)?|torch|hatch_lower)|.*/components/\d+/version"),
        "other versions of tools; build with the same versions",
    ),
    (re.compile(r".*/isa"), "another instruction set; set the option `isa` of the recipe's backend"),
    (re.compile(r".*/target(?:/.*)?"), "built for another kind of machine"),
    (
        re.compile(r".*/handles/\d+/source"),
        "other source lines: the sources, or an installed package, are not the same",
    ),
    (re.compile(r"/version"), "another version of the project: the number may come from the commit or a clock"),
)

CLOSE = 1e-4  # relative: numbers that differ by less are the same sum in another order
FAR = 1e-2
LOW_BITS = (
    "the low bits of numbers: sums in another order, by another number of threads or other instructions, "
    "if not by other versions"
)

UNSEEDED = (
    "weights that are random each time: drawn or trained in the entry point from a seed that changes; "
    "seed it there, or load them from a file"
)


@dataclass(frozen=True, slots=True)
class Difference:
    member: str  # the file in the first wheel, or in the second if only the second has the file; empty: the wheel
    place: str  # a JSON pointer, a tensor or an attribute; empty for the whole file
    first: str  # the value in the first wheel, shortened
    second: str
    reason: str = ""  # the likely reason, or empty
    lines: tuple[str, ...] = ()  # details, as sentences


class Known(Frozen):
    """Facts about both wheels for comparing a pair of members."""

    # path of one build to its meaning: `the rebuild's HOME`
    places: Mapping[str, str] = field(default_factory=dict)
    # for each wheel, the sha256 of a changed member or tensor to a label that both wheels share
    labels: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    # for each wheel, the sizes of these members
    sizes: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    # sha256 of a tensor in the first wheel to the model's name for the tensor
    names: Mapping[str, str] = field(default_factory=dict)
    # sha256 of the tensors in constants files of the first wheel; delegates may hold copies
    stored: frozenset[str] = frozenset()

    def labelled(self, text: str, *, is_second: bool = False) -> str:
        return HEXADECIMAL.sub(lambda digest: self.labels[is_second].get(digest[0], digest[0]), text)

    def plain(self, value: object, *, is_second: bool = False) -> object:
        """Return a JSON value without digests, names and sizes of changed members."""
        if isinstance(value, dict):
            left_out = ("size", "header_sha256") if str(value.get("sha256")) in self.labels[is_second] else ()
            return {key: self.plain(part, is_second=is_second) for key, part in value.items() if key not in left_out}
        if isinstance(value, list):
            return [self.plain(part, is_second=is_second) for part in value]
        if isinstance(value, str):
            is_size = value.isdecimal() and len(value) < DIGITS and int(value) in self.sizes[is_second]
            return SIZE if is_size else self.labelled(value, is_second=is_second)
        return SIZE if type(value) is int and value in self.sizes[is_second] else value


def json_text(value: object) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, sort_keys=True))


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 33]} … {text[-30:]}"


def reason_for_texts(first: str, second: str, places: Mapping[str, str]) -> str:
    for path, what in places.items():
        if (path in first) != (path in second):
            return f"{what} is in it; write paths relative to the project, or leave them out"
    for pattern, reason in MASKS:
        if pattern.sub("\0", first) == pattern.sub("\0", second):
            return reason
    return ""


def reason_for_field(pointer: str, first: object, second: object, places: Mapping[str, str]) -> str:
    for pattern, reason in FIELDS:
        if pattern.fullmatch(pointer):
            return reason
    if isinstance(first, str) and isinstance(second, str):
        return reason_for_texts(first, second, places)
    if is_number(first) and is_number(second):
        if isinstance(first, float) and isinstance(second, float) and math.isclose(first, second, rel_tol=CLOSE):
            return LOW_BITS
        return reason_for_texts(repr(first), repr(second), {})
    return ""


def reason_for_numbers(share: float, largest: float, *, drawn: bool) -> str:
    # `drawn`: the tensors are weights, not computed from weights
    if largest < CLOSE:
        return LOW_BITS
    return UNSEEDED if drawn and share > 0.5 and largest > FAR else ""


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
