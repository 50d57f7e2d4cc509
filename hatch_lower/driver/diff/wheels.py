"""Comparing two wheels: members in pairs, names and attributes, documents by leaf and weights by tensor. Other
members are compared by size and digest. diffoscope disassembles native code and compares texts by line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from hatch_lower.canonical import recorded_digest
from hatch_lower.driver.diff.archive import Wheel, compare_archives, equal_bytes, map_member, read_wheel
from hatch_lower.driver.diff.difference import (
    LABEL,
    NOTHING,
    ORDER,
    OTHER_SOURCES,
    Difference,
    Known,
    compare_documents,
    is_equal_json,
    reason_for_texts,
)
from hatch_lower.driver.diff.tensors import compare_tensors, header_of, read_tensor_file
from hatch_lower.driver.opened_wheel import map_part
from hatch_lower.format.constants import CHECK_FILE, CONSTANTS_FILES

DOCUMENT_LIMIT = 1 << 26  # bytes of a document that is read whole
FOLDER = "/_lowered/"
MANIFEST = "/manifest.json"
LEAST_SIZE = 256  # bytes: a smaller number in a document does not count as the size of a member
# The digest of a tensor, or of a file whose name is its digest
DIGEST = re.compile(rb'(?:"key": ?"|/(?:sha256_)?)([0-9a-f]{64})["._]')

IN_NAME = re.compile(r"(?=([0-9a-f]{64}))")


def pair_members(first: Wheel, second: Wheel) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of corresponding members, and the digests of corresponding members and tensors that differ."""
    # A delegate's name is its digest, so a changed delegate has another name; plan and manifest have both names at the
    # same place. The name of a metadata folder has the version.
    pairs = {name: name for name in first.members if name in second.members}
    folders = [metadata_folder(wheel) for wheel in (first, second)]
    lone = {name: f"{folders[1]}{name.removeprefix(folders[0])}" for name in first.members if name not in pairs}
    pairs |= {name: right for name, right in lone.items() if name.startswith(folders[0]) and right in second.members}
    digests: dict[str, str] = {}
    documents = [name for name in sorted(pairs) if FOLDER in name and name.endswith(".json")]
    for name in sorted(documents, key=lambda name: name.endswith(MANIFEST)):  # its lists are sorted by digest
        digests = paired_digests(first, second, name, name) | digests
    called: dict[str, list[str]] = {}
    for name in lone:
        for digest in IN_NAME.findall(name):
            called.setdefault(digest, []).append(name)
    for left, right in digests.items():
        for name in called.get(left, ()):
            if name.replace(left, right) in second.members:
                pairs[name] = name.replace(left, right)
                digests = paired_digests(first, second, name, pairs[name]) | digests
    return pairs, digests


def metadata_folder(wheel: Wheel) -> str:
    folders = {f"{name.partition('/')[0]}/" for name in wheel.members if ".dist-info/" in name}
    return folders.pop() if len(folders) == 1 else "\0"


def paired_digests(first: Wheel, second: Wheel, name: str, counterpart: str) -> dict[str, str]:
    """Return the digests at the same places of two documents, or of the documents at the beginning of two delegates."""
    if first.digests[name] == second.digests[counterpart]:
        return {}
    ours, theirs = (DIGEST.findall(head_of(wheel, member)) for wheel, member in ((first, name), (second, counterpart)))
    pairs = zip(ours[::-1], theirs[::-1], strict=False)  # the first place of a repeated digest counts
    return {left.decode(): right.decode() for left, right in pairs if left != right}


def head_of(wheel: Wheel, name: str) -> bytes:
    data = map_member(wheel, name)
    if name.endswith(".json"):
        return bytes(data) if len(data) <= DOCUMENT_LIMIT else b""
    head = header_of(data)
    return b"" if head is None else bytes(data[head.begin : head.end])


