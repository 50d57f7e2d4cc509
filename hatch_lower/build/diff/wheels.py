"""Comparing two wheels: what differs, first of the wheels as a whole, then of their members by what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from hatch_lower.build.diff.archive import Wheel, compare_archives, map_member, read_wheel
from hatch_lower.build.diff.difference import NOTHING, Difference, Known
from hatch_lower.build.diff.native import CODE, compare_libraries, read_library
from hatch_lower.build.diff.pairing import DOCUMENT_LIMIT, known_of, pair_members, record_rows
from hatch_lower.build.diff.tensors import compare_tensors, header_of, read_tensor_file
from hatch_lower.build.diff.texts import compare_bytes, compare_documents, compare_texts, is_equal, pieces
from hatch_lower.build.opened_wheel import map_part

FOLLOWS = "computed from weights or by code that differs too"
SERIAL = "/serialNumber"
CHECK_FILE = "/check.safetensors"
OTHER_FORM = "the same values, written otherwise: by another version of what writes the file"


def compare_wheels(first: Path, second: Path, places: Mapping[str, str] | None = None) -> tuple[Difference, ...]:
    """Return in what two wheels differ; nothing if all their bytes are equal."""
    left, right = read_wheel(first), read_wheel(second)
    # digests and sizes of other members, in RECORD, manifest and plans, follow from those members, and are left out
    pairs, keys = pair_members(left, right)
    known = known_of(left, right, pairs, keys, places or {})
    differences = [
        *compare_names(first.name, second.name),
        *compare_archives(left, right),
        *lone_members(left, right, pairs),
    ]
    for name, counterpart in sorted(pairs.items(), key=order_of):
        if left.digests[name] != right.digests[counterpart]:
            differences += compare_pair(left, right, name, counterpart, pairs, known)
    return tuple(explained_by_others(differences)) or tuple(compare_files(first, second, known))


def order_of(pair: tuple[str, str]) -> tuple[bool, bool, str]:
    """Return what orders pairs of members so that what differs because of others comes after them."""
    return ".dist-info/" in pair[0], pair[0].endswith(CHECK_FILE), pair[0]


def compare_names(first: str, second: str) -> Iterator[Difference]:
    if first == second:
        return
    reason = ""
    try:
        left, right = parse_wheel_filename(first), parse_wheel_filename(second)
        if left[1] != right[1]:
            reason = "another version of the project: its number comes from the commit or a clock, say"
        elif left[3] != right[3]:
            reason = "built for another platform or with another compiler, or the wheel was renamed or retagged"
    except InvalidWheelFilename:
        reason = "the wheel was renamed"
    yield Difference("", "name", first, second, reason)


def lone_members(first: Wheel, second: Wheel, pairs: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted(first.members.keys() - pairs.keys()):
        yield Difference(name, "", f"{first.members[name].file_size} bytes", NOTHING, reason_for_lone(name))
    for name in sorted(second.members.keys() - set(pairs.values())):
        yield Difference(name, "", NOTHING, f"{second.members[name].file_size} bytes", reason_for_lone(name))


def reason_for_lone(name: str) -> str:
    if "/_lowered/" in name:
        return "other settings of the build hook `lower`, or one build ran without it"
    if ".dist-info/" in name:
        return "another version of the build backend, or of hatch-lower"
    return "a file that only one of the source trees has, or that a build hook writes"


def compare_pair(
    first: Wheel, second: Wheel, name: str, counterpart: str, pairs: Mapping[str, str], known: Known
) -> list[Difference]:
    left, right = map_member(first, name), map_member(second, counterpart)
    if not name.endswith(".dist-info/RECORD"):
        return compare_members(name, left, right, known)
    texts = [bytes(side).decode("utf-8", "replace") for side in (left, right)]
    back = {value: key for key, value in pairs.items()}
    rows = record_rows(name, texts[0], first, {key: key for key in pairs})
    return compare_rows(name, rows, record_rows(counterpart, texts[1], second, back), pairs)


def compare_rows(name: str, first: list[str], second: list[str], pairs: Mapping[str, str]) -> list[Difference]:
    if any(key != value for key, value in pairs.items()):  # rows are in the order of names
        first, second = sorted(first), sorted(second)
    wrong = any(not row.endswith(",as it is") for row in first + second)
    reason = "a RECORD that lists what is not in the wheel: it was changed after it was built" * wrong
    differences = compare_texts(name, "\n".join(first), "\n".join(second), Known())
    return [replace(difference, reason=reason) for difference in differences]


def explained_by_others(differences: list[Difference]) -> list[Difference]:
    """Return differences without an SBOM's number, which is made of its contents, and with reasons that others tell."""
    own = [difference for difference in differences if difference.place != SERIAL] or differences
    programs = any(is_program(difference.member) for difference in own)
    isa = next((difference.reason for difference in own if difference.place.endswith("/target/isa")), "")
    explained = []
    for difference in own:
        reason = FOLLOWS if programs and difference.member.endswith(CHECK_FILE) else difference.reason
        explained.append(replace(difference, reason=isa if isa and reason == CODE else reason))
    return explained


