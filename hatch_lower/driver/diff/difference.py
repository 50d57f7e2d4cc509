"""A difference between two wheels or documents, its likely reason, and the comparison of documents leaf by leaf."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    (
        re.compile(r".*/not_compared"),
        "a build machine lacks the device of the recipe, or `verify` differs; the programs are not affected",
    ),
    (re.compile(r".*/measured(?:/.*)?"), "other times in lowering-times.json; the programs are not affected"),
    (
        re.compile(r".*/metric(?:/.*)?"),
        "other data or other code of the metric, other weights, or the low bits of sums; the programs are not affected",
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
    """Return a value as JSON, shortened."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
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


def is_equal_json(first: object, second: object) -> bool:
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def compare_values(pointer: str, first: object, second: object) -> Iterator[Field]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted(first.keys() | second.keys()):
            inner = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            yield from compare_values(inner, first.get(key, MISSING), second.get(key, MISSING))
    elif isinstance(first, list) and isinstance(second, list):
        yield from compare_lists(pointer, first, second)
    elif MISSING in (first, second) or not is_equal_json(first, second):
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


Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DocumentChange:
    place: Path  # names from the root: `("models", "digits", "size")`
    first: object
    second: object
    lines: tuple[str, ...] = ()


def document_changes(place: Path, first: object, second: object) -> Iterator[DocumentChange]:
    """Yield the differences of two values. Named items are compared by name; a value with a digest is a leaf."""
    first, second = (list(side) if isinstance(side, tuple) else side for side in (first, second))
    if first == second:
        return
    old, new = ({} if side == [] else items_by_name(side) for side in (first, second))
    if old is None or new is None or not {**old, **new} or "sha256" in {**old, **new}:
        yield DocumentChange(place, first, second)
        return
    for name in {**old, **new}:
        yield from document_changes((*place, name), old.get(name), new.get(name))
    if isinstance(first, list) and old.keys() == new.keys() and list(old) != list(new):
        yield DocumentChange(place, list(old), list(new))


def items_by_name(value: object) -> dict[str, object] | None:
    """Return a mapping, a list of named items, or a list of rows that begin with a name, by name; else `None`."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, list):
        return None
    if all(isinstance(item, Mapping) and "name" in item for item in value):
        return {item["name"]: {key: part for key, part in item.items() if key != "name"} for item in value}
    if all(isinstance(item, (list, tuple)) and len(item) > 1 and isinstance(item[0], str) for item in value):
        return {name: rest[0] if len(rest) == 1 else " ".join(map(str, rest)) for name, *rest in value}
    return None