def known_of(
    first: Wheel, second: Wheel, pairs: Mapping[str, str], digests: Mapping[str, str], places: Mapping[str, str]
) -> Known:
    different = {name: right for name, right in pairs.items() if first.digests[name] != second.digests[right]}
    digests = {**digests, **{first.digests[name]: second.digests[right] for name, right in different.items()}}
    labels = {left: f"{LABEL}{number}" for number, left in enumerate(digests)}
    sizes = [(first.members[name].file_size, second.members[right].file_size) for name, right in different.items()]
    sizes = [pair for pair in sizes if pair[0] != pair[1] and min(pair) >= LEAST_SIZE]
    names: dict[str, str] = {}
    stored: set[str] = set()
    for name in sorted(different, key=lambda name: (not name.endswith(".json"), name)):
        if FOLDER in name:
            document = parsed(head_of(first, name))
            names = dict(constant_names(document)) | names
            if name.endswith(CONSTANTS_FILES) and isinstance(document, dict):
                stored |= document.keys()
    return Known(
        places,
        (labels, {right: labels[left] for left, right in digests.items()}),
        (frozenset(pair[0] for pair in sizes), frozenset(pair[1] for pair in sizes)),
        names,
        frozenset(stored),
    )


def parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def constant_names(document: Any) -> Iterator[tuple[str, str]]:
    """Yield storage key and name of each constant of a plan; other documents have no constants."""
    try:
        for name, constant in sorted(document["constants"].items(), reverse=True):
            yield str(document["storages"][constant["storage"]]["key"]), name
    except (AttributeError, IndexError, KeyError, TypeError):
        return


def record_rows(record: str, data: memoryview, wheel: Wheel, pairs: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the members that a RECORD lists, by their names in the first wheel, and whether the RECORD is right."""
    rows = [row for row in csv.reader(io.StringIO(bytes(data).decode("utf-8", "replace"), newline="")) if row]
    right = all(
        row[0] in wheel.members and row[1:] == (["", ""] if row[0] == record else row_of(wheel, row[0])) for row in rows
    )
    return sorted(pairs[row[0]] for row in rows if row[0] in pairs), right


def row_of(wheel: Wheel, name: str) -> list[str]:
    return [recorded_digest(wheel.digests[name]), str(wheel.members[name].file_size)]


ELF = b"\x7fELF"
FOLLOWS = "computed from weights or by code that differs too"
SERIAL = "/serialNumber"
OTHER_FORM = "the same values in another form: another version wrote the file"
OTHER_TOOL = "another tool wrote the archive, or the wheel was changed after its build"
WRONG_RECORD = "a RECORD that does not list the wheel's files: the wheel was changed after its build"
CODE = (
    "the compiler made other code: another compiler, other flags, another instruction set, or generated sources in "
    "another order"
)


def compare_wheels(first: Path, second: Path, places: Mapping[str, str] | None = None) -> tuple[Difference, ...]:
    """Return the differences of two wheels; none if all bytes are equal."""
    left, right = read_wheel(first), read_wheel(second)
    # digests and sizes of members in RECORD, manifest and plans follow from the members, and are left out
    pairs, keys = pair_members(left, right)
    known = known_of(left, right, pairs, keys, places or {})
    differences = [
        *compare_names(first.name, second.name),
        *compare_archives(left, right),
        *lone_members(left, right, pairs),
    ]
    for name, counterpart in sorted(pairs.items(), key=member_order):
        if left.digests[name] != right.digests[counterpart]:
            differences += compare_pair(left, right, name, counterpart, pairs, known)
    return tuple(explained_by_others(differences)) or tuple(compare_files(first, second))


def member_order(pair: tuple[str, str]) -> tuple[bool, bool, str]:
    """Return a sort key that puts causes before the members that follow from them."""
    return ".dist-info/" in pair[0], pair[0].endswith(CHECK_FILE), pair[0]


def compare_names(first: str, second: str) -> Iterator[Difference]:
    if first == second:
        return
    reason = ""
    try:
        left, right = parse_wheel_filename(first), parse_wheel_filename(second)
        if left[1] != right[1]:
            reason = "another version of the project: the number may come from the commit or a clock"
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
    back = {value: key for key, value in pairs.items()}
    rows, is_right = record_rows(name, left, first, {key: key for key in pairs})
    other_rows, is_other_right = record_rows(counterpart, right, second, back)
    if rows == other_rows and is_right and is_other_right:
        return []
    reason = "" if is_right and is_other_right else WRONG_RECORD
    return [Difference(name, "", content_text(left), content_text(right), reason)]


def explained_by_others(differences: list[Difference]) -> list[Difference]:
    """Return the differences without the SBOM's serial number, and with reasons that other differences give."""
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


def compare_files(first: Path, second: Path) -> Iterator[Difference]:
    left, right = (map_part(path, 0, path.stat().st_size) for path in (first, second))
    if not equal_bytes(left, right):
        yield Difference("", "bytes outside of the members", content_text(left), content_text(right), OTHER_TOOL)


def compare_members(member: str, first: memoryview, second: memoryview, known: Known) -> list[Difference]:
    """Return the differences of two members with other contents; none if they follow from other members."""
    try:
        differences = compare_parsed(member, first, second, known)
    except RecursionError:  # a document nests deeper than Python's stack
        differences = None
    if differences is not None:
        return differences
    return [Difference(member, "", content_text(first), content_text(second), reason_for(member, first, second, known))]


def content_text(data: memoryview) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}"