def is_program(member: str) -> bool:
    return "/_lowered/" in member and not member.endswith((CHECK_FILE, ".debug.json", "/manifest.json"))


def compare_files(first: Path, second: Path, known: Known) -> Iterator[Difference]:
    left, right = (map_part(path, 0, path.stat().st_size) for path in (first, second))
    if next(pieces(left, right), None) is not None:
        yield replace(compare_bytes("", left, right, known), reason="another tool wrote the archive")


def compare_members(member: str, first: memoryview, second: memoryview, known: Known) -> list[Difference]:
    """Return what differs in two members that are not equal; nothing if it follows from other members."""
    try:
        differences = compare_parsed(member, first, second, known)
    except RecursionError:  # a document that nests deeper than Python goes
        differences = None
    return [compare_bytes(member, first, second, known)] if differences is None else differences


def compare_parsed(member: str, first: memoryview, second: memoryview, known: Known) -> list[Difference] | None:
    libraries = read_library(first), read_library(second)
    if libraries[0] is not None and libraries[1] is not None:
        return compare_libraries(member, libraries[0], libraries[1], known.places) or None
    tensors = read_tensor_file(first), read_tensor_file(second)
    if tensors[0] is not None and tensors[1] is not None:
        drawn = not member.endswith(CHECK_FILE)
        differences = compare_tensors(member, tensors[0], tensors[1], known, drawn=drawn)
        return differences if differences or tensors[0].entries.keys() != tensors[1].entries.keys() else None
    left, right = header_of(first), header_of(second)
    if left is not None and right is not None:
        # a JSON value after its length, and something else behind it
        differences = compare_documents(member, left.value, right.value, known)
        first, second = first[left.end :], second[right.end :]
        if next(pieces(first, second), None) is not None:
            return differences + compare_members(member, first, second, known)
        return [Difference(member, "", "", "", OTHER_FORM)] if is_equal(left.value, right.value) else differences
    if max(len(first), len(second)) > DOCUMENT_LIMIT:
        return None
    return compare_whole(member, bytes(first), bytes(second), known)


def compare_whole(member: str, first: bytes, second: bytes, known: Known) -> list[Difference] | None:
    try:
        texts = first.decode(), second.decode()
    except UnicodeDecodeError:
        return None
    if any("\0" in text for text in texts):
        return None
    try:
        documents = json.loads(texts[0]), json.loads(texts[1])
    except ValueError:
        documents = None, None
    if not all(isinstance(document, dict | list) for document in documents):
        return compare_texts(member, *texts, known)
    if is_equal(*documents):
        return [Difference(member, "", "", "", OTHER_FORM)]
    return compare_documents(member, *documents, known)