def compare_parsed(member: str, first: memoryview, second: memoryview, known: Known) -> list[Difference] | None:
    """Return the differences of two documents or tensor files, or `None` for other contents."""
    tensors = read_tensor_file(first), read_tensor_file(second)
    if tensors[0] is not None and tensors[1] is not None:
        drawn = not member.endswith(CHECK_FILE)
        differences = compare_tensors(member, tensors[0], tensors[1], known, drawn=drawn)
        return differences if differences or tensors[0].entries.keys() != tensors[1].entries.keys() else None
    left, right = header_of(first), header_of(second)
    if left is not None and right is not None:
        # a JSON value after its length, then other contents
        differences = compare_documents(member, left.value, right.value, known)
        if not equal_bytes(first[left.end :], second[right.end :]):
            return differences + compare_members(member, first[left.end :], second[right.end :], known)
        return [Difference(member, "", "", "", OTHER_FORM)] if is_equal_json(left.value, right.value) else differences
    texts = member_text(first), member_text(second)
    try:
        documents = [json.loads(text) for text in texts if text is not None]
    except ValueError:
        documents = []
    if len(documents) == 2 and all(isinstance(document, dict | list) for document in documents):
        if is_equal_json(*documents):
            return [Difference(member, "", "", "", OTHER_FORM)]
        return compare_documents(member, documents[0], documents[1], known)
    labelled = [text and known.labelled(text, is_second=side > 0) for side, text in enumerate(texts)]
    return [] if labelled[0] is not None and labelled[0] == labelled[1] else None


def member_text(data: memoryview) -> str | None:
    """Return the text of a file; `None` for binary or large files."""
    if len(data) > DOCUMENT_LIMIT or b"\0" in bytes(data):
        return None
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return None


def reason_for(member: str, first: memoryview, second: memoryview, known: Known) -> str:
    """Return the likely reason why two files that are no documents differ."""
    if bytes(first[: len(ELF)]) == bytes(second[: len(ELF)]) == ELF:
        return CODE
    left, right = member_text(first), member_text(second)
    if left is None or right is None:
        return ""
    if sorted(left.splitlines()) == sorted(right.splitlines()):
        return ORDER if left.splitlines() != right.splitlines() else "other ends of lines: a checkout may convert them"
    reason = reason_for_texts(left, right, known.places)
    if not reason and ".dist-info/" in member:
        return "another version of the build backend or of the project, or another platform"
    return reason or ("" if "/_lowered/" in member else OTHER_SOURCES)
